"""A short way to Redis for the commands of every call: what redis-py does around a command takes twice its
time.

Connections are redis-py's own, made and authenticated by its pool; one is taken for each command and put
back.
"""

import os
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError, NoScriptError, TimeoutError

from ditto_tasks.transport.connection import RedisClient

__all__ = ["Line", "LineScript"]


class Line:
    """Sends single commands; usable from many threads, and after a fork.

    A command whose connection turns out to be closed is sent once more, over a new one.

    Args:
        client: whose settings connections are made with; it stays the caller's to close.
    """

    def __init__(self, client: RedisClient) -> None:
        self._pool = client.connection_pool
        self._free: list[Any] = []
        self._pid = os.getpid()
        self._is_closed = False

    def execute(self, *command: Any) -> Any:
        """Run a command; returns the answer as the server gave it.

        Raises:
            redis.RedisError: the server answered with an error, or not at all.
        """
        connection = self._take()
        try:
            connection.connect()  # if it is not yet; only this asks a sentinel where to
            connection.send_command(*command)
            answer = connection.read_response(disconnect_on_error=False)
        except TimeoutError:
            connection.disconnect()
            raise
        except (ConnectionError, OSError):
            connection.disconnect()
            answer = self._again(connection, command)
        except BaseException as error:
            if not isinstance(error, Exception):  # in the middle of an answer
                connection.disconnect()
            self._put_back(connection)
            raise
        self._put_back(connection)
        return answer

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

    def _again(self, connection: Any, command: tuple[Any, ...]) -> Any:
        try:
            connection.connect()
            connection.send_command(*command)
            return connection.read_response()
        except BaseException:
            connection.disconnect()
            raise


class LineScript:
    """A script that is run over a line."""

    def __init__(self, line: Line, client: RedisClient, text: str) -> None:
        self._line = line
        self.text = text
        self.sha: str = client.register_script(text).sha

    def __call__(self, keys: list[Any], args: list[Any]) -> Any:
        try:
            return self._line.execute("EVALSHA", self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return self._line.execute("EVAL", self.text, len(keys), *keys, *args)
