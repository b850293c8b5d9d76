"""A node as a Celery task: the deadline, the cancel token and the size limit around one execution."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import Task
from celery.exceptions import Ignore

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.transport.connection import RedisClient, broker_errors
from ditto_tasks.transport.executions import Executions
from ditto_tasks.transport.keys import Keys

__all__ = ["DEADLINE_HEADER", "NodeTask", "TaskServices"]

logger = logging.getLogger(__name__)

DEADLINE_HEADER = "ditto_deadline"  # seconds since the epoch; the caller's clock


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What all node tasks of a process share.

    Attributes:
        run: runs a node in this process: (node, input, call) to result.
        redis: a client of the result backend's server.
        keys: the key names.
        executions: the calls that run in this process.
        max_body_bytes: the largest result.
        marks_expire: seconds that the note "has begun" is kept.
    """

    run: Callable[[str, Any, Call], NodeResult]
    redis: RedisClient
    keys: Keys
    executions: Executions
    max_body_bytes: int
    marks_expire: int


class NodeTask(Task):
    """Runs one node: the task's name is the node's, its id the execution id, its value the NodeResult."""

    acks_late = True
    resultrepr_maxsize = 16  # characters of a result in logs and events: content does not belong there

    def __init__(self, node: str, services: TaskServices) -> None:
        self.name = node
        self._services = services

    def run(self, input: Any = None) -> dict[str, Any]:
        """Run the node for the message at hand.

        Raises:
            celery.exceptions.Ignore: the call has its result already; this delivery leaves it as it is.
        """
        began = time.monotonic()
        execution_id: str = self.request.id
        with self._services.executions.track(execution_id) as cancel:
            is_done, tombstone = self._begin(execution_id)
            if is_done:
                logger.info("%s %s has its result already: not run again", execution_id, self.name)
                raise Ignore
            if tombstone is not None:
                self._services.executions.cancel(execution_id, tombstone)
            call = Call(execution_id, cancel, self._deadline())
            result = self._fitting(self._services.run(self.name, input, call))
        milliseconds = (time.monotonic() - began) * 1000
        logger.info("%s %s %s %.1f ms", execution_id, self.name, result.status, milliseconds)
        return result.to_wire()

    def _begin(self, execution_id: str) -> tuple[bool, str | None]:
        """Note that the call has begun; tell whether it is done already, and the reason of its cancel."""
        keys = self._services.keys
        with broker_errors("beginning a call"):
            pipeline = self._services.redis.pipeline(transaction=False)
            pipeline.exists(keys.result(execution_id))
            pipeline.get(keys.cancelled(execution_id))
            pipeline.set(keys.started(execution_id), b"1", ex=self._services.marks_expire)
            is_done, tombstone, _ = pipeline.execute()
        return bool(is_done), None if tombstone is None else tombstone.decode()

    def _deadline(self) -> float | None:
        """Translate the caller's deadline to this process's monotonic clock."""
        expires_at = (self.request.headers or {}).get(DEADLINE_HEADER)
        return None if expires_at is None else time.monotonic() + (float(expires_at) - time.time())

    def _fitting(self, result: NodeResult) -> NodeResult:
        size = len(encode_json(result.to_wire()))
        limit = self._services.max_body_bytes
        if size <= limit:
            return result
        return NodeResult.failure(
            result.execution_id,
            result.node,
            "PAYLOAD_TOO_LARGE",
            f"The result has {size:,} bytes, over the limit of {limit:,}: ask for fewer records, "
            "or raise transport.maxBodyBytes",
        )
