"""A node as a Celery task: attempts, deadline, cancel token and size limit around one execution."""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from celery import Task
from celery.exceptions import Ignore, Reject
from celery.signals import task_postrun
from celery.utils.time import maybe_iso8601
from pydantic import ValidationError

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.catalog import NODE_SPECS
from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.contracts.node import NodeResult, NodeStatus
from ditto_tasks.transport.connection import REDIS_ERRORS
from ditto_tasks.transport.dead import DeadCall, encode_dead
from ditto_tasks.transport.executions import Executions
from ditto_tasks.transport.ledger import BEGUN_PROPERTY, Begun, Ledger
from ditto_tasks.transport.payloads import OUTPUT_REFERENCE, PAYLOAD_HEADER, PayloadMissing, Payloads
from ditto_tasks.transport.tags import stream_tag
from ditto_tasks.transport.tracer import Tracer, short_tracer

__all__ = ["DEADLINE_HEADER", "NodeTask", "TaskServices"]

logger = logging.getLogger(__name__)

_HELD_PAUSE = 1.0  # seconds between two looks whether another process still runs the call
_pause = threading.Event()  # never set
DEADLINE_HEADER = "ditto_deadline"  # seconds since the epoch; the caller's clock


@dataclass(frozen=True, slots=True)
class TaskServices:
    """What all node tasks of a process share.

    Attributes:
        run: runs a node in this process: (node, input, call) to result.
        ledger: the states of calls.
        executions: the calls that run in this process.
        payloads: inputs and outputs that are too large for a message.
        keeps_large_payloads: whether those are kept, and not refused.
        max_body_bytes: the largest result.
        max_deliveries: how often a call is begun before it is given up.
        owner: names this process's lease, with a broker that may deliver a call while it still runs; else
        empty.
    """

    run: Callable[[str, Any, Call], NodeResult]
    ledger: Ledger
    executions: Executions
    payloads: Payloads
    keeps_large_payloads: bool
    max_body_bytes: int
    max_deliveries: int
    owner: str = ""


class Done(NamedTuple):
    """What came of one execution: the NodeResult as JSON, and its status."""

    result: bytes
    status: NodeStatus


class NodeTask(Task):
    """Runs one node: the task's name is the node's, its id the execution id, its value the NodeResult."""

    Request = "ditto_tasks.transport.request:NodeRequest"
    Strategy = "ditto_tasks.transport.request:node_strategy"
    acks_late = True
    resultrepr_maxsize = 16  # characters of a result in logs and events: content does not belong there

    def __init__(self, node: str, services: TaskServices, *, is_repeatable: bool = False) -> None:
        self.name = node
        self._is_repeatable = is_repeatable
        self._services = services
        self._trace: Tracer | None = None
        if services.owner:
            task_postrun.connect(self._leave, sender=self, weak=False)

    @property
    def __trace__(self) -> Tracer | None:
        """What Celery's worker calls for each message; it sets its own, and gets the short way past it."""
        return self._trace

    @__trace__.setter
    def __trace__(self, tracer: Tracer) -> None:
        self._trace = short_tracer(self, tracer)

    def run(self, input: Any = None) -> dict[str, Any]:
        """Run the node for the message at hand; as `execute`."""
        result: dict[str, Any] = decode_json(self.execute(self.request, input).result)
        return result

    def execute(self, request: Any, input: Any = None) -> "Done":
        """Run the node.

        Args:
            request: Celery's context of the message that asks for it.

        Raises:
            celery.exceptions.Ignore: the call has its result already; this delivery leaves it as it is.
            celery.exceptions.Reject: the result backend is away; the message goes back into its queue.
        """
        started = time.monotonic()
        execution_id: str = request.id
        if self._services.owner:
            self._services.executions.enter(execution_id)
        with self._services.executions.track(execution_id) as cancel:
            begun = self._begin(request)
            call = Call(execution_id, cancel, _deadline(request))
            try:
                input = self._whole(request, input)
                result = self._given_up(request, begun, input, call) or self._services.run(
                    self.name, input, call
                )
            except PayloadMissing:
                message = "The input was kept apart, being large, and has expired"
                result = NodeResult.failure(execution_id, self.name, "PAYLOAD_EXPIRED", message)
        milliseconds = (time.monotonic() - started) * 1000
        logger.info("%s %s %s %.1f ms", execution_id, self.name, result.status, milliseconds)
        return Done(self._fitting(result), result.status)

    def cancel_call(self, execution_id: str, reason: str) -> None:
        """Cancel a call that this worker holds, in whichever of its processes it runs."""
        self._services.executions.cancel(execution_id, reason)
        self._services.ledger.cancel(execution_id, reason)

    def _leave(self, task_id: str, **_: Any) -> None:
        self._services.executions.leave(task_id)

    def _begin(self, request: Any) -> Begun:
        execution_id: str = request.id
        begins = (request.properties or {}).get(BEGUN_PROPERTY) or partial(self._begin_alone, request)
        try:
            begun: Begun = begins() if callable(begins) else Begun(*begins)
        except REDIS_ERRORS as error:
            logger.warning("%s %s cannot begin: %s", execution_id, self.name, type(error).__name__)
            raise Reject(requeue=True) from None
        if begun.verdict == "done":
            logger.info("%s %s has its result already: not run again", execution_id, self.name)
            raise Ignore
        if begun.verdict == "cancelled":
            self._services.executions.cancel(execution_id, begun.reason)
        request.ditto_attempt = begun.attempt
        return begun

    def _begin_alone(self, request: Any) -> Begun:
        """Begin the call once no other process runs it: it was delivered again while it still ran."""
        execution_id, owner, tag = request.id, self._services.owner, stream_tag(request)
        begun = self._services.ledger.begin(execution_id, owner, tag)
        while begun.verdict == "held":
            if _is_gone(begun.reason, owner):
                return self._services.ledger.begin(execution_id)
            _pause.wait(_HELD_PAUSE)
            begun = self._services.ledger.begin(execution_id, owner, tag)
        return begun

    def _whole(self, request: Any, input: Any) -> Any:
        """Return the input, from where it is kept if it was too large for the message."""
        if hasattr(request, PAYLOAD_HEADER):
            return self._services.payloads.input(request.id)
        return input

    def _given_up(self, request: Any, begun: Begun, input: Any, call: Call) -> NodeResult | None:
        """Say how a call ends that must not be run again after its process died; None: it may be."""
        if begun.attempt == 1 or begun.verdict == "cancelled":
            return None
        if begun.attempt > self._services.max_deliveries:
            message = f"Every process that ran the call died, {begun.attempt - 1} times: it was given up"
            request.ditto_dead = encode_dead(DeadCall(call.execution_id, self.name, input, time.time()))
            return NodeResult.failure(call.execution_id, self.name, "WORKER_LOST", message)
        if not self._may_repeat(input):
            message = "The process that ran the call died: it may or may not have taken effect"
            return NodeResult.failure(call.execution_id, self.name, "OUTCOME_UNKNOWN", message)
        return None

    def _may_repeat(self, input: Any) -> bool:
        """Tell whether running this input twice does no harm; the catalogue decides of its own nodes."""
        spec = NODE_SPECS.get(self.name)
        if spec is None:
            return self._is_repeatable
        try:
            return spec.is_repeatable(spec.input.from_wire(input))
        except ValidationError:
            return True  # it is refused again

    def _fitting(self, result: NodeResult) -> bytes:
        """Write what is stored: the result, or one whose output is kept apart or refused, being too large."""
        encoded = result.to_wire_bytes()
        size, limit = len(encoded), self._services.max_body_bytes
        if size <= limit:
            return encoded
        if self._services.keeps_large_payloads:
            wire = result.to_wire()
            reference = self._services.payloads.keep_output(result.execution_id, wire.pop("output"))
            return encode_json(wire | {OUTPUT_REFERENCE: reference})
        return NodeResult.failure(
            result.execution_id,
            result.node,
            "PAYLOAD_TOO_LARGE",
            f"The result has {size:,} bytes, over the limit of {limit:,}: ask for fewer records, "
            "raise transport.maxBodyBytes, or set transport.largePayloads to reference",
        ).to_wire_bytes()


def _deadline(request: Any) -> float | None:
    """Translate the caller's deadline to this process's monotonic clock."""
    header, expires = getattr(request, DEADLINE_HEADER, None), request.expires
    if header is None and expires is None:
        return None
    ends = [float(header)] if header is not None else []
    if expires is not None:  # Celery's own
        ends.append(maybe_iso8601(expires).timestamp())
    return time.monotonic() + (min(ends) - time.time())


def _is_gone(holder: str, owner: str) -> bool:
    """Tell whether a call's holder was a process of this very worker that has died: a child of its pool."""
    name, pid = holder.rsplit(" ", 1)
    if name != owner:
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False
