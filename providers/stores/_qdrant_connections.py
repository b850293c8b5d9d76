"""Connections to Qdrant: a server over REST, or the client's local mode in a directory; errors translated."""

import math
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import InvalidDefinition, StoreUnavailable
from providers.stores._failures import Failures
from providers.stores._locations import is_server
from providers.stores._qdrant_driver import (
    QdrantClient,
    ResourceExhaustedResponse,
    ResponseHandlingException,
    UnexpectedResponse,
)
from providers.stores._waiting import TIMEOUT, awaited, bounded, held

__all__ = ["QdrantConnection", "seconds"]

T = TypeVar("T")


class QdrantConnection:
    """Does requests for one store or index, from any thread.

    A server is asked by a client of each process's own, so a fork shares no socket. A directory belongs to
    the process that opened it first, in which all stores and indexes share its one client.

    Args:
        location: `http://HOST:PORT` or `https://HOST:PORT` of a server, else the path of a directory.
        failures: how errors are named to callers.

    Raises:
        StoreUnavailable: the directory cannot be opened, or another process has it open.
    """

    def __init__(self, location: str, failures: Failures, *, api_key: str | None = None) -> None:
        self._location = location
        self._failures = failures
        self._api_key = api_key
        self._clients: dict[int, QdrantClient] = {}  # of a server, by process
        self._directory = None if is_server(location) else _shared_directory(location)
        self._closed = False

    @property
    def is_embedded(self) -> bool:
        """Whether it is a directory, and no server."""
        return self._directory is not None

    def check(self, call: Call) -> None:
        """Go on only if the call is still wanted and the connection open."""
        call.check()
        if self._closed:
            raise self._failures.is_closed()

    def run(self, work: Callable[[QdrantClient], T], call: Call) -> T:
        """Return what `work` makes of the client; it does one request that takes at most `seconds(call)`.

        Raises:
            NodeError: of the kind of `failures`; names no address and nothing of the request.
        """
        self.check(call)
        with self._translated(call):
            if self._directory is None:
                return awaited(partial(work, self._client()), call)
            with held(self._directory.requests, call):
                return work(self._directory.client_of_this_process(self._failures))

    @contextmanager
    def alone(self, call: Call) -> Iterator[None]:
        """Keep other writers of the directory out; writers of a server are never kept out."""
        if self._directory is None:
            yield
        else:
            with held(self._directory.writes, call):
                yield

    def close(self) -> None:
        """Close what this process opened; closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()
        if self._directory is not None:
            self._directory.leave()

    def _client(self) -> QdrantClient:
        process = os.getpid()
        if process not in self._clients:
            client = QdrantClient(
                url=self._location, api_key=self._api_key, timeout=int(TIMEOUT), check_compatibility=False
            )
            self._clients.setdefault(process, client)  # another thread may have been faster
        return self._clients[process]

    @contextmanager
    def _translated(self, call: Call) -> Iterator[None]:
        try:
            yield
        except UnexpectedResponse as error:
            code = f"QDRANT_HTTP_{error.status_code}"
            why = f"answered with HTTP status {error.status_code}"
            raise self._failures.is_refused(code, why) from error
        except ResourceExhaustedResponse as error:
            raise self._failures.is_refused("QDRANT_HTTP_429", "answered with HTTP status 429") from error
        except ResponseHandlingException as error:
            call.check()
            if isinstance(error.source, ValueError):  # pydantic's, of an answer in another shape
                raise self._failures.is_refused("QDRANT_ERROR", "answered in another form") from error
            raise self._failures.is_unavailable() from error
        except (sqlite3.Error, OSError) as error:
            raise self._failures.is_unavailable("cannot be read or written") from error


def seconds(call: Call) -> int:
    """Return how long a request of this call may take; whole seconds, as Qdrant has them, at least 1."""
    return max(1, math.ceil(bounded(call)))


class _Directory:
    """A directory that this process has open, with all who use it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = os.getpid()
        self.users = 0
        self.requests = threading.Lock()  # the client's local mode is for one thread at a time
        self.writes = threading.Lock()
        try:
            self.client = QdrantClient(path=path, force_disable_check_same_thread=True)
        except RuntimeError as error:
            raise StoreUnavailable(
                f"Qdrant directory {path} is open in another process: without a server it is for one process "
                "only; start Qdrant and use qdrant://HOST:PORT for more"
            ) from error
        except (OSError, sqlite3.Error, ValueError) as error:
            raise StoreUnavailable(
                f"Qdrant directory {path}: {error}; check that it may be written to and is Qdrant's"
            ) from error

    def client_of_this_process(self, failures: Failures) -> QdrantClient:
        """Return the client, but not to a child of the process that has the directory open."""
        if os.getpid() != self._process:
            raise failures.is_unavailable(
                "was opened before a fork and is for one process only: open it in the child, or use a server"
            )
        return self.client

    def leave(self) -> None:
        """Close the client after its last user."""
        with _directories_lock:
            self.users -= 1
            if self.users == 0 and os.getpid() == self._process:
                del _directories[self._path]
                self.client.close()

    def abandon(self) -> None:
        """Let go of the lock file in a child: unlocking it there would unlock it for the parent."""
        lock_file = getattr(self.client._client, "_flock_file", None)
        if lock_file is not None:
            lock_file.close()


_directories: dict[str, _Directory] = {}
_directories_lock = threading.Lock()
_inherited: list[_Directory] = []


def _shared_directory(path: str) -> _Directory:
    if not path or "\x00" in path:
        raise InvalidDefinition(f"Qdrant directory {path!r:.80}: name one")
    path = os.path.realpath(path)
    with _directories_lock:
        if path not in _directories:
            _directories[path] = _Directory(path)
        _directories[path].users += 1
        return _directories[path]


def _after_fork_in_child() -> None:
    """Start anew: the directories stay the parent's, and a thread of it may hold the lock."""
    global _directories_lock
    _directories_lock = threading.Lock()
    for directory in _directories.values():
        directory.abandon()
        _inherited.append(directory)
    _directories.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
