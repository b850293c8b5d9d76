"""The ends of calls that are left to a worker's event loop: none is lost, no call runs again meanwhile."""

import threading
from collections.abc import Callable, Iterator

import pytest

from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.consumer import StreamConsumer
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.ledger import Delivery, Ending, Ledger
from ditto_tasks.transport.line import Line
from tests.conftest import RedisServer, wait_until

_KEYS = Keys("ends")
_QUEUE = "ends.a.b"
_STREAM = f"{_QUEUE}:normal"
_RESULT = b'{"status":"SUCCESS"}'


@pytest.fixture
def client(own_server: RedisServer) -> Iterator[RedisClient]:
    client = connect(own_server.url())
    yield client
    client.close()


@pytest.fixture
def consumer(client: RedisClient) -> Iterator[StreamConsumer]:
    """A consumer as a solo worker has it; this thread is the one of its event loop."""
    consumer = StreamConsumer(client, _KEYS, lease=1.0, begins=60)
    consumer.read([_QUEUE])
    consumer.on_ended = lambda: None
    consumer.loop_thread = threading.get_ident()
    yield consumer
    consumer.stop()


@pytest.fixture
def run(client: RedisClient, consumer: StreamConsumer) -> Iterator[Callable[[str], Ending]]:
    """Takes a call from its stream and runs it; returns its end, which is to be left to the loop."""
    ledger, line = Ledger(client, _KEYS, 60), Line(client)

    def run(id: str) -> Ending:
        client.xadd(_STREAM, {"i": id, "m": "{}", "b": "[]"})
        [entry] = consumer.read_reply(line.execute(*consumer.read_command(1))).entries
        consumer.begin(entry)
        begun = consumer.beginning(entry.tag)
        assert begun is not None
        return ledger.ending(id, delivery=Delivery(entry.tag, _KEYS.prefix)).filled(_RESULT, begun().attempt)

    yield run
    line.close()
    ledger.close()


def holder(client: RedisClient) -> list[str]:
    pending = client.xpending_range(_STREAM, _KEYS.prefix, "-", "+", 10)
    return [held["consumer"].decode() for held in pending]


def is_ended(client: RedisClient, id: str) -> bool:
    return client.get(_KEYS.result(id)) == _RESULT and not client.xlen(_STREAM)


def test_an_end_that_failed_is_sent_again_though_the_loop_is_busy(
    client: RedisClient, consumer: StreamConsumer, run: Callable[[str], Ending]
) -> None:
    ending = run("a")
    client.script_flush()
    assert consumer.end_later(ending)
    wait_until(lambda: is_ended(client, "a"), what="the call has ended, with no turn of the loop")


def test_an_end_whose_connection_was_lost_is_sent_again_though_the_loop_is_busy(
    client: RedisClient, consumer: StreamConsumer, run: Callable[[str], Ending]
) -> None:
    assert consumer.end_later(run("a"))
    consumer.look_at_ends()
    ending = run("b")
    client.client_kill_filter(_type="normal", skipme=True)
    assert consumer.end_later(ending)
    wait_until(lambda: is_ended(client, "b"), what="the call has ended, with no turn of the loop")


def test_an_end_that_the_server_refuses_for_now_is_kept_also_when_it_has_not_the_script(
    client: RedisClient, consumer: StreamConsumer, run: Callable[[str], Ending]
) -> None:
    ending = run("a")
    client.script_flush()
    client.config_set("maxmemory", 1)
    consumer.end_later(ending)
    consumer.flush()
    assert consumer.has_endings
    client.config_set("maxmemory", 0)
    consumer.flush()
    assert is_ended(client, "a")


def test_a_call_whose_end_was_sent_is_no_stray(
    client: RedisClient, consumer: StreamConsumer, run: Callable[[str], Ending]
) -> None:
    ending = run("a")
    client.script_flush()
    consumer.end_later(ending)
    consumer.release_strays()
    assert holder(client) in ([consumer.name], [])  # the thread of the lease may have been quick
    consumer.flush()
    assert is_ended(client, "a")


def test_only_the_thread_of_the_loop_sends_ends(client: RedisClient, run: Callable[[str], Ending]) -> None:
    """The loop finds that no more calls wait in the very moment in which another thread ends one."""
    ending = run("a")

    class Turning(StreamConsumer):
        def settled(self, tag: str) -> bool:
            self.expects_more = False
            return True

    turning = Turning(client, _KEYS, lease=1.0, begins=60)
    turning.on_ended = lambda: None
    turning.expects_more = True
    assert turning.end_later(ending)
    assert turning.has_endings
    turning.flush()
    assert is_ended(client, "a")
    turning.stop()
