"""A short way to Redis for the commands of every call: what redis-py does around a command takes twice its
time.

Connections are redis-py's own, made and authenticated by its pool; one is taken for each command and put
back.
"""

import os
import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError

from ditto_tasks.transport.connection import RedisClient

try:
    from hiredis import pack_command
except ImportError:  # it is optional
    pack_command = None  # type: ignore[assignment]

__all__ = ["BlockingRead", "Line", "LineScript", "packed"]


class Line:
    """Sends single commands; usable from many threads, and after a fork.

    A command whose connection turns out to be closed is sent once more, over a new one.

    Args:
        client: whose settings connections are made with; it stays the caller's to close.
        sends_again: False for commands that must not run twice.
    """

    def __init__(self, client: RedisClient, *, sends_again: bool = True) -> None:
        self._pool = client.connection_pool
        self._sends_again = sends_again
        self._free: list[Any] = []
        self._pid = os.getpid()
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
        connection = self._take()
        try:
            answers = _asked(connection, commands)
        except TimeoutError:
            connection.disconnect()
            raise
        except (ConnectionError, OSError):
            connection.disconnect()
            if not self._sends_again:
                raise
            answers = self._again(connection, commands)
        except BaseException:  # in the middle of an answer
            connection.disconnect()
            raise
        self._put_back(connection)
        return answers

    def close(self) -> None:
        """Close all connections; what is sent from now on has a connection of its own."""
        self._is_closed = True
        with suppress(IndexError):  # none is left
            while True:
                self._free.pop().disconnect()

    def _take(self) -> Any:
        if self._pid != os.getpid():
            self._free, self._pid = [], os.getpid()  # the parent's
        try:
            return self._free.pop()
        except IndexError:
            return self._pool.connection_class(**self._pool.connection_kwargs)  # the pool counts its own only

    def _put_back(self, connection: Any) -> None:
        self._free.append(connection)
        if self._is_closed:
            self.close()

    def _again(self, connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
        try:
            return _asked(connection, commands)
        except BaseException:
            connection.disconnect()
            raise


def _asked(connection: Any, commands: Sequence[Sequence[Any]]) -> list[Any]:
    if connection._sock is None:
        connection.connect()  # only this asks a sentinel where to
    connection.send_packed_command(packed(connection, commands))
    return [_answer(connection) for _ in commands]


def packed(connection: Any, commands: Sequence[Sequence[Any]]) -> Any:
    """Write commands as they are sent; hiredis alone does so in half the time of redis-py around it."""
    if pack_command is None:
        return connection.pack_commands(commands)
    return [b"".join([pack_command(tuple(command)) for command in commands])]


def _answer(connection: Any) -> Any:
    try:
        return connection.read_response(disconnect_on_error=False)
    except ResponseError as error:
        return error


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
        try:
            return self._line.execute(*self.command(keys, args))
        except NoScriptError:
            return self._line.execute("EVAL", self.text, len(keys), *keys, *args)


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
        pool = client.connection_pool
        self._connection = pool.connection_class(**pool.connection_kwargs)
        self._command = command
        self._lasts = lasts
        self._lost_at: float | None = None  # unless it has answered by then; None: it is not asked
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)
        self._bell_key = self._selector.register(self._bell, selectors.EVENT_READ)

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
        self._selector.close()
        self._bell.close()
        self._rope.close()

    def _answer(self, seconds: float) -> Any:
        if self._lost_at is None:
            self._ask()
        now = time.monotonic()
        if now >= self._lost_at:
            raise TimeoutError("the server has not answered a blocking read")
        ready = [key for key, _ in self._selector.select(min(seconds, self._lost_at - now))]
        if self._bell_key in ready:
            self._bell.recv(4096)
        if all(key is self._bell_key for key in ready):
            return None
        answer = self._connection.read_response(disconnect_on_error=False)
        self._lost_at = None
        return answer

    def _ask(self) -> None:
        if self._connection._sock is None:
            self._connection.connect()
            self._selector.register(self._connection._sock, selectors.EVENT_READ)
        self._connection.send_packed_command(packed(self._connection, [self._command]))
        self._lost_at = time.monotonic() + self._lasts

    def _hang_up(self) -> None:
        if self._connection._sock is not None:
            with suppress(KeyError):  # it was being connected
                self._selector.unregister(self._connection._sock)
        self._connection.disconnect()
        self._lost_at = None
