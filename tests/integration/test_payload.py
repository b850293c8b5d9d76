"""Messages that are too large or not of a kind that workers read."""

from pathlib import Path

import pytest
import redis

from ditto_tasks import PayloadTooLarge, Runtime
from tests.conftest import WorkerProcess, connected

TEN_MEGABYTES = 10 * 1024 * 1024


def test_a_result_that_is_too_large_fails_once_and_the_worker_goes_on(
    runtime: Runtime, worker: WorkerProcess
) -> None:
    result = runtime.invoke("TEST.LARGE", {"bytes": TEN_MEGABYTES})
    assert result.status == "failed"
    assert result.error is not None
    assert result.error.code == "PAYLOAD_TOO_LARGE"
    assert runtime.invoke("TEST.ECHO", "next").unwrap() == "next"
    assert sum(line.startswith("ran {'bytes'") for line in worker.trace) == 1
    assert runtime.invocation(result.execution_id).result() == result


def test_an_input_that_is_too_large_is_not_sent(broker_url: str) -> None:
    with connected(broker_url) as runtime, redis.Redis.from_url(broker_url) as client:
        with pytest.raises(PayloadTooLarge, match=r"over the limit of 1,048,576"):
            runtime.submit("TEST.ECHO", "x" * TEN_MEGABYTES)
        with pytest.raises(PayloadTooLarge):
            runtime.map("TEST.ECHO", ["small", "x" * TEN_MEGABYTES])
        assert client.dbsize() == 0


def test_the_limit_is_a_setting(broker_url: str, tmp_path: Path) -> None:
    settings = tmp_path / "ditto.yaml"
    settings.write_text("transport:\n  maxBodyBytes: 2000\n")
    with Runtime.from_config(settings, {"DITTO_BROKER_URL": broker_url}) as runtime:
        runtime.submit("TEST.ECHO", "x" * 1900)
        with pytest.raises(PayloadTooLarge, match=r"2,003 bytes, over the limit of 2,000"):
            runtime.submit("TEST.ECHO", "x" * 2001)
