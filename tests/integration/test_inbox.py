"""The inbox of a caller: whoever waits reads, for others too; nothing is read while nothing is waited for."""

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ditto_tasks import InvocationCancelled, RuntimeClosed, load_config
from ditto_tasks.transport.client import CeleryTransport
from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.inbox import Inbox
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.payloads import Payloads
from ditto_tasks.transport.pending import Pending
from tests.conftest import wait_until

_STORED = b'{"task_id":"%b","status":"SUCCESS","result":{"executionId":"%b","node":"A.B","status":"success"}}'
_LONG = 30.0  # seconds; more than any of it takes
_KEYS = Keys("inbox")


@pytest.fixture
def client(queue_url: str) -> Iterator[RedisClient]:
    client = connect(queue_url)
    yield client
    client.close()


@pytest.fixture
def inbox(client: RedisClient, queue_url: str) -> Iterator[Inbox]:
    inbox = Inbox(client, connect(queue_url), _KEYS, Payloads(client, _KEYS, 60))
    yield inbox
    inbox.close()


@pytest.fixture
def push(client: RedisClient, inbox: Inbox) -> Callable[[bytes], None]:
    return lambda id: client.rpush(inbox.key, _STORED % (id, id))


def is_read(client: RedisClient) -> bool:
    """Tell whether somebody waits in the server for what comes into an inbox of this database."""
    database = client.connection_pool.connection_kwargs["db"]
    waiting = [other for other in client.client_list() if "b" in other["flags"]]
    return any(other["cmd"] == "blmpop" and int(other["db"]) == database for other in waiting)


def waiting_for(inbox: Inbox, pending: Pending) -> threading.Thread:
    thread = threading.Thread(target=inbox.wait, args=(pending, _LONG), daemon=True)
    thread.start()
    return thread


def test_the_thread_that_waits_reads_for_others_as_well(inbox: Inbox, push: Callable[[bytes], None]) -> None:
    own, other = inbox.expect("own"), inbox.expect("other")
    push(b"other")
    push(b"own")

    inbox.wait(own, _LONG)

    assert own.result(0).execution_id == "own"
    assert other.result(_LONG).execution_id == "other"


def test_results_that_nobody_waits_for_are_taken_out_all_the_same(
    client: RedisClient, inbox: Inbox, push: Callable[[bytes], None]
) -> None:
    pending = inbox.expect("a")
    push(b"a")
    wait_until(pending.done)
    assert client.llen(inbox.key) == 0


def test_nothing_is_read_once_nothing_is_waited_for(
    client: RedisClient, inbox: Inbox, push: Callable[[bytes], None]
) -> None:
    pending = inbox.expect("a")
    wait_until(lambda: is_read(client), what="the thread reads for whoever asks for the result")
    push(b"a")
    assert pending.result(_LONG).execution_id == "a"

    push(b"b")

    assert client.llen(inbox.key) == 1
    assert not is_read(client)


def test_a_wait_ends_when_its_result_comes_otherwise(client: RedisClient, inbox: Inbox) -> None:
    pending = inbox.expect("a")
    waiting = waiting_for(inbox, pending)
    wait_until(lambda: is_read(client))

    pending.end(InvocationCancelled("enough"))

    waiting.join(_LONG)
    assert not waiting.is_alive()


def test_what_comes_after_a_wait_was_given_up_is_there_for_the_next_one(
    inbox: Inbox, push: Callable[[bytes], None]
) -> None:
    late = inbox.expect("late")
    began = time.monotonic()
    inbox.wait(late, 0.02)
    assert time.monotonic() - began < _LONG / 2
    assert not late.done()

    push(b"late")

    inbox.wait(late, _LONG)
    assert late.result(_LONG).execution_id == "late"


def test_one_that_waits_hears_when_the_inbox_is_closed(client: RedisClient, inbox: Inbox) -> None:
    pending = inbox.expect("a")
    waiting = waiting_for(inbox, pending)
    wait_until(lambda: is_read(client))

    inbox.close()

    waiting.join(_LONG)
    with pytest.raises(RuntimeClosed):
        pending.result(0)


def test_a_result_that_was_lost_on_its_way_is_read_from_where_it_is_kept(
    client: RedisClient, inbox: Inbox, push: Callable[[bytes], None]
) -> None:
    pending = inbox.expect("a")
    waiting = waiting_for(inbox, pending)
    wait_until(lambda: is_read(client))
    client.set(_KEYS.result("a"), _STORED % (b"a", b"a"))

    database = client.connection_pool.connection_kwargs["db"]
    for other in client.client_list():
        if other["cmd"] == "blmpop" and int(other["db"]) == database:
            client.client_kill_filter(_id=other["id"])

    waiting.join(_LONG)
    assert pending.result(_LONG).execution_id == "a"


def test_who_reads_may_close_the_inbox_in_what_is_called_with_a_result(
    inbox: Inbox, push: Callable[[bytes], None]
) -> None:
    own, other = inbox.expect("own"), inbox.expect("other")
    other.future().add_done_callback(lambda _: inbox.close())
    push(b"other")

    waiting = waiting_for(inbox, own)

    waiting.join(_LONG)
    assert not waiting.is_alive()
    with pytest.raises(RuntimeClosed):
        own.result(0)


def test_a_wait_for_what_was_forgotten_ends_when_the_inbox_is_closed(
    client: RedisClient, inbox: Inbox
) -> None:
    pending = inbox.expect("a")
    inbox.forget("a", pending)
    waiting = waiting_for(inbox, pending)
    wait_until(lambda: is_read(client))

    began = time.monotonic()
    inbox.close()

    assert time.monotonic() - began < _LONG / 2
    waiting.join(_LONG)
    assert not waiting.is_alive()


def test_a_closed_transport_opens_nothing_for_who_still_waits(queue_url: str) -> None:
    transport = CeleryTransport(load_config(None, {"DITTO_BROKER_URL": queue_url}))
    pending = transport.watch("awaited")
    transport.close()
    descriptors = os.listdir("/proc/self/fd")

    transport.wait(pending, _LONG)
    transport.listen()
    transport.forget("awaited", pending)

    with pytest.raises(RuntimeClosed):
        pending.result(0)
    assert os.listdir("/proc/self/fd") == descriptors
