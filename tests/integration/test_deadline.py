"""Deadlines over the queue: what is too late is not begun, and the caller never waits longer."""

import time

import pytest

from ditto_tasks import InvocationTimeout, Runtime
from tests.conftest import StartWorker, WorkerProcess, connected, wait_until


def test_an_expired_call_is_not_begun(broker_url: str, worker_process: StartWorker) -> None:
    with connected(broker_url) as runtime:
        late = runtime.submit("TEST.ECHO", "late", timeout=0.1)
        with pytest.raises(InvocationTimeout) as timeout:
            late.result()
        assert timeout.value.started is False
        wanted = runtime.submit("TEST.ECHO", "in time")
        worker = worker_process(broker_url)
        assert wanted.result().unwrap() == "in time"
        result = late.result(5)
    assert result.status == "timeout"
    assert result.error is not None
    assert result.error.code == "TIMEOUT"
    assert "ran late" not in worker.trace


def test_a_call_that_runs_too_long_times_out_as_started(runtime: Runtime) -> None:
    began = time.monotonic()
    with pytest.raises(InvocationTimeout, match="a worker runs it") as timeout:
        runtime.invoke("TEST.STUBBORN", {"seconds": 1}, timeout=0.4)
    assert 0.4 <= time.monotonic() - began < 0.8
    assert timeout.value.started is True


def test_a_node_that_looks_at_its_deadline_ends_with_it(runtime: Runtime, worker: WorkerProcess) -> None:
    invocation = runtime.submit("TEST.LOOP", "bounded", timeout=0.5)
    result = invocation.result(5)
    assert (result.status, invocation.status()) == ("timeout", "timeout")
    assert "ended bounded" in worker.trace


def test_a_call_that_waits_behind_others_times_out_as_not_started(
    runtime: Runtime, worker: WorkerProcess
) -> None:
    holding = [runtime.submit("TEST.STUBBORN", {"seconds": 1, "n": n}) for n in range(8)]
    wait_until(lambda: all(call.status() == "running" for call in holding), what="all slots are taken")
    with pytest.raises(InvocationTimeout, match="no worker has begun it") as timeout:
        runtime.invoke("TEST.ECHO", "stuck", timeout=0.3)
    assert timeout.value.started is False
    assert [call.result().status for call in holding] == ["success"] * 8
    runtime.invoke("TEST.ECHO", "a later one of the same queue")
    assert "ran stuck" not in worker.trace


def test_a_result_can_still_be_had_after_a_timeout(runtime: Runtime) -> None:
    invocation = runtime.submit("TEST.STUBBORN", {"seconds": 0.5})
    with pytest.raises(InvocationTimeout):
        invocation.result(0.1)
    assert invocation.result(5).unwrap() == "done"


def test_the_deadline_of_a_map_is_for_all_of_it(runtime: Runtime) -> None:
    began = time.monotonic()
    results = runtime.map("TEST.STUBBORN", [{"seconds": 0.4}] * 24, timeout=0.6)
    with pytest.raises(InvocationTimeout):
        list(results)
    assert time.monotonic() - began < 1.2
