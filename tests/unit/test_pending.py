"""What is pending ends once, and a future of it, whenever it is asked for, ends with it."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError, wait

import pytest

from ditto_tasks import InvocationCancelled, NodeResult
from ditto_tasks.transport.pending import Pending
from tests.conftest import ROOT, wait_until

_RESULT = NodeResult.success("a", "A.B", None)
_OTHER = NodeResult.success("b", "A.B", None)
_LONG = 30.0  # seconds; more than any of it takes


def test_the_first_end_stands() -> None:
    pending = Pending()
    assert not pending.done()

    assert pending.end(_RESULT)
    assert not pending.end(_OTHER)
    assert not pending.end(InvocationCancelled("late"))

    assert pending.done()
    assert pending.result(0) is _RESULT


def test_an_error_is_raised_to_all_who_ask() -> None:
    pending = Pending()
    early = pending.future()

    pending.end(InvocationCancelled("enough"))

    for ask in (pending.result, early.result, pending.future().result):
        with pytest.raises(InvocationCancelled, match="enough"):
            ask(0)


def test_a_result_that_does_not_come_in_time_may_be_waited_for_again() -> None:
    pending = Pending()
    with pytest.raises(TimeoutError):
        pending.result(0.001)

    pending.end(_RESULT)

    assert pending.result(0) is _RESULT


def test_there_is_one_future_before_the_end_and_after_it() -> None:
    pending = Pending()
    early = pending.future()
    pending.end(_RESULT)

    assert pending.future() is early
    assert early.result(0) is _RESULT
    assert wait([early], _LONG).done == {early}


def test_a_future_that_is_asked_for_after_the_end_is_done() -> None:
    pending = Pending()
    pending.end(_RESULT)
    assert pending.future().result(0) is _RESULT


def test_to_cancel_the_future_ends_the_wait() -> None:
    ended = threading.Event()
    pending = Pending(ended.set)

    assert pending.future().cancel()

    assert ended.is_set()
    assert not pending.end(_RESULT)
    with pytest.raises(CancelledError):
        pending.result(0)


def test_whoever_waits_in_another_thread_is_woken() -> None:
    pending = Pending()
    got: list[NodeResult] = []
    thread = threading.Thread(target=lambda: got.append(pending.result(_LONG)))
    thread.start()
    wait_until(lambda: pending._future is not None, what="the thread asks for the result")

    pending.end(_RESULT)

    thread.join(_LONG)
    assert got == [_RESULT]


def test_who_is_to_hear_of_the_end_hears_of_it_once_and_finds_the_result_there() -> None:
    heard: list[bool] = []
    pending = Pending(lambda: heard.append(pending.done()))

    pending.end(_RESULT)
    pending.end(_OTHER)

    assert heard == [True]


def test_a_child_that_is_forked_while_a_thread_ends_something_can_end_its_own() -> None:
    script = """
import os, signal
from ditto_tasks import NodeResult
from ditto_tasks.transport import pending

with pending._lock:  # as any thread of the parent may have it
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        ended = pending.Pending()
        ended.end(NodeResult.success("a", "A.B", None))
        os._exit(0 if ended.done() else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=_LONG).returncode == 0
