"""A kombu transport over Redis Streams: fetching a call notes it as pending in the same step.

Built on kombu's Redis transport, whose fanout exchanges (remote control, events) stay as they are. Direct
queues are streams with a consumer group, one a priority. A worker fetches as many messages as it has slots
free; when there is nothing to fetch, it waits for all streams with one blocking read. Entries are settled by
their delivery tag from any thread or process, so acknowledging survives a lost connection.
"""

import base64
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from queue import Empty
from types import MappingProxyType
from typing import Any

from celery.utils.time import maybe_iso8601
from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport import redis as kombu_redis
from redis.exceptions import ConnectionError

from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.transport.connection import REDIS_ERRORS, SENTINEL_PORT, connect
from ditto_tasks.transport.consumer import StreamConsumer
from ditto_tasks.transport.entry import Entry
from ditto_tasks.transport.keys import Keys, stream_name, streams_of
from ditto_tasks.transport.ledger import BEGUN_PROPERTY, Ending
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.line import packed, read_answer, readable, write
from ditto_tasks.transport.process import own_pid

__all__ = [
    "SCHEME",
    "SENTINEL_SCHEME",
    "Runner",
    "StreamChannel",
    "StreamTransport",
    "delayed_member",
    "end_at_once",
    "end_later",
    "forget_delivery",
    "message_fields",
    "read_message",
    "register_transport",
    "run_directly",
    "server_name",
    "stop_consumers",
]

logger = logging.getLogger(__name__)

SCHEME = "ditto"  # the name under which kombu knows this transport

SENTINEL_SCHEME = "ditto-sentinel"  # the same with Redis Sentinel
_BLOCK_TIME = 5.0  # seconds a blocking read waits; then it is sent again
_OPTIONS = ("ditto_server", "ditto_prefix", "ditto_lease", "ditto_begins", "ditto_limits")
_CELERYS_OWN = re.compile(r"\.pidbox\Z|\Acelery(ev|\.pidbox)")  # remote control's queues, and those of events
_AT_A_STRETCH = 0.02  # seconds of short calls, after which the event loop turns: it hears remote control
_PAUSE = 0.002  # seconds without a message that end the stretch
_WAITED = 0.00015  # seconds; a read that took longer found nothing waiting, so there is no backlog to fetch


class NotATask(Exception):
    """A message that was read is none of a task: the worker would end of it."""


def register_transport() -> None:
    """Make the transport known to kombu under `SCHEME`; may be called again."""
    TRANSPORT_ALIASES[SCHEME] = f"{__name__}:StreamTransport"
    TRANSPORT_ALIASES[SENTINEL_SCHEME] = f"{__name__}:SentinelStreamTransport"


def message_fields(message: dict[str, Any]) -> dict[str, Any]:
    """Turn a message of kombu's into the fields of an entry: the id first, the body apart from the rest."""
    rest = {name: value for name, value in message.items() if name != "body"}
    fields = {"i": str(message["headers"].get("id", "")), "m": encode_json(rest), "b": message["body"]}
    key = message["headers"].get("ditto_key")
    return fields if key is None else fields | {"k": key}


def delayed_member(stream: str, id: str, fields: dict[str, Any]) -> bytes:
    """Write a message that is not due yet as a member of the sorted set of those."""
    texts = [part.decode() if isinstance(part, bytes) else part for pair in fields.items() for part in pair]
    return b"\0".join((stream.encode(), id.encode(), encode_json(texts)))


_servers: dict[str, str] = {}  # URLs by name: workers show their options to whoever inspects them


def server_name(url: str) -> str:
    """Name a server in the options of a transport, without its password."""
    known = next((name for name, named in _servers.items() if named == url), None)
    name = known or f"server {len(_servers) + 1}"
    _servers[name] = url
    return name


Runner = Callable[["StreamChannel", dict[str, Any]], bool]
"""Runs the call of a message, as `read_message` put it together; False: it is to be delivered as usual."""

_runners: dict[str, Runner] = {}


def run_directly(task: str, runner: Runner) -> None:
    """Have the messages of a task run by the thread that fetches them, and not handed to kombu."""
    _runners[task] = runner


class StreamQoS(virtual.QoS):
    """Knows which messages a channel holds, settles them in Redis, and wakes it when a slot is free."""

    def can_consume(self) -> bool:
        """Tell whether a slot is free; when none is, the next one that gets free wakes the channel."""
        if self._has_room():
            return True
        self.channel.consumer.on_freed = self.channel.connection_wake
        return self._has_room()

    def can_consume_max_estimate(self) -> int:
        """Count the free slots: what runs since before a lost connection holds one, too."""
        held: int = self.channel.consumer.held
        return max(int(self.prefetch_count) - held, 0)

    def _has_room(self) -> bool:
        return not self.prefetch_count or bool(self.channel.consumer.held < self.prefetch_count)

    def ack(self, delivery_tag: str) -> None:
        self.channel.consumer.settle(delivery_tag)
        self._free(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if requeue:
            self.channel.consumer.release(delivery_tag)
        else:
            self.channel.consumer.settle(delivery_tag)
        self._free(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Give nothing back: the pool has all that was delivered, and runs it, with or without this
        connection.

        What is left when the process ends is given back by `stop_consumers`.
        """
        self._delivered.clear()
        return []

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: leases, and not a time-out of each message, tell what is to be delivered again."""

    def _free(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.consumer.freed()


class StreamChannel(kombu_redis.Channel):
    """A channel whose direct queues are streams."""

    QoS = StreamQoS
    body_encoding = None  # bodies are JSON text already
    from_transport_options = (*kombu_redis.Channel.from_transport_options, *_OPTIONS)
    ditto_server = ""  # as `server_name` named its URL
    ditto_prefix = "ditto"
    ditto_lease = 10.0
    ditto_begins: int | None = None
    ditto_limits: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._consumer: tuple[int, StreamConsumer | None] = (0, None)
        self._has_backlog = True
        self._read_sent_at = 0.0
        self._read_command: tuple[Any, ...] = ()
        self._packed_read = b""  # that command as it is sent
        self._queue_of: dict[str, str] = {}
        self._reader_id: tuple[Any, int] | None = None  # the blocking read's socket, and its server id
        self._again: threading.Timer | None = None  # set while a limit makes us wait
        self._are_queues_known = False
        self._reads_streams = False  # what the blocking read at hand waits for
        self._runs_directly = False  # whether the last message's call ran in this thread

    @property
    def consumer(self) -> StreamConsumer:
        """The consumer of this process; it outlives channels and connections."""
        pid, consumer = self._consumer
        if consumer is None or pid != own_pid():
            consumer = _consumer_of_process(
                _servers[self.ditto_server],
                self.ditto_prefix,
                self.ditto_lease,
                self.ditto_begins,
                self.ditto_limits,
            )
            self._consumer = own_pid(), consumer
        return consumer

    def await_begin(self, properties: dict[str, Any]) -> None:
        """Give a message of a node what waits for the begin of its call, if that was sent with its read."""
        beginning = self.consumer.beginning(properties["delivery_tag"])
        if beginning is not None:
            properties[BEGUN_PROPERTY] = beginning

    def note_runs(self, delivery_tag: str) -> None:
        """Note that a message's call is being run."""
        self.consumer.runs(delivery_tag)

    def settle(self, delivery_tag: str) -> None:
        """Note that a message that was never given to kombu is done with."""
        self.consumer.settle(delivery_tag)
        self.consumer.freed()

    def connection_wake(self) -> None:
        """Make the event loop look for free slots; from any thread, also after the channel was closed."""
        transport = self.connection
        if transport is not None:
            transport.wake()

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> Any:
        self._are_queues_known = False
        return super().basic_consume(queue, *args, **kwargs)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        self._are_queues_known = False
        return super()._basic_cancel(consumer_tag)

    def flush(self) -> None:
        """End the calls whose end was left to us, unless the next fetch is about to take it along."""
        if self._queue_of and self.consumer.has_endings and (self._in_poll or not self._has_backlog):
            self.consumer.flush()

    def _read_queues(self) -> None:
        self._are_queues_known = True
        direct = [queue for queue in self._active_queues if self._is_stream(queue)]
        self._queue_of = {stream: queue for queue in direct for stream in streams_of(queue)}
        if not direct:
            return
        consumer = self.consumer
        consumer.read(direct)
        consumer.release_strays()
        consumer.on_change = self._look_again
        consumer.on_ended = self.connection_wake
        consumer.loop_thread = threading.get_ident()

    def close(self) -> None:
        if not self.closed and self._queue_of:
            self.consumer.on_ended = None  # from now on whoever runs a call ends it
            with suppress(*REDIS_ERRORS):  # closing waits for the blocking read
                self._interrupt_read()
        super().close()

    def _is_stream(self, queue: str) -> bool:
        """Tell our queues from those that Celery makes for itself, which stay kombu's."""
        return queue not in self._fanout_queues and not _CELERYS_OWN.search(queue)

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Fill the free slots; then, if any is left, wait for the next message."""
        if not self._are_queues_known:
            self._read_queues()
        if not self._queue_of:
            self._reads_streams = False
            super()._brpop_start(timeout)
            return
        free = self.qos.can_consume_max_estimate() or 1
        if self.consumer.has_overdue:
            free -= self._deliver_all(self.consumer.take_overdue(free))
        if free > 0 and self._has_backlog:
            free = self._work_off(free)
        if free > 0 and not self._has_backlog:
            self._send_read()
            self.consumer.look_at_ends()
            return
        self._has_backlog = True  # what comes until a slot is free
        if self.qos.can_consume():  # asked anew, so that from now on a slot that gets free wakes us
            self.connection_wake()

    def _work_off(self, free: int) -> int:
        """Fill `free` slots; again and again for a moment while calls run at once and more wait.

        A turn of the event loop takes as long as a short call. Returns how many slots are free then.
        """
        ends = time.monotonic() + _AT_A_STRETCH
        free -= self._fetch(free)
        while self._has_backlog and not self.consumer.held and time.monotonic() < ends:
            free = self.qos.can_consume_max_estimate() or 1
            free -= self._fetch(free)
        return free

    def _fetch(self, free: int) -> int:
        """Fill `free` slots without waiting; returns how many it filled."""
        fetched = self.consumer.fetch(free)
        self._has_backlog = fetched.is_more or len(fetched.entries) == free
        self.consumer.expects_more = self._has_backlog
        if fetched.again_in is not None and self._again is None:
            self._again = threading.Timer(fetched.again_in, self._look_again)
            self._again.daemon = True
            self._again.start()
        return self._deliver_all(fetched.entries)

    def _look_again(self) -> None:
        """Look for messages now: a lease ran out, or a limit may have room; called from another thread."""
        self._again = None
        self._has_backlog = True
        with suppress(*REDIS_ERRORS):
            self._interrupt_read()
        self.connection_wake()

    def _interrupt_read(self) -> None:
        """End the blocking read, so that the free slots are filled anew; called from another thread."""
        if self._in_poll and self._reader_id is not None:
            with self.conn_or_acquire() as client:
                client.client_unblock(self._reader_id[1])

    def _send_read(self) -> None:
        connection = self.client.connection
        if self._reader_id is None or self._reader_id[0] is not connection._sock:
            connection.send_command("CLIENT", "ID")
            self._reader_id = (connection._sock, connection.read_response())
        command = self.consumer.read_command(_BLOCK_TIME)
        self._in_poll = connection
        self._reads_streams = True
        self._read_sent_at = self._brpop_sent_at = time.monotonic()
        if command is not self._read_command:
            self._read_command, self._packed_read = command, packed(connection, [command])
        write(connection, self._packed_read)
        if self._has_backlog:  # said by another thread, which found no read to end
            self._interrupt_read()

    def _brpop_read(self, **options: Any) -> bool:
        if not self._reads_streams:
            return bool(super()._brpop_read(**options))
        ends = time.monotonic() + _AT_A_STRETCH
        try:
            delivered = self._read_message()
            if self._runs_directly:
                self._go_on_reading(ends)
        finally:
            self.consumer.look_at_ends()
        return delivered

    def _go_on_reading(self, ends: float) -> None:
        """Read on until then, with calls that run here: a turn of the event loop takes as long as one."""
        while self._in_poll and time.monotonic() < ends:
            if not readable([self.client.connection._sock], _PAUSE):
                return
            with suppress(Empty):
                self._read_message()

    def _read_message(self) -> bool:
        """Take the answer of the blocking read, hand what it brought to the worker, and read again.

        Raises:
            queue.Empty: it brought nothing.
        """
        connection = self.client.connection
        try:
            reply = read_answer(connection)
        except self.connection_errors:
            connection.disconnect()
            raise
        finally:
            self._in_poll = None
        if isinstance(reply, Exception):
            if not str(reply).startswith("NOGROUP"):
                connection.disconnect()
                raise ConnectionError(f"the server cannot give messages now: {reply}")
            self.consumer.make_groups()  # the server lost its data
            reply = None
        consumer = self.consumer
        fetched = consumer.read_reply(reply)
        consumer.expects_more = False
        if fetched.is_more or (fetched.entries and time.monotonic() - self._read_sent_at < _WAITED):
            self._has_backlog = True
        entries = fetched.entries
        for _ in range(self._excess(entries)):
            consumer.release(entries.pop().tag)
        if not entries:
            raise Empty
        delivered = self._deliver_all(entries, begins=True)
        self.flush()  # in a solo pool the call has run by now
        if not self.qos.can_consume():
            self._has_backlog = True  # what comes until a slot is free
        elif self._are_queues_known and not (self._has_backlog or self.consumer.has_overdue):
            self._send_read()  # now: a turn of the event loop takes as long as a short call
        return delivered > 0

    def _excess(self, entries: Sequence[Entry]) -> int:
        """Count the entries for which there is no slot: a read of many streams may bring one of each.

        While the channel closes, there is none.
        """
        if self._closing:
            return len(entries)
        held = self.consumer.held
        return min(len(entries), max(0, held - int(self.qos.prefetch_count or held)))

    def _deliver_all(self, entries: Sequence[Entry], *, begins: bool = False) -> int:
        """Hand messages to the worker; those of a blocking read are begun on the way."""
        consumer = self.consumer
        for index, entry in enumerate(entries):
            try:
                if begins:
                    consumer.begin(entry)
                message = self._read(entry)
                if message is not None:
                    self._deliver(message, self._queue_of[entry.stream])
            except NotATask as error:
                self._give_up(entry, error)
                self.qos.ack(entry.tag)
            except Exception:
                for undelivered in entries[index:]:
                    consumer.release(undelivered.tag)
                raise
        return len(entries)

    def _deliver(self, message: dict[str, Any], queue: str) -> None:
        runner = _runners.get(message["headers"]["task"])
        self._runs_directly = runner is not None and runner(self, message)
        if not self._runs_directly:
            self.connection._deliver(message, queue)

    def _read(self, entry: Entry) -> dict[str, Any] | None:
        """Put a message together; what is none goes to the dead letters, and not round and round."""
        try:
            return read_message(entry)
        except ValueError as error:
            self._give_up(entry, error)
            return None

    def _give_up(self, entry: Entry, error: Exception) -> None:
        logger.error("%s is no message (%s): given up", entry.tag, error)
        self.consumer.give_up(entry)

    def _put(self, queue: str, message: dict[str, Any], **options: Any) -> None:
        if not self._is_stream(queue):
            super()._put(queue, message, **options)
            return
        stream = stream_name(queue, _priority(message))
        due = _due(message)
        with self.conn_or_acquire() as client:
            if due is None:
                client.xadd(stream, message_fields(message))
                return
            id = str(message["headers"].get("id", ""))
            member = delayed_member(stream, id, message_fields(message))
            client.zadd(Keys(self.ditto_prefix).delayed, {member: due * 1000})

    def _get(self, queue: str) -> dict[str, Any]:
        if not self._is_stream(queue):
            found: dict[str, Any] = super()._get(queue)
            return found
        for entry in self.consumer.fetch(1, streams_of(queue)).entries:
            return read_message(entry)
        raise Empty

    def _size(self, queue: str) -> int:
        """Count the messages of a queue that no worker has fetched."""
        if not self._is_stream(queue):
            return int(super()._size(queue))
        streams = streams_of(queue)
        with self.conn_or_acquire() as client:
            pipeline = client.pipeline(transaction=False)
            for stream in streams:
                pipeline.xlen(stream).xpending(stream, self.ditto_prefix)
            *answers, parked = pipeline.hmget(Keys(self.ditto_prefix).parked, streams).execute(
                raise_on_error=False
            )
        waiting = sum(
            length - (0 if isinstance(pending, Exception) else pending["pending"])
            for length, pending in zip(answers[::2], answers[1::2], strict=True)
        )
        return int(waiting) + sum(int(count or 0) for count in parked)

    def _has_queue(self, queue: str, **options: Any) -> bool:
        if not self._is_stream(queue):
            return bool(super()._has_queue(queue, **options))
        with self.conn_or_acquire() as client:
            return bool(client.exists(*streams_of(queue)))

    def _purge(self, queue: str) -> int:
        if not self._is_stream(queue):
            return int(super()._purge(queue))
        waiting = self._size(queue)
        with self.conn_or_acquire() as client:
            client.delete(*streams_of(queue))
        return waiting

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super()._delete(queue, *args, **kwargs)
        with self.conn_or_acquire(client=kwargs.get("client")) as client:
            client.delete(*streams_of(queue))


class StreamPoller(kombu_redis.MultiChannelPoller):
    """kombu's poller, in which a worker without an event loop (gevent) waits: it can be woken, too."""

    def __init__(self, transport: "StreamTransport") -> None:
        super().__init__()
        self._transport = transport
        self._woken: socket.socket | None = None
        self.has_event_loop = False

    def close(self) -> None:
        super().close()
        self.poller: Any = None  # it is in a cycle: its descriptor would stay open until garbage is collected

    def on_poll_start(self) -> None:
        for channel in self._channels:
            channel.flush()
        super().on_poll_start()
        reads = any(channel.active_queues for channel in self._channels)
        if reads and not self.has_event_loop and self._woken is None:
            self._woken = self._transport.hang_bell()
            self.poller.register(self._woken, self.eventflags)

    def handle_event(self, fileno: int, event: int) -> Any:
        if self._woken is None or fileno != self._woken.fileno():
            return super().handle_event(fileno, event)
        self._transport.answer_bell()
        return True, self


class StreamTransport(kombu_redis.Transport):
    """The transport that `SCHEME` chooses."""

    Channel = StreamChannel
    driver_type = "redis"
    driver_name = "redis-streams"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bell: tuple[socket.socket, socket.socket] | None = None  # a worker's only: others do not wait
        self._has_rung = False
        self.cycle = StreamPoller(self)

    @property
    def supports_batch_publish(self) -> bool:
        """kombu's batches write lists; ours are made by the client."""
        return False

    def wake(self) -> None:
        """Let the event loop turn once more; from any thread."""
        if self._bell is not None and not self._has_rung:
            self._has_rung = True
            try:
                self._bell[1].send(b"1")
            except OSError:
                logger.debug("the event loop is awake already, or closed")

    def answer_bell(self) -> None:
        """Note that the event loop turns; whoever rings from now on makes it turn once more."""
        if self._bell is not None:
            try:
                self._bell[0].recv(4096)
            except OSError:
                logger.debug("woken for nothing")
        self._has_rung = False  # not before: a ring that was just taken out would count as one to come

    def hang_bell(self) -> socket.socket:
        """Make what `wake` rings; returns the end that gets readable."""
        self._bell = socket.socketpair()
        for end in self._bell:
            end.setblocking(False)
        self._has_rung = False
        return self._bell[0]

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self.cycle.has_event_loop = True
        super().register_with_event_loop(connection, loop)
        woken = self.hang_bell()
        loop.add_reader(woken.fileno(), self.answer_bell)

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        for end in self._bell or ():
            end.close()


class SentinelStreamChannel(StreamChannel, kombu_redis.SentinelChannel):
    """A channel to whichever server the sentinels name as master."""

    from_transport_options = (*kombu_redis.SentinelChannel.from_transport_options, *_OPTIONS)


class SentinelStreamTransport(StreamTransport):
    """The transport that `SENTINEL_SCHEME` chooses."""

    Channel = SentinelStreamChannel
    default_port = SENTINEL_PORT


def stop_consumers() -> None:
    """End the leases of this process and give back what it still holds."""
    for server, (pid, consumer) in list(_consumers.items()):
        if pid == own_pid():
            del _consumers[server]
            consumer.stop()


def end_later(ending: Ending) -> bool:
    """Hand the last step of a call to the event loop of this process, which sends it with its next fetch.

    Returns:
        False when no event loop here holds the call: then it is the caller's to end.
    """
    return any(consumer.end_later(ending) for consumer in _own_consumers())


def end_at_once() -> None:
    """Leave nothing to the event loop any more, which is about to stop."""
    for consumer in _own_consumers():
        consumer.on_ended = None
        consumer.flush()


def forget_delivery(tag: str) -> None:
    """Note that a message needs no acknowledging any more: in this process, if it holds it."""
    for consumer in _own_consumers():
        consumer.settled(tag)


_consumers: dict[tuple[str, str], tuple[int, StreamConsumer]] = {}
_consumers_lock = threading.Lock()


def _own_consumers() -> list[StreamConsumer]:
    """List this process's consumers; after a fork the parent's are not ours."""
    return [consumer for pid, consumer in list(_consumers.values()) if pid == own_pid()]


def _consumer_of_process(
    url: str, prefix: str, lease: float, begins: int | None, limits: Mapping[str, Mapping[str, Any]]
) -> StreamConsumer:
    """Return this process's consumer at a broker; a fork makes another."""
    with _consumers_lock:
        pid, consumer = _consumers.get((url, prefix), (0, None))
        if consumer is None or pid != own_pid():
            named = {queue: Limit(**limit) for queue, limit in limits.items()}
            consumer = StreamConsumer(connect(url), Keys(prefix), lease, begins, named)
            _consumers[url, prefix] = (own_pid(), consumer)
        return consumer


def read_message(entry: Entry) -> dict[str, Any]:
    """Put a message together as kombu wants it; its delivery tag says where it lies.

    Raises:
        ValueError: the entry holds no message.
    """
    message = decode_json(entry.fields.get("r") or entry.fields.get("m", b""))  # r: a plain Celery client's
    if not isinstance(message, dict) or not isinstance(message.get("headers"), dict):
        raise ValueError("it has no headers")
    for name in ("task", "id"):
        if not isinstance(message["headers"].get(name), str):
            raise ValueError(f"it names no {name}")
    properties = message.get("properties")
    if not isinstance(properties, dict) or not isinstance(properties.get("delivery_info"), dict):
        raise ValueError("it has no properties")
    if "b" in entry.fields:
        body = entry.fields["b"]
        message["body"] = body if message.get("content-encoding") == "binary" else body.decode()
    if not isinstance(message.get("body"), str | bytes):
        raise ValueError("it has no body")
    if properties.get("body_encoding") is not None:  # a plain Celery client's
        base64.b64decode(message["body"])
    properties["delivery_tag"] = entry.tag
    properties["delivery_info"]["redelivered"] = entry.is_taken_over
    if entry.begun is not None:
        properties[BEGUN_PROPERTY] = (entry.begun.verdict, entry.begun.attempt, entry.begun.reason)
    return message


def _priority(message: dict[str, Any]) -> str:
    """Translate kombu's number, 0 to 9 and higher first, into one of our three."""
    number = message["properties"].get("priority") or 0
    return "normal" if number == 0 else "high" if number > 5 else "low"


def _due(message: dict[str, Any]) -> float | None:
    """Take the time before which a message must not run out of its headers; seconds since the epoch."""
    eta = message["headers"].get("eta")
    if eta is None:
        return None
    message["headers"]["eta"] = None
    due = maybe_iso8601(eta)
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    return None if due <= datetime.now(UTC) else float(due.timestamp())
