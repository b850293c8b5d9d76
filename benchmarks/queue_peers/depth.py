"""What calls cost that wait: rates beside those of an empty queue, and the memory of one call."""

import statistics
import time
import uuid
from dataclasses import dataclass, field
from itertools import islice

from benchmarks.queue_peers.processes import Server
from ditto_tasks import Runtime
from ditto_tasks.queues import queue_name
from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.consumer import StreamConsumer
from ditto_tasks.transport.keys import Keys, stream_name

__all__ = ["Depth", "measure_depth"]

_NODE = "BENCH.NOOP"
_CALLS = 2_000  # enqueued and fetched in one turn
_FETCH = 16  # calls a fetch takes at most
_COPIED = 1_000  # calls in one pipeline


@dataclass(frozen=True, slots=True)
class Depth:
    """What was measured; rates in calls per second.

    Attributes:
        enqueue: with many waiting, and with none.
        fetch: with many waiting, and with none.
        memory: bytes of one waiting call in the server.
    """

    enqueue: tuple[float, float]
    fetch: tuple[float, float]
    memory: float


def measure_depth(server: Server, waiting: int, rounds: int) -> Depth:
    """Enqueue and fetch at two queues in turn: one has `waiting` calls in it, one has none.

    The queue is filled with copies of a call that a client has sent, each with an id of its own.
    """
    full, empty = _Queue(server.fresh_url()), _Queue(server.fresh_url())
    try:
        before = server.memory()
        full.fill(waiting)
        memory = (server.memory() - before) / waiting
        for number in range(rounds):
            for queue in (full, empty) if number % 2 else (empty, full):
                queue.take_turn()
        return Depth(
            enqueue=(statistics.median(full.enqueued), statistics.median(empty.enqueued)),
            fetch=(statistics.median(full.fetched), statistics.median(empty.fetched)),
            memory=memory,
        )
    finally:
        for queue in (full, empty):
            queue.close()
        server.client.flushall()


@dataclass
class _Queue:
    """One node's queue in a database of its own, read by the consumer that our workers have."""

    url: str
    enqueued: list[float] = field(default_factory=list)
    fetched: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._runtime = Runtime.from_config(None, {"DITTO_BROKER_URL": self.url})
        transport = self._runtime.config.transport
        self._redis = connect(self.url, socket_timeout=60.0)
        self._name = queue_name(_NODE, prefix=transport.prefix)
        self._consumer = StreamConsumer(
            self._redis, Keys(transport.prefix), transport.lease, int(transport.result_expires)
        )
        self._consumer.read([self._name])

    def fill(self, count: int) -> None:
        """Put calls in, all of them copies of one that is sent and taken out again first."""
        id = self._runtime.submit(_NODE, None).id
        stream = stream_name(self._name)
        ((_, fields),) = self._redis.xrange(stream)
        self._fetch(1)
        ids = (str(uuid.uuid4()).encode() for _ in range(count))
        while batch := list(islice(ids, _COPIED)):
            pipeline = self._redis.pipeline(transaction=False)
            for copy in batch:
                pipeline.xadd(
                    stream, {name: value.replace(id.encode(), copy) for name, value in fields.items()}
                )
            pipeline.execute()

    def take_turn(self) -> None:
        start = time.perf_counter()
        for _ in range(_CALLS):
            self._runtime.submit(_NODE, None).forget()
        sent = time.perf_counter()
        self._fetch(_CALLS)
        self.enqueued.append(_CALLS / (sent - start))
        self.fetched.append(_CALLS / (time.perf_counter() - sent))

    def close(self) -> None:
        self._consumer.stop()
        self._runtime.close()
        self._redis.close()

    def _fetch(self, count: int) -> None:
        """Take calls as a worker does, and settle them."""
        while count:
            entries = self._consumer.fetch(min(count, _FETCH)).entries
            for entry in entries:
                self._consumer.settle(entry.tag)
            count -= len(entries)
