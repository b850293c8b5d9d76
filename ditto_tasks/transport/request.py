"""What Celery's worker holds for each call that it runs: acknowledging, revoking, and a process that died."""

import logging
from collections.abc import Callable, Mapping
from typing import Any
from weakref import ref

from billiard.exceptions import WorkerLostError
from celery.app.task import Context
from celery.app.trace import LOG_RECEIVED, fast_trace_task
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.solo import TaskPool as SoloPool
from celery.exceptions import InvalidTaskError
from celery.signals import task_received
from celery.utils.time import maybe_iso8601
from celery.worker.request import Request
from celery.worker.state import all_total_count, revoked, task_ready, task_reserved, total_count
from celery.worker.strategy import default
from celery.worker.strategy import logger as celerys_logger
from kombu.exceptions import ContentDisallowed

from ditto_tasks.contracts.base import is_number
from ditto_tasks.contracts.json_value import NotJson, decode_json
from ditto_tasks.transport.connection import REDIS_ERRORS
from ditto_tasks.transport.ledger import BEGUN_PROPERTY
from ditto_tasks.transport.serializer import CONTENT_TYPE
from ditto_tasks.transport.streams import NotATask, Runner, StreamChannel, run_directly

__all__ = ["REVOKED", "NodeRequest", "node_strategy"]

Handler = Callable[..., Any]  # of a message: Celery calls it a strategy
REVOKED = "revoked"  # the reason of such a cancel
_OURS = ("ditto_attempt", "ditto_dead")  # what a node's task notes in its context

# A task's context has the headers of its message as attributes: those that would stand in for its own.
_HIDING = frozenset(
    (*_OURS, *(name for name in dir(Context) if name[0] == "_" or callable(getattr(Context, name))))
)


class NodeRequest(Request):
    """A request whose revoke is a cancel, and whose lost process gives the call back.

    A revoked call is run all the same, with its token set: so it ends as its node ends a cancelled call.
    """

    acknowledged: bool

    def acknowledge(self) -> None:
        """Settle a stream's message now, in the thread that runs the call: the loop need not turn for it."""
        channel = self.message.channel
        if not isinstance(channel, StreamChannel):
            super().acknowledge()
        elif not self.acknowledged:
            channel.qos.ack(self.message.delivery_tag)
            self.acknowledged = True

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note that the call runs: should it be given back from now on, that counts as an attempt."""
        channel = self.message.channel
        if isinstance(channel, StreamChannel):
            channel.note_runs(self.message.delivery_tag)
        super().on_accepted(pid, time_accepted)

    def revoked(self) -> bool:
        if self.id in revoked:
            self.task.cancel_call(self.id, REVOKED)
        return False

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Set the call's token; no process is killed."""
        self.task.cancel_call(self.id, REVOKED)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """Give the call back when its process died, or its result could not be stored.

        Its attempts are counted where it is begun.
        """
        error = getattr(exc_info.exception, "exc", exc_info.exception)
        if isinstance(error, (WorkerLostError, *REDIS_ERRORS)):
            task_ready(self)
            self.reject(requeue=True)
            return None
        return super().on_failure(exc_info, send_failed_event, return_ok)


class ShortRequest(NodeRequest):
    """A request whose message was read already, of a worker in which nobody listens to events."""

    def execute_using_pool(self, pool: Any, **_: Any) -> Any:
        self.revoked()  # which cancels the call if it is
        hard, soft = self.time_limits
        result = pool.apply_async(
            fast_trace_task,
            args=(self.type, self.id, self.request_dict, self.body, None, None),
            accept_callback=self.on_accepted,
            timeout_callback=self.on_timeout,
            callback=self.on_success,
            error_callback=self.on_failure,
            soft_timeout=soft or self.task.soft_time_limit,
            timeout=hard or self.task.time_limit,
            correlation_id=self.id,
        )
        self._apply_result = None if result is None else ref(result)
        return result

    def on_success(self, failed__retval__runtime: Any, **named: Any) -> Any:
        failed, *_ = failed__retval__runtime
        if failed or _sends_events(self.eventer):
            return super().on_success(failed__retval__runtime, **named)
        task_ready(self)  # not noted as successful: only Celery's own tracer asks for that
        self.acknowledge()
        return None


def node_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Handler:
    """Make the handler of a task's messages, which lets only such in as Celery's worker survives.

    Most take a short way past Celery's handler; it has those that are in need of what only it does.

    The handler raises:
        NotATask: the message came from a stream and is none of a task.
        InvalidTaskError: it came from elsewhere; Celery's worker refuses it.
    """
    handle = default(task, app, consumer, **options)
    handle_short = _short_strategy(task, app, consumer)
    is_short = _chooser(task, app, consumer)
    forks = isinstance(consumer.pool, PreforkPool)
    if isinstance(consumer.pool, SoloPool):
        run_directly(task.name, _runner(task, app, consumer, is_short))

    def handle_checked(message: Any, *rest: Any, **named: Any) -> Any:
        if not _is_of_a_task(message):
            from_stream = isinstance(message.channel, StreamChannel)
            raise (NotATask if from_stream else InvalidTaskError)("its body or headers are none of a task")
        if isinstance(message.channel, StreamChannel):
            message.channel.await_begin(message.properties)
            if forks:
                _wait_begun(message.properties)
        takes_short = is_short(message.headers) and isinstance(message.payload, list)  # protocol 2
        return (handle_short if takes_short else handle)(message, *rest, **named)

    return handle_checked


def _wait_begun(properties: dict[str, Any]) -> None:
    """Wait here for the begin of a call whose task is sent to another process, which cannot."""
    if callable(begins := properties.get(BEGUN_PROPERTY)):
        begun = begins()
        properties[BEGUN_PROPERTY] = (begun.verdict, begun.attempt, begun.reason)


def _chooser(task: Any, app: Any, consumer: Any) -> Callable[[Mapping[str, Any]], bool]:
    """Make what tells by its headers whether a message can take the short way.

    It can if neither it nor the worker asks for more than that way has.
    """
    eventer = consumer.event_dispatcher

    def is_short(headers: Mapping[str, Any]) -> bool:
        return not (
            _sends_events(eventer)
            or task_received.receivers
            or headers.get("eta")
            or headers.get("expires")
            or headers.get("stamped_headers")
            or consumer.task_buckets[task.name]  # a rate limit
        )

    return is_short if app.use_fast_trace_task else lambda headers: False


def _sends_events(eventer: Any) -> bool:
    """Tell whether a worker tells of its tasks; it tells of itself all the time."""
    return bool(eventer and eventer.enabled and (not eventer.groups or "task" in eventer.groups))


def _short_strategy(task: Any, app: Any, consumer: Any) -> Handler:
    make_request = _maker(task, app, consumer)

    def handle(message: Any, _: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        request = make_request(message, ack, reject)
        _tell_received(message.headers)
        task_reserved(request)
        for callback in callbacks or ():
            callback(request)
        consumer.on_task_request(request)

    return handle


def _maker(task: Any, app: Any, consumer: Any) -> Callable[[Any, Any, Any], ShortRequest]:
    def make(message: Any, ack: Any, reject: Any) -> ShortRequest:
        return ShortRequest(
            message,
            on_ack=ack,
            on_reject=reject,
            app=app,
            hostname=consumer.hostname,
            eventer=consumer.event_dispatcher,
            task=task,
            connection_errors=consumer.connection_errors,
            body=message.payload,
            decoded=True,
        )

    return make


def _tell_received(headers: Mapping[str, Any]) -> None:
    if celerys_logger.isEnabledFor(logging.INFO):
        told = {"id": headers["id"], "name": headers.get("shadow") or headers["task"], "eta": None}
        told |= {"args": headers.get("argsrepr", ""), "kwargs": headers.get("kwargsrepr", "")}
        celerys_logger.info(LOG_RECEIVED, told, extra={"data": told})


def _runner(task: Any, app: Any, consumer: Any, is_short: Callable[[Mapping[str, Any]], bool]) -> Runner:
    """Make what runs a message's call here and now, in the thread that has fetched it.

    A solo worker runs a call within its event loop, so that nobody can see the request that Celery makes of
    it while it exists: here one is made only of a call whose task gave no result.
    """
    make_request = _maker(task, app, consumer)

    def run(channel: StreamChannel, raw: dict[str, Any]) -> bool:
        headers, properties = raw["headers"], raw["properties"]
        payload = None if consumer.on_task_message or not is_short(headers) else _payload(raw)
        if payload is None:
            return False
        args, kwargs, embedded = payload
        id, tag, name = headers["id"], properties["delivery_tag"], task.name
        channel.await_begin(properties)
        _tell_received(headers)
        if id in revoked:
            task.cancel_call(id, REVOKED)
        channel.note_runs(tag)
        total_count[name] += 1
        all_total_count[0] += 1
        request = _request(raw, consumer.hostname, embedded)
        value, failure, runtime, _ = task.__trace__(id, args, kwargs, request)
        if failure is None:
            channel.settle(tag)
            return True
        message = channel.Message(raw, channel=channel)
        channel.qos.append(message, tag)
        ended = make_request(message, message.ack_log_error, message.reject_log_error)
        ended.on_success((1, value, runtime))
        return True

    return run


def _payload(raw: Mapping[str, Any]) -> Any:
    """Return the arguments of a call and what comes with them; None: its message is no plain one of ours."""
    if raw.get("content-type") != CONTENT_TYPE:
        return None
    try:
        payload = decode_json(raw["body"])
    except NotJson:
        return None
    return payload if _has_parts(raw["headers"], payload) else None


def _request(raw: Mapping[str, Any], hostname: str, embedded: Mapping[str, Any]) -> dict[str, Any]:
    """Give what Celery's request tells a task of the message that brought it."""
    properties = raw["properties"]
    return {
        **raw["headers"],
        "properties": properties,
        "reply_to": properties.get("reply_to"),
        "correlation_id": properties.get("correlation_id"),
        "delivery_info": properties["delivery_info"],
        "hostname": hostname,
        "is_eager": False,
        **embedded,
    }


def _is_of_a_task(message: Any) -> bool:
    """Look at the parts that Celery takes for granted."""
    try:
        payload = message.payload
    except ContentDisallowed:
        return True  # it refuses this itself
    except Exception:  # whatever a decoder may raise
        return False
    if isinstance(payload, dict):  # protocol 1
        return _are_of_use(message.headers) and isinstance(payload.get("args"), list | tuple)
    return _has_parts(message.headers, payload)


def _has_parts(headers: Mapping[str, Any], payload: Any) -> bool:
    """Tell whether a message of protocol 2 has headers of use, and what its payload is unpacked into."""
    kinds = (list | tuple, dict, dict)
    return (
        _are_of_use(headers)
        and isinstance(payload, list | tuple)
        and len(payload) == len(kinds)
        and all(isinstance(part, kind) for part, kind in zip(payload, kinds, strict=True))
        and _are_of_use(payload[2])
    )


def _are_of_use(parts: Mapping[str, Any]) -> bool:
    """Tell whether parts of a context hide nothing of it, and are what Celery takes for granted."""
    if not _HIDING.isdisjoint(parts):
        return False
    for name, is_right in _KINDS.items():
        value = parts.get(name)
        if value is not None and not is_right(value):
            return False
    return True


def _is_pair(value: Any) -> bool:
    """Tell whether this may be the hard and the soft time limit, of which each may be absent."""
    if value in ([], ()):
        return True
    is_two = isinstance(value, list | tuple) and len(value) == 2
    return is_two and all(limit is None or is_number(limit) for limit in value)


def _is_moment(value: Any) -> bool:
    try:
        return isinstance(value, str) and maybe_iso8601(value) is not None
    except ValueError:
        return False


def _are_signatures(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(signature, dict) for signature in value)


# What Celery's worker takes parts of a message for, unless they are absent or null.
_KINDS: dict[str, Callable[[Any], bool]] = {
    "timelimit": _is_pair,
    "eta": _is_moment,
    "expires": _is_moment,
    "callbacks": _are_signatures,
    "errbacks": _are_signatures,
    "chain": _are_signatures,
    "chord": lambda value: isinstance(value, dict),
}
