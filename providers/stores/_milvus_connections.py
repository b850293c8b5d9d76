"""Connections to Milvus: a server over gRPC, or Milvus Lite on a file of this process; errors translated."""

import os
import threading
from collections.abc import Callable
from typing import TypeVar

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import InvalidDefinition, StoreUnavailable
from providers.stores._failures import Failures
from providers.stores._locations import is_server
from providers.stores._milvus_driver import MilvusClient, MilvusException, release_file
from providers.stores._waiting import TIMEOUT, awaited, bounded

__all__ = ["MilvusConnection"]

T = TypeVar("T")


class MilvusConnection:
    """Does requests for one store or index, from any thread.

    A server is asked by a client of each process's own, so a fork shares no connection. A file belongs to the
    process that opened it first, in which all stores and indexes share what serves it.

    Args:
        location: `http://HOST:PORT` or `https://HOST:PORT` of a server, else the path of a file, `.db` at
            its end.
        failures: how errors are named to callers.
        token: of the server: `USER:PASSWORD` or a key.

    Raises:
        StoreUnavailable: the server cannot be reached, or the file not opened: by another process, maybe.
    """

    def __init__(self, location: str, failures: Failures, *, token: str = "") -> None:
        self._failures = failures
        self._token = token
        self._process = os.getpid()
        self._closed = False
        self._file = None if is_server(location) else _shared_file(location)
        self._location = self._file or location
        self._clients: dict[int, MilvusClient] = {}  # by process
        try:
            self._client(TIMEOUT)
        except MilvusException as error:
            if self._file is None:
                raise StoreUnavailable(f"Milvus at {location} cannot be reached") from error
            _leave(self._file)
            raise StoreUnavailable(
                f"Milvus file {self._file} cannot be opened: without a server it is for one process only, in "
                "a directory that exists; start Milvus and use milvus://HOST:PORT for more"
            ) from error

    def check(self, call: Call) -> None:
        """Go on only if the call is still wanted and the connection open."""
        call.check()
        if self._closed:
            raise self._failures.is_closed()
        if self._file is not None and os.getpid() != self._process:
            raise self._failures.is_unavailable(
                "was opened before a fork and is for one process only: open it in the child, or use a server"
            )

    def run(self, work: Callable[[MilvusClient, float], T], call: Call) -> T:
        """Return what `work` makes of the client and the seconds that its one request may take.

        Raises:
            NodeError: of the kind of `failures`; names no address and nothing of the request.
        """
        self.check(call)
        seconds = max(0.001, bounded(call))
        try:
            return awaited(lambda: work(self._client(seconds), seconds), call)
        except MilvusException as error:
            call.check()
            if error.code in _UNREACHABLE:
                raise self._failures.is_unavailable() from error
            raise self._failures.is_refused("MILVUS_ERROR", f"answered with error {error.code}") from error

    def close(self) -> None:
        """Close what this process opened; closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()
        if self._file is not None and os.getpid() == self._process:
            _leave(self._file)

    def _client(self, seconds: float) -> MilvusClient:
        process = os.getpid()
        if process not in self._clients:
            client = MilvusClient(uri=self._location, token=self._token, timeout=seconds, dedicated=True)
            self._clients.setdefault(process, client)  # another thread may have been faster
        return self._clients[process]


_UNREACHABLE = (1, 2)  # pymilvus's codes for a call, and for a connection, that was not answered

_users: dict[str, int] = {}  # of the files that this process has open
_users_lock = threading.Lock()


def _shared_file(path: str) -> str:
    """Count a user of a file in; return its path in one form."""
    if not path.endswith(".db") or "\x00" in path:
        raise InvalidDefinition(f"Milvus file {path!r:.80}: name one with .db at its end")
    path = os.path.realpath(path)
    with _users_lock:
        _users[path] = _users.get(path, 0) + 1
    return path


def _leave(path: str) -> None:
    """Stop what serves the file after its last user."""
    with _users_lock:
        _users[path] -= 1
        if not _users[path]:
            del _users[path]
            release_file(path)


def _after_fork_in_child() -> None:
    global _users_lock
    _users_lock = threading.Lock()
    _users.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
