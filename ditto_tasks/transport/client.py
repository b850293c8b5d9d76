"""The caller's side of the queue: sends calls as Celery tasks and completes futures with their results."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial

from celery import Celery
from kombu import Connection

from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.errors import PayloadTooLarge, QueueFull
from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.local import WorkerInfo
from ditto_tasks.transport.app import create_app, node_queue, redis_url
from ditto_tasks.transport.connection import SOCKET_TIMEOUT, broker_errors, connect
from ditto_tasks.transport.directory import Directory
from ditto_tasks.transport.executions import cancel_message
from ditto_tasks.transport.inbox import BLOCK_TIME, Inbox
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.port import CallState, OutgoingCall, QueueInfo
from ditto_tasks.transport.results import read_result
from ditto_tasks.transport.task import DEADLINE_HEADER

__all__ = ["CeleryTransport"]

_HIDDEN = "(...)"  # shown for arguments in events and logs: content does not belong there


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
        self._directory = Directory(self._redis, self._keys)
        self._lock = threading.Lock()
        self._inbox: Inbox | None = None
        self._inbox_pid = 0

    def submit(self, calls: Sequence[OutgoingCall]) -> list[Future[NodeResult]]:
        self._admit(calls)
        inbox = self._own_inbox()
        futures = [inbox.expect(call.execution_id) for call in calls]
        try:
            with broker_errors("sending the call"):
                self._publish(calls, inbox.key)
        except BaseException:
            for call, future in zip(calls, futures, strict=True):
                inbox.forget(call.execution_id, future)
            raise
        return futures

    def watch(self, execution_id: str) -> Future[NodeResult]:
        inbox = self._own_inbox()
        future = inbox.expect(execution_id)
        waiters = self._keys.waiters(execution_id)
        with broker_errors("asking for the result"):
            pipeline = self._redis.pipeline()
            pipeline.sadd(waiters, inbox.key)
            pipeline.expire(waiters, int(self._config.transport.result_expires))
            pipeline.get(self._keys.result(execution_id))
            stored = pipeline.execute()[-1]
        if stored is not None:
            inbox.deliver(stored)
        return future

    def forget(self, execution_id: str, future: Future[NodeResult]) -> None:
        self._own_inbox().forget(execution_id, future)

    def cancel(self, execution_id: str, reason: str) -> None:
        keys, transport = self._keys, self._config.transport
        with broker_errors("cancelling the call"):
            pipeline = self._redis.pipeline()
            pipeline.set(
                keys.cancelled(execution_id),
                reason,
                ex=int(max(transport.result_expires, transport.visibility_timeout)),
            )
            pipeline.publish(keys.cancel_channel, cancel_message(execution_id, reason))
            pipeline.execute()

    def state(self, execution_id: str) -> CallState:
        with broker_errors("asking for the call's state"):
            stored, started = self._redis.mget(
                [self._keys.result(execution_id), self._keys.started(execution_id)]
            )
        if stored is not None:
            return read_result(stored)[1].status
        return "pending" if started is None else "running"

    def serves(self, node: str) -> bool:
        with broker_errors("looking for workers"):
            return self._directory.serves(node)

    def workers(self) -> list[WorkerInfo]:
        with broker_errors("looking for workers"):
            return self._directory.list()

    def queues(self, nodes: Sequence[str]) -> list[QueueInfo]:
        with broker_errors("counting what waits"), self._app.connection_for_read() as connection:
            return [QueueInfo(name, node, _waiting(connection, name)) for node, name in self._names(nodes)]

    def close(self) -> None:
        with self._lock:
            inbox, self._inbox = self._inbox, None
        if inbox is not None:
            inbox.close()
        self._redis.close()
        self._app.close()

    def _names(self, nodes: Sequence[str]) -> list[tuple[str, str]]:
        return [(node, node_queue(self._config, node)) for node in nodes]

    def _admit(self, calls: Sequence[OutgoingCall]) -> None:
        limit = self._config.transport.max_body_bytes
        for call in calls:
            size = len(encode_json(call.input))
            if size > limit:
                raise PayloadTooLarge(
                    f"the input of {call.node} has {size:,} bytes, over the limit of {limit:,}: "
                    "send less at once, or raise transport.maxBodyBytes"
                )
        if self._config.transport.max_pending is not None:
            self._admit_to_queues(calls, self._config.transport.max_pending)

    def _admit_to_queues(self, calls: Sequence[OutgoingCall], limit: int) -> None:
        for queue in self.queues(list({call.node for call in calls})):
            if queue.waiting + sum(call.node == queue.node for call in calls) > limit:
                raise QueueFull(
                    f"{queue.waiting} calls wait in {queue.name}, which takes {limit}: "
                    "try again later, or start more workers"
                )

    def _publish(self, calls: Sequence[OutgoingCall], inbox: str) -> None:
        with (
            self._app.producer_pool.acquire(block=True, timeout=SOCKET_TIMEOUT) as producer,
            producer.batch() if len(calls) > 1 else nullcontext(),
        ):
            send = partial(
                self._app.send_task, producer=producer, reply_to=inbox, argsrepr=_HIDDEN, kwargsrepr="{}"
            )
            for call in calls:
                headers = {} if call.expires_at is None else {DEADLINE_HEADER: call.expires_at}
                send(
                    call.node,
                    args=(call.input,),
                    task_id=call.execution_id,
                    queue=node_queue(self._config, call.node),
                    headers=headers,
                    retry=False,  # redis-py replaces idle connections that were closed; more takes too long
                )

    def _own_inbox(self) -> Inbox:
        """Return this process's inbox: after a fork the parent's thread and connection are not ours."""
        with self._lock:
            if self._inbox is None or self._inbox_pid != os.getpid():
                reader = connect(redis_url(self._config), socket_timeout=BLOCK_TIME + SOCKET_TIMEOUT)
                self._inbox = Inbox(self._redis, reader, self._keys)
                self._inbox_pid = os.getpid()
            return self._inbox


def _waiting(connection: Connection, queue: str) -> int:
    """Count a queue's messages; one that nobody ever wrote to has none."""
    channel = connection.default_channel
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except (*connection.channel_errors,):
        return 0
