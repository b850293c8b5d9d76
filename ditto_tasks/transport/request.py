"""What Celery's worker holds for each call that it runs: acknowledging, revoking, and a process that died."""

import logging
from collections.abc import Callable
from typing import Any
from weakref import ref

from billiard.exceptions import WorkerLostError
from celery.app.trace import LOG_RECEIVED, fast_trace_task
from celery.exceptions import InvalidTaskError
from celery.signals import task_received
from celery.worker.request import Request
from celery.worker.state import revoked, task_ready, task_reserved
from celery.worker.strategy import default
from celery.worker.strategy import logger as celerys_logger
from kombu.exceptions import ContentDisallowed

from ditto_tasks.transport.connection import REDIS_ERRORS
from ditto_tasks.transport.streams import NotATask, StreamChannel

__all__ = ["REVOKED", "NodeRequest", "node_strategy"]

Handler = Callable[..., Any]  # of a message: Celery calls it a strategy
REVOKED = "revoked"  # the reason of such a cancel


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

    def handle_checked(message: Any, *rest: Any, **named: Any) -> Any:
        if not _is_of_a_task(message):
            from_stream = isinstance(message.channel, StreamChannel)
            raise (NotATask if from_stream else InvalidTaskError)("its body or headers are none of a task")
        return (handle_short if is_short(message) else handle)(message, *rest, **named)

    return handle_checked


def _chooser(task: Any, app: Any, consumer: Any) -> Callable[[Any], bool]:
    """Make what tells whether a message can take the short way: it, and the worker, use nothing beside it."""
    eventer = consumer.event_dispatcher

    def is_short(message: Any) -> bool:
        headers = message.headers
        return not (
            _sends_events(eventer)
            or task_received.receivers
            or headers.get("eta")
            or headers.get("expires")
            or headers.get("stamped_headers")
            or consumer.task_buckets[task.name]  # a rate limit
            or not isinstance(message.payload, list)  # protocol 1
        )

    return is_short if app.use_fast_trace_task else lambda message: False


def _sends_events(eventer: Any) -> bool:
    """Tell whether a worker tells of its tasks; it tells of itself all the time."""
    return bool(eventer and eventer.enabled and (not eventer.groups or "task" in eventer.groups))


def _short_strategy(task: Any, app: Any, consumer: Any) -> Handler:
    def handle(message: Any, _: Any, ack: Any, reject: Any, callbacks: Any) -> None:
        request = ShortRequest(
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
        if celerys_logger.isEnabledFor(logging.INFO):
            told = {"id": request.id, "name": request.name, "eta": None}
            told |= {"args": request.argsrepr, "kwargs": request.kwargsrepr}
            celerys_logger.info(LOG_RECEIVED, told, extra={"data": told})
        task_reserved(request)
        for callback in callbacks or ():
            callback(request)
        consumer.on_task_request(request)

    return handle


def _is_of_a_task(message: Any) -> bool:
    """Look at the parts that Celery takes for granted."""
    try:
        payload = message.payload
    except ContentDisallowed:
        return True  # it refuses this itself
    except Exception:  # whatever a decoder may raise
        return False
    time_limits = message.headers.get("timelimit")
    if time_limits and not (isinstance(time_limits, list | tuple) and len(time_limits) == 2):
        return False
    if isinstance(payload, dict):  # protocol 1
        return isinstance(payload.get("args"), list | tuple)
    kinds = (list | tuple, dict, dict)
    return (
        isinstance(payload, list | tuple)
        and len(payload) == len(kinds)
        and all(isinstance(part, kind) for part, kind in zip(payload, kinds, strict=True))
    )
