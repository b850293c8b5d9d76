"""How the event loop of a worker is woken, and what a closed connection leaves; without a server."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection

from ditto_tasks.transport.streams import SCHEME, StreamTransport, register_transport


@pytest.fixture
def transport() -> Iterator[StreamTransport]:
    register_transport()
    connection = Connection(f"{SCHEME}://127.0.0.1:1/0")
    transport = connection.transport
    yield transport
    transport.close_connection(connection)
    connection.release()


def test_however_often_it_is_woken_the_loop_turns_once(transport: StreamTransport) -> None:
    bell = transport.hang_bell()
    for _ in range(3):
        transport.wake()
    assert bell.recv(10) == b"1"


def test_once_the_loop_has_turned_it_can_be_woken_again(transport: StreamTransport) -> None:
    bell = transport.hang_bell()
    transport.wake()
    transport.answer_bell()
    with pytest.raises(BlockingIOError):
        bell.recv(10)
    transport.answer_bell()
    transport.wake()
    assert bell.recv(10) == b"1"


def test_waking_where_no_loop_is_or_it_is_closed_does_nothing(transport: StreamTransport) -> None:
    transport.wake()
    transport.hang_bell()
    transport.close_connection(transport.client)
    transport.wake()
    transport.answer_bell()


def test_a_closed_connection_leaves_nothing_that_waits_for_the_garbage_collector() -> None:
    register_transport()
    gc.disable()
    try:
        before = _pollers()
        for _ in range(5):
            connection = Connection(f"{SCHEME}://127.0.0.1:1/0")
            connection.transport.close_connection(connection)
            connection.release()
        assert _pollers() == before
    finally:
        gc.enable()


def _pollers() -> int:
    """Count the descriptors with which this process waits for others."""
    targets = [file.readlink().name for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return targets.count("anon_inode:[eventpoll]")
