"""The caller's side of the queue: sends calls as Celery tasks and receives their results."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from celery import Celery
from kombu import Connection

from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.errors import PayloadTooLarge
from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.local import WorkerInfo
from ditto_tasks.transport.app import create_app, node_queue, redis_url, uses_streams
from ditto_tasks.transport.connection import broker_errors, connect
from ditto_tasks.transport.dead import DeadLetters
from ditto_tasks.transport.directory import Directory
from ditto_tasks.transport.idempotency import IdempotencyKeys
from ditto_tasks.transport.inbox import Inbox
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.ledger import Ledger
from ditto_tasks.transport.payloads import Payloads
from ditto_tasks.transport.pending import Pending
from ditto_tasks.transport.port import CallState, OutgoingCall, QueueInfo, Submitted
from ditto_tasks.transport.process import own_pid
from ditto_tasks.transport.publisher import Admission, CeleryPublisher, Publisher, StreamPublisher, queue_full
from ditto_tasks.transport.results import result_status
from ditto_tasks.transport.slots import SlotBook

__all__ = ["CeleryTransport"]

_NOBODY = ""  # to whom results are told of calls that are posted
_KOMBU_PRIORITIES = {"high": 0, "normal": 3, "low": 6}  # of its Redis lists, where 0 comes first


class CeleryTransport:
    """Implements `Transport` over Celery and Redis.

    Args:
        config: names broker, result backend, queues and limits.
        app: a Celery app made by `create_app`; None: one of its own. A worker gives its own.
    """

    def __init__(self, config: DittoConfig, app: Celery | None = None) -> None:
        self._config = config
        self._app = app or create_app(config)
        self._keys = Keys(config.transport.prefix)
        self._redis = connect(redis_url(config))
        self._ledger = Ledger(self._redis, self._keys, int(config.transport.result_expires))
        self._payloads = Payloads(self._redis, self._keys, int(config.transport.result_expires))
        self._publisher = self._make_publisher()
        self._queues: dict[str, str] = {}
        self._directory = Directory(self._redis, self._keys)
        self._lock = threading.Lock()
        self._inbox: Inbox | None = None
        self._inbox_pid = 0

    @property
    def dead_letters(self) -> DeadLetters:
        """The calls that were given up."""
        return DeadLetters(self._redis, self._keys)

    @property
    def slots(self) -> SlotBook:
        """What beats note of the schedules."""
        return SlotBook(self._redis, self._keys)

    def submit(self, calls: Sequence[OutgoingCall]) -> list[Submitted]:
        calls = [self._fitting(call) for call in calls]
        inbox = self._own_inbox()
        expected = [inbox.expect(call.execution_id) for call in calls]
        try:
            with broker_errors("sending the call"):
                ids = self._publisher.publish(self._with_queues(calls), inbox.key)
        except BaseException:
            for call, pending in zip(calls, expected, strict=True):
                inbox.forget(call.execution_id, pending)
            raise
        return [
            Submitted(id, pending if id == call.execution_id else self._watch_instead(call, pending, id))
            for call, pending, id in zip(calls, expected, ids, strict=True)
        ]

    def post(self, calls: Sequence[OutgoingCall]) -> list[str]:
        """Send the calls and wait for no result; returns the execution ids under which they are known.

        Raises:
            PayloadTooLarge, QueueFull, BrokerUnavailable: as `submit` does.
        """
        calls = [self._fitting(call) for call in calls]
        with broker_errors("sending the call"):
            return self._publisher.publish(self._with_queues(calls), _NOBODY)

    def watch(self, execution_id: str) -> Pending:
        inbox = self._own_inbox()
        pending = inbox.expect(execution_id)
        waiters = self._keys.waiters(execution_id)
        with broker_errors("asking for the result"):
            pipeline = self._redis.pipeline()
            pipeline.sadd(waiters, inbox.key)
            pipeline.expire(waiters, int(self._config.transport.result_expires))
            pipeline.get(self._keys.result(execution_id))
            stored = pipeline.execute()[-1]
            if stored is not None:
                self._redis.delete(waiters)  # nobody is going to wake them
        if stored is not None:
            inbox.deliver(stored)
        return pending

    def wait(self, pending: Pending, seconds: float) -> None:
        if (inbox := self._known_inbox()) is not None:
            inbox.wait(pending, seconds)

    def listen(self) -> None:
        if (inbox := self._known_inbox()) is not None:
            inbox.listen()

    def forget(self, execution_id: str, pending: Pending) -> None:
        if (inbox := self._known_inbox()) is not None:
            inbox.forget(execution_id, pending)

    def cancel(self, execution_id: str, reason: str) -> None:
        with broker_errors("cancelling the call"):
            self._ledger.cancel(execution_id, reason)

    def state(self, execution_id: str) -> CallState:
        with broker_errors("asking for the call's state"):
            pipeline = self._redis.pipeline()
            pipeline.get(self._keys.result(execution_id))
            pipeline.hget(self._keys.call(execution_id), "attempts")
            stored, started = pipeline.execute()
        if stored is not None:
            return result_status(stored)
        return "pending" if started is None else "running"

    def serves(self, node: str) -> bool:
        with broker_errors("looking for workers"):
            return self._directory.serves(node)

    def workers(self) -> list[WorkerInfo]:
        with broker_errors("looking for workers"):
            announced = self._directory.list()
        here = self._app.conf.get("ditto_announced")
        return [replace(worker, is_local=worker.id == here) for worker in announced]

    def queues(self, nodes: Sequence[str]) -> list[QueueInfo]:
        with broker_errors("counting what waits"), self._app.connection_for_read() as connection:
            return [QueueInfo(name, node, _waiting(connection, name)) for node, name in self._names(nodes)]

    def close(self) -> None:
        with self._lock:
            inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.close()
        self._publisher.close()
        self._ledger.close()
        self._redis.close()
        self._app.close()

    def _names(self, nodes: Sequence[str]) -> list[tuple[str, str]]:
        return [(node, node_queue(self._config, node)) for node in nodes]

    def _with_queues(self, calls: Sequence[OutgoingCall]) -> list[tuple[str, OutgoingCall]]:
        return [(self._queue(call.node), call) for call in calls]

    def _queue(self, node: str) -> str:
        queue = self._queues.get(node)
        if queue is None:
            queue = self._queues[node] = node_queue(self._config, node)
        return queue

    def _watch_instead(self, call: OutgoingCall, pending: Pending, id: str) -> Pending:
        """Wait for the execution that the call's idempotency key stands for."""
        self.forget(call.execution_id, pending)
        return self.watch(id)

    def _fitting(self, call: OutgoingCall) -> OutgoingCall:
        """Return what is sent: the call, or one whose input is kept apart because it is too large."""
        transport = self._config.transport
        size, limit = len(encode_json(call.input)), transport.max_body_bytes
        if size <= limit:
            return call
        if transport.large_payloads == "refuse":
            raise PayloadTooLarge(
                f"the input of {call.node} has {size:,} bytes, over the limit of {limit:,}: "
                "send less at once, raise transport.maxBodyBytes, or set transport.largePayloads to reference"
            )
        with broker_errors("keeping the input"):
            self._payloads.keep_input(call.execution_id, call.input)
        return call._replace(input=None, is_kept_apart=True)

    def _make_publisher(self) -> Publisher:
        transport = self._config.transport
        remembered = int(transport.idempotency_expires)
        keys = IdempotencyKeys(self._redis, self._keys, remembered)
        priorities = {"high": 9, "normal": 0, "low": 1} if uses_streams(self._config) else _KOMBU_PRIORITIES
        celery = CeleryPublisher(self._app, keys, self._admit, priorities)
        if not uses_streams(self._config):
            return celery
        admission = Admission(transport.max_pending, remembered)
        broker = connect(str(self._config.broker_url))
        return StreamPublisher(self._app, broker, self._keys, admission, celery)

    def _admit(self, calls: Sequence[tuple[str, OutgoingCall]]) -> None:
        limit = self._config.transport.max_pending
        if limit is None:
            return
        sent = Counter(call.node for _, call in calls)
        for queue in self.queues(list(sent)):
            if queue.waiting + sent[queue.node] > limit:
                raise queue_full(queue.name, queue.waiting, limit)

    def _own_inbox(self) -> Inbox:
        """Return this process's inbox: after a fork the parent's thread and connection are not ours."""
        with self._lock:
            if self._inbox is None or self._inbox_pid != own_pid():
                reader = connect(redis_url(self._config))
                self._inbox = Inbox(self._redis, reader, self._keys, self._payloads)
                self._inbox_pid = own_pid()
            return self._inbox

    def _known_inbox(self) -> Inbox | None:
        """Return this process's inbox if it has one: what was closed is not opened to wait for nothing."""
        return self._inbox if self._inbox_pid == own_pid() else None


def _waiting(connection: Connection, queue: str) -> int:
    """Count a queue's messages; one that nobody ever wrote to has none."""
    channel = connection.default_channel
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except (*connection.channel_errors,):
        return 0
