"""Connections to one MySQL or MariaDB database: pooled, safe to fork, their errors translated."""

import os
import random
import select
import socket
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError, StoreUnavailable

try:
    import pymysql
    from pymysql.constants import CR, ER, SERVER_STATUS
    from pymysql.cursors import Cursor
except ModuleNotFoundError as error:
    raise InvalidDefinition("mysql:// needs a driver: pip install 'ditto-tasks[mysql]'") from error

__all__ = ["Address", "Connection", "Connections", "Cursor"]

CONNECTIONS = 16  # at once in a process; further calls wait for one
CONNECT_TIMEOUT = 5.0  # seconds for the connection, and for each answer while it is made
POOL_TIMEOUT = 10.0  # seconds that a call waits for a connection before the store counts as busy
STATEMENT_TIMEOUT = 300.0  # seconds; a server that is silent for longer counts as lost
KILL_TIMEOUT = 1.0  # seconds to end a statement that nobody waits for any more
LOCK_TIMEOUT = 5  # seconds that a statement waits for another writer before it fails
ATTEMPTS = 20  # for a transaction that others keep getting in the way of
PAUSE = 0.01  # seconds, the longest before the second attempt; grows with each
POLL = 0.1  # seconds between two looks at whether a waiting call is still wanted

SETTINGS = (
    # A row that others insert is seen at once, and no gap between rows is locked: fewer deadlocks.
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT}, max_sort_length = 1024",
)

FORM = "mysql://user:password@host:port/database, or mysql:///database?unix_socket=/path"

T = TypeVar("T")

_live: "weakref.WeakSet[Connections]" = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is and who asks; its text names no credential. Without a user it is the system's."""

    database: str
    user: str = field(repr=False)
    password: str = field(repr=False)
    host: str
    port: int
    unix_socket: str | None

    @classmethod
    def parse(cls, rest: str) -> "Address":
        """Read what comes after `mysql://`; user, password and database may be percent-encoded.

        Raises:
            InvalidDefinition: it is not in this form; no part of it is repeated.
        """
        try:
            parts = urlsplit(f"//{rest}")
            options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
            address = cls(
                database=unquote(parts.path[1:]),
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                host=parts.hostname or "127.0.0.1",
                port=parts.port or 3306,
                unix_socket=options.pop("unix_socket", None),
            )
        except ValueError:
            raise InvalidDefinition(f"a MySQL URL has the form {FORM}") from None
        if not address.database or "/" in address.database or options or parts.fragment:
            raise InvalidDefinition(f"a MySQL URL has the form {FORM}, with a database and nothing else")
        return address


class Connection(pymysql.connections.Connection):
    """One connection, which knows the call that it works for.

    Attributes:
        call: what no answer may be waited for longer than.
        longest: seconds to wait for the next part of an answer, however much time the call has.
        largest: bytes of a statement that the server takes.
        is_cut: whether this side gave up waiting, or left an answer half read.
    """

    call: Call = NO_CALL
    longest: float | None = None
    largest = 1 << 30
    is_cut = False
    server_status: int
    _sock: socket.socket | None

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        """Send a statement and read its answer."""
        data = sql.encode(self.encoding, "surrogateescape") if isinstance(sql, str) else sql
        if len(data) >= self.largest:  # the server would close the connection
            raise MemoryNodeError("INVALID_INPUT", "A value is too large for the memory store")
        try:
            return super().query(data, unbuffered)
        except pymysql.Error:
            raise
        except BaseException:
            self.is_cut = True
            raise

    def cut(self) -> None:
        """Wake whoever waits for an answer; callable from any thread."""
        self.is_cut = True
        connected = self._sock
        if connected is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def is_alive(self) -> bool:
        """Tell whether an idle connection can be used: one that the server ended has something to read."""
        if self._sock is None:
            return False
        watch = select.poll()
        watch.register(self._sock, select.POLLIN)
        return not watch.poll(0)

    def _create_ssl_ctx(self, options: dict[str, Any]) -> ssl.SSLContext:
        """Take part in TLS if the server does; the driver would read all certificates for each connection."""
        return _tls()

    @property
    def _read_timeout(self) -> float | None:
        """What the driver asks before each part of an answer."""
        left = self.call.remaining()
        if left is None or self.longest is None:
            return self.longest
        return min(left + 0.001, self.longest)  # 0 would mean not to wait at all

    @_read_timeout.setter
    def _read_timeout(self, seconds: float | None) -> None:
        self.longest = seconds


@cache
def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # against listeners, as the driver does when no certificate is named
    return context


class _Pool:
    """The connections of one process."""

    def __init__(self) -> None:
        self.places = threading.BoundedSemaphore(CONNECTIONS)
        self.idle: deque[Connection] = deque()


class Connections:
    """Hands out connections to one database, one a call, from any thread.

    At most `CONNECTIONS` exist in a process. A child of a fork starts with none: those of its parent it
    neither uses nor ends.

    Args:
        address: of the database, which must exist.
        setup: run once on the first connection, to bring the schema up.

    Raises:
        StoreUnavailable: the database cannot be opened; the message names no host and no credential.
    """

    def __init__(self, address: Address, *, setup: Callable[[Connection], None]) -> None:
        self._address = address
        self._pool = _Pool()
        self._closed = False
        try:
            connection = self._opened(CONNECT_TIMEOUT)
            try:
                setup(connection)
                self._largest = _largest_statement(connection)
            finally:
                _end(connection)
        except (pymysql.Error, RuntimeError) as error:
            raise StoreUnavailable(f"MySQL database {address.database!r:.80}: {_remedy(error)}") from error
        _live.add(self)

    @contextmanager
    def use(self, call: Call) -> Iterator[Connection]:
        """Lend a connection; a transaction that is left open is rolled back.

        A statement that runs when the call is cancelled or out of time is ended on the server, too.

        Raises:
            MemoryNodeError: STORE_FULL, STORE_BUSY or STORE_UNAVAILABLE, for what the server says, without
                naming a host, a statement or a value.
            InvocationCancelled, DeadlineExceeded: the call is not wanted any more.
        """
        pool = self._pool
        self._enter(pool, call)
        try:
            connection = self._taken(pool, call)
            try:
                with _bound_to(call, connection):
                    yield connection
            except pymysql.Error as error:
                self._end_given_up(connection, error)
                call.check()
                failure = _public(error)
                if failure is None:
                    raise
                raise failure from error
            finally:
                self._give_back(connection, pool)
        finally:
            pool.places.release()

    def transact(self, call: Call, work: Callable[[Cursor], T]) -> T:
        """Do the work in a transaction, anew when another one gets in its way; it commits when work returns.

        Raises:
            MemoryNodeError: as `use`; STORE_BUSY when the other transactions never end.
        """
        for attempt in range(1, ATTEMPTS):
            try:
                return self._once(call, work)
            except _Contended:
                call.cancel.wait(random.uniform(0, PAUSE * attempt))
                call.check()
        return self._once(call, work)

    def close(self) -> None:
        """Close what is idle in this process now, the rest when it is given back."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections of this process that no call has at the moment."""
        while (connection := _popped(self._pool.idle)) is not None:
            _end(connection)

    def forget(self) -> None:
        """Start anew in a child of a fork; its copies of the sockets close without a word to the server."""
        self._pool = _Pool()

    def _once(self, call: Call, work: Callable[[Cursor], T]) -> T:
        with self.use(call) as connection:
            connection.begin()
            result = work(connection.cursor())
            connection.commit()
            return result

    def _enter(self, pool: _Pool, call: Call) -> None:
        """Wait for a place among the connections."""
        for _ in range(round(POOL_TIMEOUT / POLL)):
            call.check()
            self._check_open()
            if pool.places.acquire(timeout=POLL):
                return
        raise _busy()

    def _taken(self, pool: _Pool, call: Call) -> Connection:
        self._check_open()
        while (connection := _popped(pool.idle)) is not None:
            if connection.is_alive():
                return connection
            _end(connection)
        left = call.remaining()
        timeout = CONNECT_TIMEOUT if left is None else min(left + 0.001, CONNECT_TIMEOUT)
        try:
            connection = self._opened(timeout)
        except pymysql.Error as error:
            call.check()
            raise _public(error) or _unavailable() from error
        connection.largest = self._largest
        connection.longest = STATEMENT_TIMEOUT
        return connection

    def _give_back(self, connection: Connection, pool: _Pool) -> None:
        if not connection.is_cut and connection.open:
            with suppress(pymysql.Error):  # then it is closed by now
                if connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
                    connection.rollback()
        if connection.is_cut or not connection.open or self._closed:
            _end(connection)
        else:
            pool.idle.append(connection)

    def _end_given_up(self, connection: Connection, error: pymysql.Error) -> None:
        """End a statement on the server that this side stopped waiting for."""
        if connection.open or not (connection.is_cut or isinstance(error.__context__, TimeoutError)):
            return
        thread = connection.thread_id()  # type: ignore[no-untyped-call]
        with suppress(pymysql.Error):  # a server that cannot be reached notices when it wants to answer
            other = self._opened(KILL_TIMEOUT)
            try:
                other.cursor().execute("KILL %s", (thread,))
            finally:
                _end(other)

    def _opened(self, timeout: float) -> Connection:
        connection = Connection(
            host=self._address.host,
            port=self._address.port,
            unix_socket=self._address.unix_socket,
            user=self._address.user,
            password=self._address.password,
            database=self._address.database,
            charset="utf8mb4",
            sql_mode="STRICT_ALL_TABLES",
            autocommit=True,
            connect_timeout=timeout,
            read_timeout=timeout,
            write_timeout=STATEMENT_TIMEOUT,
        )
        try:
            with connection.cursor() as cursor:
                for setting in SETTINGS:
                    cursor.execute(setting)
        except BaseException:
            _end(connection)
            raise
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise MemoryNodeError("STORE_UNAVAILABLE", "The memory store is closed")


class _Contended(MemoryNodeError):
    """Another transaction was faster, or held what this one needed; it is as if this one had not begun."""


@contextmanager
def _bound_to(call: Call, connection: Connection) -> Iterator[None]:
    """Let the connection work for a call, and be cut when it is cancelled."""
    lock = threading.Lock()  # so that a late cancel never reaches the connection's next user
    is_ours = True

    def cut() -> None:
        with lock:
            if is_ours:
                connection.cut()

    forget = None if call.cancel is NEVER_CANCELLED else call.cancel.on_cancel(cut)
    connection.call = call
    try:
        yield
    finally:
        if forget is not None:
            forget()
        with lock:
            is_ours = False
        connection.call = NO_CALL


def _popped(idle: deque[Connection]) -> Connection | None:
    try:
        return idle.pop()
    except IndexError:
        return None


def _end(connection: Connection) -> None:
    with suppress(pymysql.Error):  # closed already
        connection.close()


def _largest_statement(connection: Connection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        [(size,)] = cursor.fetchall()
    return int(size)


def _public(error: pymysql.Error) -> MemoryNodeError | None:
    code = _code(error)
    if code in _CONTENDED:
        return _Contended("STORE_BUSY", "The memory store is busy with other writers; try again")
    if code in _BUSY:
        return _busy()
    if code in _FULL:
        return MemoryNodeError("STORE_FULL", "The memory store has no room left; nothing was written")
    if code in _TOO_LARGE:
        return MemoryNodeError("INVALID_INPUT", "A value is too large for the memory store")
    if code in _UNAVAILABLE or isinstance(error, pymysql.err.InterfaceError):
        return _unavailable()
    return None


def _busy() -> MemoryNodeError:
    return MemoryNodeError("STORE_BUSY", "The memory store is busy; try again")


def _unavailable() -> MemoryNodeError:
    return MemoryNodeError("STORE_UNAVAILABLE", "The memory store cannot be reached, read or written")


def _code(error: BaseException) -> int:
    """Return the number that the server or the driver gave; 0 when there is none."""
    code = error.args[0] if error.args else 0
    return code if isinstance(code, int) else 0


_CONNECTION_KILLED = 1927  # of MariaDB
_IDLE_FOR_TOO_LONG = 4031  # of MySQL

_CONTENDED = (ER.LOCK_DEADLOCK, ER.DUP_ENTRY, ER.CHECKREAD)
_BUSY = (ER.LOCK_WAIT_TIMEOUT, ER.CON_COUNT_ERROR, ER.OUT_OF_RESOURCES, ER.QUERY_INTERRUPTED)
_FULL = (ER.DISK_FULL, ER.RECORD_FILE_FULL)
_TOO_LARGE = (ER.NET_PACKET_TOO_LARGE, ER.DATA_TOO_LONG, ER.TOO_BIG_ROWSIZE)
_UNAVAILABLE = (
    CR.CR_CONNECTION_ERROR,
    CR.CR_CONN_HOST_ERROR,
    CR.CR_SERVER_GONE_ERROR,
    CR.CR_SERVER_LOST,
    ER.ACCESS_DENIED_ERROR,
    ER.BAD_DB_ERROR,
    ER.DBACCESS_DENIED_ERROR,
    ER.NO_SUCH_TABLE,
    ER.NORMAL_SHUTDOWN,
    ER.OPTION_PREVENTS_STATEMENT,  # a server that only reads
    ER.SERVER_SHUTDOWN,
    ER.TABLEACCESS_DENIED_ERROR,
    _CONNECTION_KILLED,
    _IDLE_FOR_TOO_LONG,
)


def _remedy(error: Exception) -> str:
    """Say why a database could not be opened; the driver's own text would name user and host."""
    if isinstance(error, RuntimeError):  # what the driver raises for a password scheme without its library
        return "the driver cannot log in: pip install 'PyMySQL[rsa]'"
    code = _code(error)
    if code in (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR):
        return "access is denied; check user, password and grants"
    if code == ER.BAD_DB_ERROR:
        return "there is none of this name; create it"
    if code == ER.CON_COUNT_ERROR:
        return "the server has too many connections; raise max_connections"
    return f"cannot be opened (error {code}); check that the server runs where the URL says"


def _after_fork_in_child() -> None:
    for connections in list(_live):
        connections.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
