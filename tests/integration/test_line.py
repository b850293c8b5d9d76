"""The short way to Redis: answers in order, errors where they belong, connections that are used again."""

from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.line import Line


@pytest.fixture
def line(queue_url: str) -> Iterator[Line]:
    client = connect(queue_url)
    line = Line(client)
    yield line
    line.close()
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
