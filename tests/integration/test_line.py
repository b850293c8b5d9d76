"""The short way to Redis: answers in order, errors where they belong, connections that are used again."""

import socket
import time
from collections.abc import Iterator

import pytest
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.line import BlockingRead, Line
from tests.conftest import RedisServer, wait_until

_LONG = 30.0  # seconds; more than any of it takes
_LASTS = 0.2  # seconds; the blocking reads' own time is longer
_TAKE = ("BLMPOP", 20, 1, "list", "LEFT")


@pytest.fixture
def line(queue_url: str) -> Iterator[Line]:
    client = connect(queue_url)
    line = Line(client)
    yield line
    line.close()
    client.close()


@pytest.fixture
def taking(queue_url: str) -> Iterator[BlockingRead]:
    client = connect(queue_url)
    taking = BlockingRead(client, _TAKE, _LASTS)
    yield taking
    taking.close()
    client.close()


def test_many_commands_are_answered_in_order_and_an_error_is_the_answer_of_its_own(line: Line) -> None:
    stored, failed, read = line.execute_all([("SET", "a", 1), ("INCR", "a", "b"), ("GET", "a")])
    assert (stored, read) == (b"OK", b"1")
    assert isinstance(failed, ResponseError)


def test_the_error_of_a_single_command_is_raised_and_the_next_one_is_answered(line: Line) -> None:
    with pytest.raises(ResponseError):
        line.execute("INCR", "a", "b")
    assert line.execute("PING") in (b"PONG", True)


def test_what_was_sent_is_answered_later_also_if_its_connection_was_closed_meanwhile(line: Line) -> None:
    command = ("SET", "a", 3)
    connection = line.send([command])
    connection.disconnect()
    assert line.receive(connection, [command]) in ([b"OK"], [True])
    assert line.execute("GET", "a") == b"3"


def test_a_connection_that_was_closed_is_replaced(line: Line) -> None:
    line.execute("SET", "a", 2)
    killed = line.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
    assert killed
    assert line.execute_all([("GET", "a"), ("DEL", "a")]) == [b"2", 1]


def test_the_error_of_a_replica_is_that_of_a_lost_connection(own_server: RedisServer) -> None:
    client = connect(own_server.url())
    line = Line(client)
    client.replicaof("127.0.0.1", 1)
    with pytest.raises(ConnectionError):
        line.execute("SET", "a", 1)
    client.replicaof("NO", "ONE")
    assert line.execute("SET", "a", 1) in (b"OK", True)
    line.close()
    client.close()


def test_a_blocking_read_goes_on_over_a_new_connection_when_nothing_could_be_sent_over_the_old_one(
    line: Line, taking: BlockingRead
) -> None:
    line.execute("RPUSH", "list", "a")
    assert taking.answer(_LONG) == [b"list", [b"a"]]
    taking._connection._sock.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        taking.answer(_LONG)

    line.execute("RPUSH", "list", "b")

    assert taking.answer(_LONG) == [b"list", [b"b"]]


def test_a_blocking_read_gives_an_answer_for_which_nobody_waited(line: Line, taking: BlockingRead) -> None:
    ends = time.monotonic() + _LASTS
    assert taking.answer(0) is None
    line.execute("RPUSH", "list", "a")
    wait_until(lambda: time.monotonic() > ends, what="the server would count as lost")

    assert taking.answer(0) == [b"list", [b"a"]]


def test_a_server_that_does_not_answer_a_blocking_read_counts_as_lost(
    own_server: RedisServer,
) -> None:
    client = connect(own_server.url())
    taking = BlockingRead(client, _TAKE, _LASTS)
    assert taking.answer(0) is None
    own_server.pause()
    with pytest.raises(TimeoutError):
        taking.answer(_LONG)
    own_server.resume()
    taking.close()
    client.close()
