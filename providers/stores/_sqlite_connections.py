"""Connections to one SQLite file: opened with our settings, pooled, safe to fork, their errors translated."""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError, StoreUnavailable

__all__ = ["Connections", "interruptible"]

BUSY_TIMEOUT = 5.0  # seconds that a statement waits for another writer before it fails
IDLE_CONNECTIONS = 8  # kept open in a process; more exist only while more threads are at work
STATEMENTS = 256  # prepared ones kept a connection: batches differ in their number of placeholders
FORK_WAIT = 10.0  # seconds that a fork waits for the calls of other threads; over BUSY_TIMEOUT

SETTINGS = (
    # Each commit reaches the disk before it is answered. With NORMAL a power loss could undo a write whose
    # task has left its queue already; a killed process loses nothing either way.
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -16384",  # KiB; holds the upper index pages of a million records
)

_UNINTERRUPTED = nullcontext()

Setup = Callable[[sqlite3.Connection], None]

_live: "weakref.WeakSet[Connections]" = weakref.WeakSet()
_forks = threading.Lock()  # one fork at a time
_gate = threading.Event()  # shut while a fork is about to happen
_gate.set()


class Connections:
    """Hands out connections to one file, one a call, from any thread.

    A child of a fork inherits SQLite's mutexes as they are at that moment, and its table of file locks, but
    not the locks. So a fork waits until no call is inside SQLite, keeps new ones out, and closes all
    connections; each process then opens its own. One that a call holds for too long is neither used nor
    closed by the child.

    Args:
        path: of the file, created if missing; its directory must exist.
        setup: run once on the first connection, to bring the schema up.
        prepare: run on every connection, to register functions.

    Raises:
        InvalidDefinition: the path is empty or `:memory:`.
        StoreUnavailable: the file cannot be opened and written.
    """

    def __init__(self, path: str, *, setup: Setup, prepare: Setup) -> None:
        if not path or path == ":memory:" or "\x00" in path:
            raise InvalidDefinition(
                f"SQLite path {path!r:.80}: name a file; memory:// keeps records in memory"
            )
        self._path = os.path.abspath(path)
        self._prepare = prepare
        self._idle: dict[int, list[sqlite3.Connection]] = {}  # by process: a child starts with none
        self._inside: dict[object, int] = {}  # a call that is at work -> its process
        self._closed = False
        _live.add(self)
        opening = object()
        self._enter(opening)
        try:
            self._idle[os.getpid()] = [self._first(setup)]
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(
                f"SQLite file {self._path}: {error}; check that its directory exists and may be written to"
            ) from error
        finally:
            del self._inside[opening]

    def use(self) -> AbstractContextManager[sqlite3.Connection]:
        """Lend a connection; a transaction that is left open is rolled back.

        Raises:
            MemoryNodeError: STORE_FULL, STORE_BUSY or STORE_UNAVAILABLE, for what SQLite says, without naming
                a path, a statement or a value.
        """
        return _Loan(self)

    def close(self) -> None:
        """Close what is idle in this process now, the rest when it is given back."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections of this process that no call has at the moment."""
        idle = self._idle.get(os.getpid(), [])
        while idle:
            idle.pop().close()

    def is_in_use(self) -> bool:
        """Tell whether a call of this process is at work."""
        process = os.getpid()
        return process in list(self._inside.values())

    def _enter(self, call: object) -> int:
        """Count a call in and return its process; when a fork is about to happen, wait until it has."""
        while True:
            process = os.getpid()
            self._inside[call] = process  # before the look at the gate: a fork shuts it, then counts
            gate = _gate
            if gate.is_set():
                return process
            del self._inside[call]
            gate.wait(FORK_WAIT)

    def _taken(self, process: int) -> sqlite3.Connection:
        if self._closed:
            raise MemoryNodeError("STORE_UNAVAILABLE", "The memory store is closed")
        try:
            return self._idle[process].pop()
        except (KeyError, IndexError):
            return self._opened()

    def _give_back(self, connection: sqlite3.Connection, process: int) -> None:
        try:
            if connection.in_transaction:
                connection.rollback()
        except sqlite3.Error:  # what broke the transaction may break this, too: closing undoes it as well
            connection.close()
            raise
        idle = self._idle.setdefault(process, [])
        if self._closed or len(idle) >= IDLE_CONNECTIONS:
            connection.close()
        else:
            idle.append(connection)

    def _first(self, setup: Setup) -> sqlite3.Connection:
        connection = self._opened()
        try:
            setup(connection)
            if not os.access(self._path, os.W_OK):
                raise PermissionError("the file is read-only")
        except BaseException:
            connection.close()
            raise
        return connection

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path,
            timeout=BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS,
        )
        try:
            _use_wal(connection)
            for setting in SETTINGS:
                connection.execute(setting)
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection


class _Loan:
    """A connection while one call has it; a generator would take twice the time, and a read is short."""

    __slots__ = ("_connection", "_connections", "_process")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> sqlite3.Connection:
        self._process = self._connections._enter(self)
        try:
            self._connection = self._connections._taken(self._process)
        except BaseException as error:
            del self._connections._inside[self]
            _raise_public(error)
            raise
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._connections._give_back(self._connection, self._process)
        except sqlite3.Error as broken:
            _raise_public(broken)
            raise
        finally:
            del self._connections._inside[self]
        if error is not None:
            _raise_public(error)


def interruptible(connection: sqlite3.Connection, call: Call) -> AbstractContextManager[None]:
    """Stop the running statement when the call is cancelled; costs nothing for a call that cannot be."""
    return _UNINTERRUPTED if call.cancel is NEVER_CANCELLED else _interrupted(connection, call)


@contextmanager
def _interrupted(connection: sqlite3.Connection, call: Call) -> Iterator[None]:
    lock = threading.Lock()  # so that a late cancel never reaches the connection's next user
    is_ours = True

    def interrupt() -> None:
        with lock:
            if is_ours:
                connection.interrupt()

    forget = call.cancel.on_cancel(interrupt)
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            call.check()
        raise
    finally:
        forget()
        with lock:
            is_ours = False


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to a write-ahead log; SQLite does not wait for a rival that switches at the same time."""
    deadline = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _raise_public(error: BaseException) -> None:
    """Raise what a caller may read of an error of SQLite's, where there is such a thing."""
    if isinstance(error, sqlite3.Error) and (failure := _public(error)) is not None:
        raise failure from error


def _public(error: sqlite3.Error) -> MemoryNodeError | None:
    code = _primary(error)
    if code == sqlite3.SQLITE_FULL:
        return MemoryNodeError("STORE_FULL", "The memory store has no room left; nothing was written")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MemoryNodeError("STORE_BUSY", "The memory store is busy with other writers; try again")
    if code == sqlite3.SQLITE_TOOBIG:
        return MemoryNodeError("INVALID_INPUT", "A value is too large for the memory store")
    if code in _UNAVAILABLE:
        return MemoryNodeError("STORE_UNAVAILABLE", "The memory store cannot be read or written")
    return None


_UNAVAILABLE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)


def _primary(error: sqlite3.Error) -> int:
    """Return the primary result code, without what an extended one adds; 0 when SQLite gave none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _before_fork() -> None:
    _forks.acquire()
    _gate.clear()
    deadline = time.monotonic() + FORK_WAIT
    for connections in list(_live):
        while connections.is_in_use() and time.monotonic() < deadline:
            time.sleep(0.001)
        connections.close_idle()


def _after_fork() -> None:
    _gate.set()
    _forks.release()


def _after_fork_in_child() -> None:
    """Start anew: a thread of the parent may hold what is inside the gate."""
    global _gate, _forks
    _gate, _forks = threading.Event(), threading.Lock()
    _gate.set()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
