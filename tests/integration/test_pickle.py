"""A pickle in the queue: refused without being read."""

import base64
import json
import pickle
import uuid
from pathlib import Path

import pytest
import redis
from kombu import Producer

from ditto_tasks import DittoConfig, Runtime
from ditto_tasks.transport.app import create_app
from tests.conftest import WorkerProcess, wait_until

PICKLE = "application/x-python-serialize"
QUEUE = "ditto.test.echo"


class Touch:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """The file that the pickle creates when it is read."""
    return tmp_path / "pwned"


@pytest.fixture
def body(planted: Path) -> bytes:
    """The pickled arguments of a task."""
    return pickle.dumps(([Touch(planted)], {}, {}))


def test_a_published_pickle_is_refused_and_the_worker_goes_on(
    planted: Path, body: bytes, queue_url: str, runtime: Runtime, worker: WorkerProcess
) -> None:
    app = create_app(DittoConfig(broker_url=queue_url, result_url=queue_url))
    with app.connection_for_write() as connection, Producer(connection) as producer:
        id = str(uuid.uuid4())
        producer.publish(
            body,
            routing_key=QUEUE,
            content_type=PICKLE,
            content_encoding="binary",
            headers={"task": "TEST.ECHO", "id": id},
            correlation_id=id,
        )
    app.close()
    wait_until(lambda: "ContentDisallowed" in worker.log, what="the refusal is logged")
    assert runtime.invoke("TEST.ECHO", "after the published pickle").unwrap() == "after the published pickle"
    assert not planted.exists()


def test_a_pickle_pushed_into_the_list_is_not_read_and_the_worker_goes_on(
    planted: Path, body: bytes, queue_url: str, runtime: Runtime, worker: WorkerProcess
) -> None:
    with redis.Redis.from_url(queue_url) as client:
        client.lpush(QUEUE, message(base64.b64encode(body).decode()))
    assert runtime.invoke("TEST.ECHO", "after the pushed pickle").unwrap() == "after the pushed pickle"
    assert not planted.exists()


def test_the_pickle_would_have_worked(planted: Path, body: bytes) -> None:
    pickle.loads(body)
    assert planted.exists()


def message(body: str) -> bytes:
    """Write what plain kombu puts into a list of Redis."""
    id = str(uuid.uuid4())
    return json.dumps(
        {
            "body": body,
            "content-encoding": "binary",
            "content-type": PICKLE,
            "headers": {"task": "TEST.ECHO", "id": id, "lang": "py", "root_id": id, "argsrepr": "()"},
            "properties": {
                "correlation_id": id,
                "delivery_mode": 2,
                "delivery_tag": id,
                "delivery_info": {"exchange": "", "routing_key": QUEUE},
                "priority": 0,
                "body_encoding": "base64",
            },
        }
    ).encode()
