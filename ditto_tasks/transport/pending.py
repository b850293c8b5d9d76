"""The result of a call that is to come: less than a `Future`, which is made for those who ask for one."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress

from ditto_tasks.contracts.node import NodeResult

__all__ = ["Pending"]

_lock = threading.Lock()  # one for all: it is held for moments, and most calls would need none of their own


class Pending:
    """A result, or the error that takes its place, as soon as there is one; usable from any thread.

    Args:
        on_end: called once it is there, by the thread that has brought it.
    """

    __slots__ = ("_answer", "_future", "_on_end")

    def __init__(self, on_end: Callable[[], None] | None = None) -> None:
        self._answer: NodeResult | BaseException | None = None
        self._future: Future[NodeResult] | None = None
        self._on_end = on_end

    def done(self) -> bool:
        """Tell whether the result, or an error, is there."""
        return self._answer is not None

    def end(self, answer: NodeResult | BaseException) -> bool:
        """Give the result, or an error; False, and without effect, when there is one already."""
        with _lock:
            if self._answer is not None:
                return False
            self._answer, future = answer, self._future
        if future is not None:
            _complete(future, answer)
        if self._on_end is not None:
            self._on_end()
        return True

    def result(self, timeout: float | None = None) -> NodeResult:
        """Wait up to `timeout` seconds for the result, for ever by default.

        Raises:
            TimeoutError: it is not there in time.
            Exception: the error that came instead.
        """
        answer = self._answer
        if answer is None:
            return self.future().result(timeout)
        if isinstance(answer, NodeResult):
            return answer
        raise answer

    def future(self) -> Future[NodeResult]:
        """Return the future of the result, always the same; to cancel it ends the wait, not the call."""
        with _lock:
            if self._future is not None:
                return self._future
            future: Future[NodeResult] = Future()
            self._future = future
            answer = self._answer
        if answer is None:
            future.add_done_callback(self._note_cancelled)
        else:
            _complete(future, answer)
        return future

    def _note_cancelled(self, future: Future[NodeResult]) -> None:
        if future.cancelled():
            self.end(CancelledError())


def _complete(future: Future[NodeResult], answer: NodeResult | BaseException) -> None:
    with suppress(InvalidStateError):  # its owner has cancelled it
        if isinstance(answer, NodeResult):
            future.set_result(answer)
        else:
            future.set_exception(answer)


def _renew_lock() -> None:
    """Take a lock of the child's own after a fork: a thread that is not in it may have held the parent's."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
