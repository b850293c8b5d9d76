"""Connections to one PostgreSQL database: our settings, pooled, safe to fork, errors translated."""

import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED
from ditto_tasks.contracts.errors import InvalidDefinition, NodeError, StoreUnavailable

try:
    import psycopg
    from psycopg import errors
    from psycopg.abc import PQGen
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
    from psycopg.pq import TransactionStatus
except ImportError:
    raise InvalidDefinition("PostgreSQL needs its driver: pip install 'ditto-tasks[postgres]'") from None

# The driver is had from here, so that it is said in one place what to do when it is missing.
__all__ = ["MAX_CONNECTIONS", "Connections", "Faults", "Line", "psycopg"]

MAX_CONNECTIONS = 8  # of one store in one process
PATIENCE = 30.0  # seconds that a call without a deadline waits for a connection that others use
CONNECT_TIMEOUT = 5.0  # seconds
LOOK = 0.02  # seconds between two looks at whether a waiting call is still wanted
CANCEL_WAIT = 1.0  # seconds that a server gets to end a statement; then its connection is given up

SETTINGS = (
    "SET jit = off",  # compiling costs more than our statements
    "SET random_page_cost = 1.1",  # pages are in memory or on an SSD; 4, the default, is for spinning disks
    "SET hnsw.iterative_scan = strict_order",  # pgvector's: go on until enough rows have passed the filter
    "SET hnsw.ef_search = 100",
)
KEEPALIVES = {
    "keepalives_idle": 30,
    "tcp_user_timeout": 10_000,
}  # seconds, milliseconds; a URL may say otherwise

T = TypeVar("T")
Setup = Callable[["Line"], None]


class Line(psycopg.Connection[Any]):
    """A connection whose statements end when the call does that it is lent to.

    The thread that waits for an answer looks at its own call: no other thread ever touches the connection.
    """

    call: Call = NO_CALL

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        """Wait for an answer; a call that is over has its statement cancelled."""
        if self.call.deadline is None and self.call.cancel is NEVER_CANCELLED:
            return super().wait(gen, *args, **options)
        return super().wait(self._watched(gen), LOOK)

    def _watched(self, gen: PQGen[T]) -> PQGen[T]:
        given_up_at = math.inf
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and given_up_at == math.inf and _is_over(self.call):
                    self.cancel_safe(timeout=CANCEL_WAIT)
                    given_up_at = time.monotonic() + CANCEL_WAIT
                if time.monotonic() > given_up_at:
                    self.close()
                    raise errors.QueryCanceled("the server did not end the statement")
                state = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value


@dataclass(frozen=True, slots=True)
class Faults:
    """What the owner of connections tells of errors: its name in messages, its error, and its codes."""

    owner: str
    error: Callable[[str, str], NodeError]
    busy: str
    full: str
    invalid: str
    unavailable: str

    def public(self, error: psycopg.Error) -> NodeError | None:
        """Say it without naming an address, a statement or a value; None for what should not happen."""
        if isinstance(error, errors.DiskFull):
            return self.error(self.full, f"{self.owner} has no room left; nothing was written")
        if isinstance(error, _BUSY):
            return self.error(self.busy, f"{self.owner} is busy with others; try again")
        if isinstance(error, errors.ProgramLimitExceeded):
            return self.error(
                self.invalid, f"A value is too large for {self.owner[:1].lower()}{self.owner[1:]}"
            )
        if isinstance(error, _UNAVAILABLE):
            return self.error(self.unavailable, f"{self.owner} cannot be reached or written")
        return None


_BUSY = (
    errors.DeadlockDetected,
    errors.LockNotAvailable,
    errors.QueryCanceled,  # by a limit of the server's own
    errors.SerializationFailure,
)
_UNAVAILABLE = (
    errors.InsufficientPrivilege,
    errors.ReadOnlySqlTransaction,
    errors.UndefinedTable,  # somebody dropped it
    psycopg.InterfaceError,
    psycopg.OperationalError,
)


@dataclass(slots=True)
class _Pool:
    """The connections of one process: those that are idle, and room for those that are not."""

    room: threading.Semaphore
    idle: list[Line] = field(default_factory=list)


class Connections:
    """Hands out connections, one a call, from any thread; a forked child opens its own.

    Args:
        rest: of the URL, after `postgresql://`.
        setup: run once on the first connection, to bring the schema up.
        prepare: run on every connection.
        size: the most connections in one process.

    Raises:
        InvalidDefinition: the URL cannot be read.
        StoreUnavailable: the database cannot be reached, or `setup` did not go through.
    """

    def __init__(
        self,
        rest: str,
        faults: Faults,
        *,
        setup: Setup,
        prepare: Setup = lambda line: None,
        size: int = MAX_CONNECTIONS,
    ) -> None:
        self._parameters = _parameters(rest)
        self._faults = faults
        self._prepare = prepare
        self._size = size
        self._pools: dict[int, _Pool] = {}  # by process; those of a parent are kept, neither used nor closed
        self._closed = False
        try:
            self._pool().idle.append(self._first(setup))
        except psycopg.Error as error:
            raise StoreUnavailable(
                f"{faults.owner} cannot be opened in PostgreSQL ({type(error).__name__}): "
                "check the URL, that the server runs, and that its user may create tables"
            ) from error

    @contextmanager
    def use(self, call: Call) -> Iterator[Line]:
        """Lend a connection in autocommit; what runs on it ends with the call.

        Raises:
            NodeError: the owner's, as its `Faults` say; `busy` when all connections were in use for as long
                as the call may last.
            InvocationCancelled, DeadlineExceeded: the call is over.
        """
        pool = self._pool()
        try:
            with self._room(pool, call):
                line = self._taken(pool, call)
                try:
                    line.call = call
                    yield line
                finally:
                    line.call = NO_CALL
                    self._give_back(pool, line)
        except psycopg.Error as error:
            if _is_over(call):
                call.check()
            failure = self._faults.public(error)
            if failure is None:
                raise
            raise failure from error

    def close(self) -> None:
        """Close what is idle in this process now, the rest when it is given back."""
        self._closed = True
        idle = self._pool().idle
        while idle:
            idle.pop().close()

    def _pool(self) -> _Pool:
        return self._pools.setdefault(os.getpid(), _Pool(threading.Semaphore(self._size)))

    @contextmanager
    def _room(self, pool: _Pool, call: Call) -> Iterator[None]:
        remaining = call.remaining()
        deadline = time.monotonic() + (PATIENCE if remaining is None else remaining)
        while not pool.room.acquire(timeout=LOOK):
            call.cancel.raise_if_cancelled()
            if time.monotonic() >= deadline:
                raise self._faults.error(
                    self._faults.busy, f"{self._faults.owner} has all its connections in use; try again"
                )
        try:
            yield
        finally:
            pool.room.release()

    def _taken(self, pool: _Pool, call: Call) -> Line:
        while not self._closed:
            try:
                line = pool.idle.pop()
            except IndexError:
                return self._opened(call)
            if _is_quiet(line):
                return line
            line.close()
        raise self._faults.error(self._faults.unavailable, f"{self._faults.owner} is closed")

    def _give_back(self, pool: _Pool, line: Line) -> None:
        """Keep a connection only if it is as new; closing one in a transaction undoes what that did."""
        if self._closed or line.info.transaction_status != TransactionStatus.IDLE:
            line.close()
        else:
            pool.idle.append(line)

    def _first(self, setup: Setup) -> Line:
        line = self._opened(NO_CALL, prepare=False)
        try:
            if line.info.parameter_status("server_encoding") != "UTF8":
                raise StoreUnavailable("PostgreSQL: the database is not in UTF8: create one that is")
            setup(line)
            self._prepare(line)
        except BaseException:
            line.close()
            raise
        return line

    def _opened(self, call: Call, *, prepare: bool = True) -> Line:
        remaining = call.remaining()
        timeout = CONNECT_TIMEOUT if remaining is None else min(CONNECT_TIMEOUT, remaining)
        line = Line.connect(
            make_conninfo(**{"connect_timeout": math.ceil(timeout) or 1, **self._parameters}),
            autocommit=True,
        )
        try:
            for setting in SETTINGS:
                line.execute(setting)
            if prepare:
                self._prepare(line)
        except BaseException:
            line.close()
            raise
        return line


def _parameters(rest: str) -> dict[str, Any]:
    try:
        return {**KEEPALIVES, "application_name": "ditto-tasks", **conninfo_to_dict(f"postgresql://{rest}")}
    except psycopg.Error:  # its message repeats parts of the URL
        raise InvalidDefinition(
            "the PostgreSQL URL cannot be read: use postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None


def _is_over(call: Call) -> bool:
    return call.cancel.is_cancelled or call.remaining() == 0


def _is_quiet(line: Line) -> bool:
    """Tell whether an idle connection is still one: there is something to read when the server hung up."""
    if line.closed:
        return False
    poll = select.poll()
    poll.register(line.fileno(), select.POLLIN)
    return not poll.poll(0)
