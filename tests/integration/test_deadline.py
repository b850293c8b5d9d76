"""Deadlines over the queue: what is too late is not begun, and the caller never waits longer."""

import time
from pathlib import Path

import pytest

from ditto_tasks import InvocationTimeout, Runtime
from tests.conftest import LATE, StartWorker, WorkerProcess, connected, wait_until


def test_an_expired_call_is_not_begun(broker_url: str, worker_process: StartWorker) -> None:
    with connected(broker_url) as runtime:
        late = runtime.submit("TEST.ECHO", "late", timeout=0.1)
        with pytest.raises(InvocationTimeout) as timeout:
            late.result()
        assert timeout.value.started is False
        wanted = runtime.submit("TEST.ECHO", "in time")
        worker = worker_process(broker_url)
        assert wanted.result().unwrap() == "in time"
        result = late.result(30)
    assert result.status == "timeout"
    assert result.error is not None
    assert result.error.code == "TIMEOUT"
    assert "ran late" not in worker.trace


def test_a_call_that_runs_too_long_times_out_as_started(runtime: Runtime) -> None:
    began = time.monotonic()
    with pytest.raises(InvocationTimeout, match="a worker runs it") as timeout:
        runtime.invoke("TEST.STUBBORN", {"seconds": 2 + 2 * LATE}, timeout=2)
    assert 2 <= time.monotonic() - began < 2 + LATE
    assert timeout.value.started is True


def test_a_node_that_looks_at_its_deadline_ends_with_it(runtime: Runtime, worker: WorkerProcess) -> None:
    invocation = runtime.submit("TEST.LOOP", "bounded", timeout=3)
    result = invocation.result(30)
    assert (result.status, invocation.status()) == ("timeout", "timeout")
    assert "ended bounded" in worker.trace


def test_a_call_that_waits_behind_others_times_out_as_not_started(
    runtime: Runtime, worker: WorkerProcess, tmp_path: Path
) -> None:
    until = {"until": str(tmp_path / "gate")}
    holding = [runtime.submit("TEST.HELD", until) for _ in range(8)]
    wait_until(lambda: all(call.status() == "running" for call in holding), what="all slots are taken")
    with pytest.raises(InvocationTimeout, match="no worker has begun it") as timeout:
        runtime.invoke("TEST.ECHO", "stuck", timeout=0.3)
    assert timeout.value.started is False
    (tmp_path / "gate").touch()
    assert [call.result().status for call in holding] == ["success"] * 8
    runtime.invoke("TEST.ECHO", "a later one of the same queue")
    assert "ran stuck" not in worker.trace


def test_a_result_can_still_be_had_after_a_timeout(runtime: Runtime, tmp_path: Path) -> None:
    invocation = runtime.submit("TEST.HELD", {"until": str(tmp_path / "gate")})
    with pytest.raises(InvocationTimeout):
        invocation.result(0.1)
    (tmp_path / "gate").touch()
    assert invocation.result(30).unwrap() == "done"


def test_the_deadline_of_a_map_is_for_all_of_it(runtime: Runtime) -> None:
    began = time.monotonic()
    results = runtime.map("TEST.STUBBORN", [{"seconds": 0.6 + LATE}] * 24, timeout=0.6)
    with pytest.raises(InvocationTimeout):
        list(results)
    assert time.monotonic() - began < 0.6 + LATE
