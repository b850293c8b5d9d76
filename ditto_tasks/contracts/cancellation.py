"""Cooperative cancelling: the caller sets a token, whoever does the work looks at it and stops."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ditto_tasks.contracts.errors import InvocationCancelled

__all__ = ["NEVER_CANCELLED", "CancelToken", "Cancellation", "either"]

DEFAULT_REASON = "the call was cancelled"


class CancelToken(Protocol):
    """What a node is given to notice that nobody wants its answer any more."""

    @property
    def is_cancelled(self) -> bool:
        """Whether the token was set; once true, it stays true."""
        ...

    @property
    def reason(self) -> str:
        """Why it was set; empty while it is not."""
        ...

    def raise_if_cancelled(self) -> None:
        """Raise InvocationCancelled with the reason when the token is set."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the token, for ever by default; return whether it is set."""
        ...

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when the token is set, at once if it is; return a function that takes this back.

        The callback runs in the thread that cancels: keep it short and raise nothing.
        """
        ...


class Cancellation:
    """A token together with the means to set it; may be set from any thread, and more than once."""

    def __init__(self) -> None:
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._reason = ""

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    @property
    def reason(self) -> str:
        return self._reason

    def cancel(self, reason: str = DEFAULT_REASON) -> None:
        """Set the token; the first reason stands."""
        with self._lock:
            if self._is_cancelled:
                return
            self._reason = reason
            self._is_cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def raise_if_cancelled(self) -> None:
        if self._is_cancelled:
            raise InvocationCancelled(self._reason)

    def wait(self, timeout: float | None = None) -> bool:
        is_set = threading.Event()  # made here: few calls wait, and it costs more than the rest of a token
        forget = self.on_cancel(is_set.set)
        try:
            return is_set.wait(timeout)
        finally:
            forget()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            if not self._is_cancelled:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)


NEVER_CANCELLED: CancelToken = Cancellation()  # nobody holds it as a Cancellation, so nobody sets it


@contextmanager
def either(first: CancelToken, second: CancelToken) -> Iterator[CancelToken]:
    """Give a token that is set as soon as one of the two is, within the block."""
    both = Cancellation()
    forget = [
        first.on_cancel(lambda: both.cancel(first.reason)),
        second.on_cancel(lambda: both.cancel(second.reason)),
    ]
    try:
        yield both
    finally:
        for take_back in forget:
            take_back()
