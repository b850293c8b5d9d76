"""Cancelling calls that wait, calls that run, and calls of a worker that is not up."""

import threading
import time

import pytest

from ditto_tasks import Cancellation, InvocationCancelled, Runtime
from tests.conftest import LATE, StartWorker, WorkerProcess, connected, wait_until

WITHIN = 2.0  # seconds from the cancel of a running call to its end, a busy machine apart


def test_a_call_that_was_cancelled_before_a_worker_came_never_runs(
    broker_url: str, worker_process: StartWorker
) -> None:
    with connected(broker_url) as runtime:
        invocation = runtime.submit("TEST.ECHO", "cancelled")
        assert invocation.status() == "pending"
        invocation.cancel("not wanted")
        other = runtime.submit("TEST.ECHO", "wanted")
        worker = worker_process(broker_url)
        assert other.result().unwrap() == "wanted"
        result = invocation.result()
    assert result.status == "cancelled"
    assert result.error is not None
    assert result.error.code == "CANCELLED"
    assert result.error.message == "not wanted"
    assert "ran wanted" in worker.trace
    assert "ran cancelled" not in worker.trace


def test_a_running_call_ends_soon_after_its_cancel(runtime: Runtime, worker: WorkerProcess) -> None:
    invocation = runtime.submit("TEST.LOOP", "running")
    wait_until(lambda: "ran running" in worker.trace)
    cancelled_at = time.monotonic()
    invocation.cancel()
    result = invocation.result()
    assert time.monotonic() - cancelled_at < WITHIN + LATE
    assert (result.status, invocation.status()) == ("cancelled", "cancelled")
    assert "Traceback" not in worker.log


def test_cancelled_calls_give_their_slots_back(runtime: Runtime, worker: WorkerProcess) -> None:
    running = [runtime.submit("TEST.LOOP", f"slot {n}") for n in range(8)]
    wait_until(lambda: sum("ran slot" in line for line in worker.trace) == 8, what="all slots are taken")
    waiting = runtime.submit("TEST.ECHO", "next")
    for invocation in running:
        invocation.cancel()
    assert waiting.result(WITHIN + LATE).unwrap() == "next"
    assert {invocation.result().status for invocation in running} == {"cancelled"}
    assert "Traceback" not in worker.log


def test_invoke_raises_when_its_token_is_set(runtime: Runtime, worker: WorkerProcess) -> None:
    token = Cancellation()

    def cancel_once_it_runs() -> None:
        wait_until(lambda: "ran tokened" in worker.trace)
        token.cancel("changed my mind")

    watcher = threading.Thread(target=cancel_once_it_runs)
    watcher.start()
    with pytest.raises(InvocationCancelled, match="changed my mind"):
        runtime.invoke("TEST.LOOP", "tokened", cancel=token)
    watcher.join(10)
    wait_until(lambda: "ended tokened" in worker.trace, timeout=WITHIN + LATE)


def test_a_token_that_is_set_already_sends_nothing(runtime: Runtime, worker: WorkerProcess) -> None:
    token = Cancellation()
    token.cancel("too late")
    with pytest.raises(InvocationCancelled, match="too late"):
        runtime.invoke("TEST.ECHO", "preset", cancel=token)
    assert runtime.invoke("TEST.ECHO", "after").status == "success"
    assert "ran preset" not in worker.trace


def test_any_process_cancels_by_the_id(runtime: Runtime, worker: WorkerProcess, queue_url: str) -> None:
    invocation = runtime.submit("TEST.LOOP", "found")
    wait_until(lambda: "ran found" in worker.trace)
    with connected(queue_url) as other:
        other.invocation(invocation.id).cancel("from elsewhere")
    result = invocation.result(WITHIN + LATE)
    assert result.error is not None
    assert (result.status, result.error.message) == ("cancelled", "from elsewhere")


def test_a_call_that_has_ended_keeps_its_result(runtime: Runtime) -> None:
    invocation = runtime.submit("TEST.ECHO", 1)
    result = invocation.result()
    invocation.cancel()
    assert invocation.status() == "success"
    assert invocation.result() == result


def test_a_memory_call_that_was_cancelled_has_the_code_of_memory(
    broker_url: str, worker_process: StartWorker
) -> None:
    with connected(broker_url) as runtime:
        invocation = runtime.submit("MEMORY.WRITE", {"memories": [{"key": "k", "content": 1}]})
        invocation.cancel()
        worker_process(broker_url, "--pool", "solo")
        result = invocation.result()
        assert result.error is not None
        assert (result.status, result.error.code) == ("cancelled", "MEMORY_CANCELLED")
        assert runtime.invoke("MEMORY.GET", {"keys": ["k"]}).unwrap() == []
