"""A short way to Redis for the commands of every call: what redis-py does around a command takes twice its
time.

Connections are redis-py's own, made and authenticated by its pool; one is taken for each command and put
back.
"""

import builtins
import select
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError, NoScriptError, ReadOnlyError, ResponseError, TimeoutError

from ditto_tasks.transport.connection import RedisClient
from ditto_tasks.transport.process import own_pid

try:
    from hiredis import pack_command
except ImportError:  # it is optional
    pack_command = None  # type: ignore[assignment]

__all__ = ["BlockingRead", "Line", "LineScript", "SentScript", "packed", "read_answer", "readable", "write"]


class Line:
    """Sends single commands; usable from many threads, and after a fork.

    A command whose connection turns out to be closed is sent once more, over a new one.

    Args:
        client: whose settings connections are made with; it stays the caller's to close.
    """

    def __init__(self, client: RedisClient) -> None:
        self._pool = client.connection_pool
        self._free: list[Any] = []
        self._pid = own_pid()
        self._is_closed = False

    def execute(self, *command: Any) -> Any:
        """Run a command; returns the answer as the server gave it.

        Raises:
            redis.RedisError: the server answered with an error, or not at all.
        """
        [answer] = self.execute_all([command])
        if isinstance(answer, ResponseError):
            raise answer
        return answer

    def execute_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Run commands in one round trip; returns their answers, an error as the answer of its command.

        Raises:
            redis.RedisError: the server did not answer.
        """
        return self.receive(self.send(commands), commands)

    def send(self, commands: Sequence[Sequence[Any]]) -> Any:
        """Send commands and wait for no answer; returns the connection, for `receive`.

        Raises:
            redis.RedisError: the server takes nothing in.
        """
        connection = self._take()
        with suppress(ConnectionError):  # `receive` finds the connection closed
            write(connection, packed(connection, commands))
        return connection

    def receive(self, connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the answers to what was sent; as `execute_all`."""
        try:
            answers = self._answers(connection, commands)
        except BaseException:  # perhaps in the middle of an answer
            connection.disconnect()
            raise
        self._put_back(connection)
        return answers

    def _answers(self, connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
        try:
            return _received(connection, commands)
        except TimeoutError:
            raise
        except (ConnectionError, OSError):
            connection.disconnect()
            write(connection, packed(connection, commands))
            return _received(connection, commands)

    def close(self) -> None:
        """Close all connections; what is sent from now on has a connection of its own."""
        self._is_closed = True
        with suppress(IndexError):  # none is left
            while True:
                self._free.pop().disconnect()

    def _take(self) -> Any:
        if self._pid != own_pid():
            self._free, self._pid = [], own_pid()  # the parent's
        try:
            return self._free.pop()
        except IndexError:
            return self._pool.connection_class(**self._pool.connection_kwargs)  # the pool counts its own only

    def _put_back(self, connection: Any) -> None:
        self._free.append(connection)
        if self._is_closed:
            self.close()


def write(connection: Any, data: bytes) -> None:
    """Send packed commands over a connection, which is closed if it does not take them.

    Raises:
        redis.RedisError: it does not.
    """
    try:
        if connection._sock is None:
            connection.connect()  # only this asks a sentinel where to
        connection._sock.sendall(data)
    except builtins.TimeoutError as error:
        connection.disconnect()
        raise TimeoutError("the server takes nothing in") from error
    except OSError as error:
        connection.disconnect()
        raise ConnectionError(f"the connection was lost: {type(error).__name__}") from error
    except BaseException:  # perhaps in the middle of a command
        connection.disconnect()
        raise


def _received(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    if connection._sock is None:
        raise ConnectionError("the connection was closed while it was sent to")
    return [read_answer(connection) for _ in commands]


def packed(connection: Any, commands: Sequence[Sequence[Any]]) -> bytes:
    """Write commands as they are sent; hiredis alone does so in half the time of redis-py around it."""
    if pack_command is None:
        return b"".join(connection.pack_commands(commands))
    return b"".join([pack_command(tuple(command)) for command in commands])


def readable(sockets: Sequence[socket.socket], seconds: float) -> Sequence[socket.socket]:
    """Wait until something comes over one of these, or it is closed; returns those it came over, if any."""
    if not hasattr(select, "poll"):
        return select.select(sockets, (), (), seconds)[0]
    poll = select.poll()  # of its own: epoll would be shared with forks
    for one in sockets:
        poll.register(one, select.POLLIN)
    ready = [number for number, _ in poll.poll(seconds * 1000)]
    return [one for one in sockets if one.fileno() in ready] if ready else ()


def read_answer(connection: Any) -> Any:
    """Read one answer, an error of the server as what it is; the connection stays open whatever happens.

    Raises:
        redis.RedisError, OSError: the connection was lost, or leads to a server that is a replica by now, or
            there is no answer within its time.
    """
    try:
        answer = connection._parser.read_response()
    except builtins.TimeoutError as error:
        raise TimeoutError("the server has not answered in time") from error
    if isinstance(answer, ReadOnlyError):
        raise ConnectionError("the server is a replica")  # a new connection may lead to the master
    return answer


class LineScript:
    """A script that is run over a line."""

    def __init__(self, line: Line, client: RedisClient, text: str) -> None:
        self._line = line
        self.text = text
        self.sha: str = client.register_script(text).sha

    def command(self, keys: Sequence[Any], args: Sequence[Any]) -> tuple[Any, ...]:
        """Give the command that runs the script on a server that knows it."""
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    def __call__(self, keys: Sequence[Any], args: Sequence[Any]) -> Any:
        return self.send(keys, args).answer()

    def send(self, keys: Sequence[Any], args: Sequence[Any]) -> "SentScript":
        """Send the script and wait for no answer; to be called only where `SentScript.answer` will be.

        Raises:
            redis.RedisError: the server takes nothing in.
        """
        return SentScript(self._line, self.command(keys, args), self.text)


class SentScript:
    """A script whose answer may be there."""

    def __init__(self, line: Line, command: Sequence[Any], text: str) -> None:
        self._line = line
        self._command = command
        self._text = text
        self._connection = line.send([command])

    def answer(self) -> Any:
        """Return the answer, once; a connection that turns out to be closed is as for any command.

        Raises:
            redis.RedisError: the server answered with an error, or not at all.
        """
        [answer] = self._line.receive(self._connection, [self._command])
        if isinstance(answer, NoScriptError):
            return self._line.execute("EVAL", self._text, *self._command[2:])
        if isinstance(answer, ResponseError):
            raise answer
        return answer


class Pipe:
    """Sends commands over a connection of its own, whose answers are read later, many at once.

    By one thread at a time.

    Args:
        client: whose settings the connection is made with; it stays the caller's to close.
    """

    def __init__(self, client: RedisClient) -> None:
        pool = client.connection_pool
        self._connection: Any = pool.connection_class(**pool.connection_kwargs)
        self._due = 0

    def send(self, command: Sequence[Any]) -> None:
        """Send a command.

        Raises:
            redis.RedisError: the connection was lost, and with it all answers that were due.
        """
        data = packed(self._connection, [command])
        try:
            write(self._connection, data)
        except BaseException:
            self._due = 0
            raise
        self._due += 1

    def answers(self) -> list[Any]:
        """Return the answers that are due, in the order of the commands, an error as the answer of its own.

        Raises:
            redis.RedisError, OSError: as `send`; and nothing is due any more.
        """
        due, self._due = self._due, 0
        try:
            return [read_answer(self._connection) for _ in range(due)]
        except BaseException:  # perhaps in the middle of an answer
            self._connection.disconnect()
            raise

    def close(self) -> None:
        """Close the connection; what is sent from now on has another one."""
        self._connection.disconnect()


class BlockingRead:
    """A blocking command, sent again and again over a connection of its own.

    Its answer may be waited for in parts, by one thread after the other, not by two at once: what comes while
    nobody waits is there for the next one.

    Args:
        client: whose settings the connection is made with; it stays the caller's to close.
        command: what is sent; the server answers it with nothing when its time is up.
        lasts: seconds after which the server counts as lost if it has not answered.
    """

    def __init__(self, client: RedisClient, command: Sequence[Any], lasts: float) -> None:
        self._bell, self._rope = socket.socketpair()
        pool = client.connection_pool
        self._connection: Any = pool.connection_class(**pool.connection_kwargs)
        self._command = packed(self._connection, [command])
        self._lasts = lasts
        self._is_asked = False
        self._lost_at = 0.0  # unless it has answered by then
        self._rope.setblocking(False)

    def answer(self, seconds: float) -> Any:
        """Wait for the answer; returns None if the time is up or `wake` was called before it came.

        Raises:
            redis.RedisError: the connection was lost, and with it what the server may have answered.
        """
        try:
            return self._answer(seconds)
        except BaseException:  # perhaps in the middle of an answer
            self._hang_up()
            raise

    def wake(self) -> None:
        """End the wait; from any thread."""
        with suppress(OSError):  # it is closed, or woken often enough
            self._rope.send(b"1")

    def close(self) -> None:
        """Close the connection; nothing may wait any more."""
        self._hang_up()
        self._close_bell()

    def __del__(self) -> None:
        self._close_bell()

    def _close_bell(self) -> None:
        self._bell.close()
        self._rope.close()

    def _answer(self, seconds: float) -> Any:
        if not self._is_asked:
            self._ask()
        left = self._lost_at - time.monotonic()
        ready = readable((self._bell, self._connection._sock), max(0.0, min(seconds, left)))
        if not ready and time.monotonic() >= self._lost_at:
            raise TimeoutError("the server has not answered a blocking read")
        if self._bell in ready:
            self._bell.recv(4096)
        if self._connection._sock not in ready:
            return None
        answer = read_answer(self._connection)
        self._is_asked = False
        if isinstance(answer, ResponseError):
            raise answer
        return answer

    def _ask(self) -> None:
        write(self._connection, self._command)
        self._is_asked, self._lost_at = True, time.monotonic() + self._lasts

    def _hang_up(self) -> None:
        self._connection.disconnect()
        self._is_asked = False
