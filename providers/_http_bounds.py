"""HTTP connections whose every wait ends with the request that it is for: out of time, or cancelled.

httpx bounds each wait by itself, so that a server which sends a byte now and then holds a request for ever,
and none can be told to stop. Here each wait, the lookup of a name among them, gets what is left of the whole.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

from ditto_tasks.contracts.call import Call

__all__ = ["BoundedTransport", "Bounds", "OutOfTime"]

KEEPALIVE = 4.0  # seconds that an idle connection is kept; many servers close theirs at 5
IDLE_CONNECTIONS = 8  # kept open a process; more exist only while more threads are at work
PIECE = 16_384  # bytes written at once: a TLS record; each gets a timeout of its own


class OutOfTime(Exception):
    """The time of one request is used up."""


class Bounds:
    """How long one request may still take, and what wakes it when its call is cancelled.

    Args:
        timeout: seconds from now; the call's deadline counts as well.
    """

    def __init__(self, call: Call, timeout: float) -> None:
        self._call = call
        self._deadline = time.monotonic() + timeout
        self._lock = threading.Lock()
        self._wake: Callable[[], object] | None = None

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Have the waits of this thread keep to these bounds; a failure is that of `left`, if it has one."""
        before = _bounds.set(self)
        forget = self._call.cancel.on_cancel(self._cancelled)
        try:
            yield
        except Exception:
            self.left()  # a wait that was ended fails in many ways: the reason is ours, then
            raise
        finally:
            forget()
            _bounds.reset(before)

    def left(self) -> float:
        """Return the seconds left, more than 0.

        Raises:
            OutOfTime: none are.
            InvocationCancelled, DeadlineExceeded: the call says so.
        """
        self._call.check()
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise OutOfTime
        remaining = self._call.remaining()
        return left if remaining is None else max(1e-6, min(left, remaining))

    def sleep(self, seconds: float) -> None:
        """Wait, and raise as `left` does when the call is cancelled or the time is up."""
        self._call.cancel.wait(min(seconds, self.left()))
        self.left()

    @contextmanager
    def waiting(self, wake: Callable[[], object]) -> Iterator[float]:
        """Give the seconds that a wait may take; `wake` ends it when the call is cancelled meanwhile."""
        with self._lock:
            self._wake = wake
        try:
            yield self.left()  # looks at the token when `wake` is in place: no cancel falls between the two
        finally:
            with self._lock:  # a late cancel must not wake the connection's next user
                self._wake = None

    def _cancelled(self) -> None:
        with self._lock:
            if self._wake is not None:
                self._wake()


_bounds: ContextVar[Bounds] = ContextVar("bounds")  # of the request that a thread is at


class BoundedTransport(httpx.BaseTransport):
    """Carries httpx's requests over connections that keep to the bounds applied in their thread.

    Args:
        tls: for https; None: without.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=None,
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=KEEPALIVE,
            network_backend=_Network(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the body of the answer is read as it comes."""
        url = request.url
        answer = self._pool.handle_request(
            httpcore.Request(
                request.method,
                httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        return self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


class _Network(httpcore.NetworkBackend):
    """Opens connections; a lookup or a connecting that nobody waits for any more ends in its own thread."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        future: Future[httpcore.NetworkStream] = Future()
        with _bounds.get().waiting(future.cancel) as left:
            threading.Thread(target=self._connect, args=(future, host, port, left), daemon=True).start()
            return _Connection(_awaited(future, left))

    def _connect(self, future: Future[httpcore.NetworkStream], host: str, port: int, left: float) -> None:
        try:
            stream = self._inner.connect_tcp(host, port, left)
        except Exception as error:
            with suppress(InvalidStateError):
                future.set_exception(error)
            return
        try:
            future.set_result(stream)
        except InvalidStateError:  # given up meanwhile
            stream.close()


def _awaited(future: Future[httpcore.NetworkStream], left: float) -> httpcore.NetworkStream:
    try:
        return future.result(left)
    except (TimeoutError, CancelledError):
        if future.cancel():
            raise httpcore.ConnectTimeout("not connected in time") from None
        return future.result()  # it came at the last moment


class _Connection(httpcore.NetworkStream):
    """A connection whose waits keep to the bounds of whichever request uses it at the moment."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _bounds.get().waiting(self._shut_down) as left:
            return self._inner.read(max_bytes, left)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE):
            with _bounds.get().waiting(self._shut_down) as left:
                self._inner.write(buffer[start : start + PIECE], left)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        with _bounds.get().waiting(self._shut_down) as left:
            return _Connection(self._inner.start_tls(ssl_context, server_hostname, left))

    def close(self) -> None:
        self._shut_down()  # ends it also where another thread waits for it, or a child of a fork has it, too
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    def _shut_down(self) -> None:
        """Wake whoever reads or writes; closing would not."""
        with suppress(OSError):
            # Not the method of a TLS socket, which takes the session from under the thread that reads.
            socket.socket.shutdown(self._inner.get_extra_info("socket"), socket.SHUT_RDWR)
