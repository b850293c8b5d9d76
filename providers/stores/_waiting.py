"""Waiting within a call: for a client that cannot be interrupted, and for locks."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED

__all__ = ["TIMEOUT", "awaited", "bounded", "held"]

TIMEOUT = 15.0  # seconds that one request to a server may take
LOCK_PATIENCE = 0.1  # seconds between two looks at a call that waits for a lock

T = TypeVar("T")


def awaited(work: Callable[[], T], call: Call) -> T:
    """Do `work`; when the call ends first, go on without its outcome, which nobody learns then.

    A call that cannot end does the work in its own thread. Any other has it done in a thread that outlives
    the call by what `work` needs: it must have a time limit of its own.

    Raises:
        InvocationCancelled, DeadlineExceeded: the call ended; a change may have been made all the same.
    """
    if call.cancel is NEVER_CANCELLED and call.deadline is None:
        return work()
    outcome: Future[T] = Future()
    changed = threading.Event()
    outcome.add_done_callback(lambda _: changed.set())
    forget = call.cancel.on_cancel(changed.set)
    threading.Thread(target=_settle, args=(outcome, work), name="abandonable", daemon=True).start()
    try:
        while not outcome.done():
            changed.wait(call.remaining())
            if not outcome.done():
                call.check()
    finally:
        forget()
    return outcome.result()


def bounded(call: Call) -> float:
    """Return how many seconds a request of this call may take."""
    remaining = call.remaining()
    return TIMEOUT if remaining is None else min(TIMEOUT, remaining)


@contextmanager
def held(lock: threading.Lock, call: Call) -> Iterator[None]:
    """Hold a lock, waiting for it as long as the call is wanted.

    Raises:
        InvocationCancelled, DeadlineExceeded: the call ended while others held it.
    """
    while not lock.acquire(timeout=LOCK_PATIENCE):
        call.check()
    try:
        call.check()
        yield
    finally:
        lock.release()


def _settle(outcome: Future[T], work: Callable[[], T]) -> None:
    try:
        outcome.set_result(work())
    except BaseException as error:
        outcome.set_exception(error)
