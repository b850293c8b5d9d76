"""Inputs and outputs over the message limit, kept apart where the configuration asks for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from ditto_tasks import Runtime
from tests.conftest import StartWorker

LIMIT = 2000  # bytes of a message
LARGE = "y" * 50_000


@pytest.fixture
def large(broker_url: str, worker_process: StartWorker, tmp_path: Path) -> Iterator[Runtime]:
    """A runtime, with a worker, whose large payloads go by reference."""
    settings = tmp_path / "ditto.yaml"
    settings.write_text(f"transport:\n  maxBodyBytes: {LIMIT}\n  largePayloads: reference\n")
    worker_process(broker_url, DITTO_CONFIG=str(settings))
    with Runtime.from_config(settings, {"DITTO_BROKER_URL": broker_url}) as runtime:
        yield runtime


def test_a_large_input_and_a_large_output_arrive_whole(large: Runtime) -> None:
    assert large.invoke("TEST.ECHO", LARGE).unwrap() == LARGE
    assert [result.unwrap() for result in large.map("TEST.ECHO", [LARGE, "small", LARGE])] == [
        LARGE,
        "small",
        LARGE,
    ]


def test_an_input_is_kept_until_its_call_has_ended_an_output_longer_than_the_result(
    large: Runtime, broker_url: str
) -> None:
    invocation = large.submit("TEST.ECHO", LARGE)
    invocation.result()
    with redis.Redis.from_url(broker_url) as client:
        assert not client.exists(f"ditto:input:{invocation.id}")
        assert client.ttl(f"ditto:output:{invocation.id}") > client.ttl(f"celery-task-meta-{invocation.id}")


def test_another_process_finds_the_large_output_by_the_id(large: Runtime, broker_url: str) -> None:
    id = large.submit("TEST.LARGE", {"bytes": 30_000}).id
    with Runtime.from_config(None, {"DITTO_BROKER_URL": broker_url}) as other:
        assert other.invocation(id).result(30).unwrap() == "x" * 30_000


def test_a_foreign_client_sees_where_the_output_lies(large: Runtime, broker_url: str) -> None:
    invocation = large.submit("TEST.LARGE", {"bytes": 30_000})
    invocation.result()
    foreign = Celery("foreign", broker=broker_url, backend=broker_url, set_as_current=False)
    stored = AsyncResult(invocation.id, app=foreign).result
    foreign.backend.client.close()
    foreign.close()
    assert stored["outputReference"] == f"ditto:output:{invocation.id}"
    assert "output" not in stored


def test_what_has_expired_is_said_to_have(large: Runtime, broker_url: str) -> None:
    invocation = large.submit("TEST.LARGE", {"bytes": 30_000})
    invocation.result()
    with redis.Redis.from_url(broker_url) as client:
        client.delete(f"ditto:output:{invocation.id}")
    with Runtime.from_config(None, {"DITTO_BROKER_URL": broker_url}) as other:
        result = other.invocation(invocation.id).result(30)
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "PAYLOAD_EXPIRED")


def test_an_input_that_has_expired_fails_its_call(
    broker_url: str, worker_process: StartWorker, tmp_path: Path
) -> None:
    settings = tmp_path / "ditto.yaml"
    settings.write_text(f"transport:\n  maxBodyBytes: {LIMIT}\n  largePayloads: reference\n")
    with Runtime.from_config(settings, {"DITTO_BROKER_URL": broker_url}) as runtime:
        invocation = runtime.submit("TEST.ECHO", LARGE)
        with redis.Redis.from_url(broker_url) as client:
            assert client.delete(f"ditto:input:{invocation.id}") == 1
        worker_process(broker_url)
        result = invocation.result(60)
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "PAYLOAD_EXPIRED")
