"""Calls that kill their process, that wait for themselves, that answer too much, that nobody may read."""

import base64
import json
import pickle
import time
import uuid
from pathlib import Path

import psutil
import pytest

from ditto_tasks.transport.connection import RedisClient
from ditto_tasks.transport.dead import DeadLetters
from tests.conftest import LATE, wait_until
from tests.faults.conftest import KEYS, Crew, children, entries

MAX_DELIVERIES = 3  # what ditto.yaml has by default
TEN_MEGABYTES = 10 * 1024 * 1024


def test_a_poison_call_is_given_up_and_kept_in_prefork_where_only_children_die(
    crew: Crew, client: RedisClient
) -> None:
    worker = crew.hire(pool="prefork")
    with crew.runtime() as runtime:
        before = [runtime.submit("FAULT.WORK", {"seconds": 0.1}) for _ in range(5)]
        poison = runtime.submit("FAULT.POISON", {"n": 1})
        after = [runtime.submit("FAULT.WORK", {"seconds": 0.1}) for _ in range(5)]
        result = poison.result(60)
        assert [call.result(30).status for call in before + after] == ["success"] * 10
        assert runtime.invocation(poison.id).result(5) == result
    assert (result.status, result.error and result.error.code) == ("failed", "WORKER_LOST")
    assert crew.starts()[poison.id] == MAX_DELIVERIES
    [dead] = DeadLetters(client, KEYS).list()
    assert (dead.execution_id, dead.node, dead.input) == (poison.id, "FAULT.POISON", {"n": 1})
    assert psutil.pid_exists(worker.pid)
    wait_until(lambda: len(children(worker)) >= 4, what="the dead children are replaced")
    wait_until(lambda: entries(client) == 0, what="no message is left")


def test_a_poison_call_takes_no_more_workers_than_it_may_in_threads(crew: Crew, client: RedisClient) -> None:
    with crew.runtime() as runtime:
        good = [runtime.submit("FAULT.READ", {}) for _ in range(5)]
        poison = runtime.submit("FAULT.POISON", {})
        good += [runtime.submit("FAULT.READ", {}) for _ in range(5)]
        for _ in range(MAX_DELIVERIES):
            victim = crew.hire(lease=1.0, wait=False)
            wait_until(lambda: not psutil.pid_exists(victim.pid) or _is_dead(victim.pid))  # noqa: B023
        survivor = crew.hire(lease=1.0)
        result = poison.result(60)
        assert [call.result(30).status for call in good] == ["success"] * 10
    assert (result.status, result.error and result.error.code) == ("failed", "WORKER_LOST")
    assert crew.starts()[poison.id] == MAX_DELIVERIES
    assert psutil.pid_exists(survivor.pid)
    assert [dead.execution_id for dead in DeadLetters(client, KEYS).list()] == [poison.id]


def _is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_node_that_calls_itself_on_a_full_queue_does_not_hang(crew: Crew, pool: str, depth: int) -> None:
    crew.hire(pool=pool, concurrency=1)
    with crew.runtime() as runtime:
        began = time.monotonic()
        result = runtime.submit("FAULT.NEST", {"depth": depth}).result(30)
        assert result.unwrap() == depth
        assert time.monotonic() - began < 5 + LATE


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_result_that_is_too_large_fails_once(crew: Crew, pool: str) -> None:
    worker = crew.hire(pool=pool)
    with crew.runtime() as runtime:
        call = runtime.submit("FAULT.LARGE", {"bytes": TEN_MEGABYTES})
        result = call.result(30)
        assert (result.status, result.error and result.error.code) == ("failed", "PAYLOAD_TOO_LARGE")
        assert runtime.submit("FAULT.WORK", {}).result(30).status == "success"
    assert crew.starts()[call.id] == 1
    assert "Traceback" not in worker.log


class Touch:
    """Unpickling it creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_pickle_in_the_list_of_a_queue_is_refused(
    crew: Crew, client: RedisClient, tmp_path: Path, pool: str
) -> None:
    planted = tmp_path / "planted"
    id = str(uuid.uuid4())
    message = {
        "body": base64.b64encode(pickle.dumps(([Touch(planted)], {}, {}))).decode(),
        "content-encoding": "binary",
        "content-type": "application/x-python-serialize",
        "headers": {"task": "FAULT.WORK", "id": id, "lang": "py", "root_id": id},
        "properties": {
            "correlation_id": id,
            "delivery_tag": id,
            "delivery_info": {"exchange": "", "routing_key": "ditto.fault.work"},
            "body_encoding": "base64",
        },
    }
    client.lpush("ditto.fault.work", json.dumps(message))
    worker = crew.hire(pool=pool)
    wait_until(lambda: "ContentDisallowed" in worker.log, what="the refusal is logged")
    with crew.runtime() as runtime:
        assert runtime.submit("FAULT.WORK", {}).result(30).status == "success"
    assert not planted.exists()
    wait_until(lambda: entries(client) == 0, what="the message is gone")


@pytest.mark.parametrize("body", [b"", b"not json", b"[]", b"null", b'{"body": 1}'])
def test_what_is_no_message_at_all_does_not_stop_a_worker(
    crew: Crew, client: RedisClient, body: bytes
) -> None:
    client.lpush("ditto.fault.work", body)
    client.xadd("ditto.fault.work:normal", {"x": body})
    crew.hire()
    with crew.runtime() as runtime:
        assert runtime.submit("FAULT.WORK", {}).result(30).status == "success"
