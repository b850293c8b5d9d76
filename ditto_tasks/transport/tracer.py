"""A short way past Celery's tracer, which runs a task, stores its value and says how it went.

Celery's serves chords, callbacks, signals and more, and looks for each of them with every task. A call of a
node rarely has any; when it has, Celery's tracer takes it.
"""

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

from billiard.einfo import ExceptionInfo
from celery._state import _task_stack
from celery.app import trace as celerys
from celery.app.task import Context
from celery.exceptions import Ignore, Reject
from celery.loaders.app import AppLoader
from celery.signals import task_postrun, task_prerun, task_success
from celery.states import FAILURE, IGNORED, REJECTED

from ditto_tasks.transport.connection import REDIS_ERRORS

__all__ = ["Tracer", "short_tracer"]

Tracer = Callable[..., Any]

_KNOWN = frozenset(vars(Context)) | {"lang", "task", "argsrepr", "kwargsrepr", "compression"}


class NodeContext(Context):
    """What Celery's context of a task is, made with less looking around.

    Args:
        request: what the message said; not changed.
        args: of the task.
        kwargs: likewise.
    """

    def __init__(self, request: dict[str, Any], args: Any, kwargs: Any) -> None:
        self.__dict__.update(request, args=args, kwargs=kwargs, called_directly=False)
        self._message = request  # what is noted in this context is no header
        limits = request.get("timelimit")
        if limits:
            self.time_limit, self.soft_time_limit = limits

    @cached_property
    def headers(self) -> dict[str, Any]:
        """The headers that are none of Celery's."""
        return {name: value for name, value in self._message.items() if name not in _KNOWN}


def short_tracer(task: Any, celerys_tracer: Tracer) -> Tracer:
    """Make the tracer of a node's task out of the one that Celery built for it.

    What it calls is what Celery's would: the task, the result backend, and what handles errors.
    """
    if _needs_celerys(task, celerys_tracer):
        return celerys_tracer

    def trace(uuid: str, args: Any, kwargs: Any, request: dict[str, Any]) -> Any:
        if _is_listened_to() or _is_long(request):
            return celerys_tracer(uuid, args, kwargs, request)
        started = time.monotonic()
        context = NodeContext(request, args, kwargs)
        _task_stack.push(task)
        task.request_stack.push(context)
        try:
            backend = task.backend
            ending = backend.ending(uuid, context)  # while the call is being begun
            done = task.execute(context, *args, **kwargs)
            backend.end(ending, done.result, context)
        except Exception as error:
            return _raised(task, context, error)
        finally:
            _task_stack.pop()
            task.request_stack.pop()
        runtime = time.monotonic() - started
        _tell_success(task, context, done.status, runtime)
        return celerys.trace_ok_t(None, None, runtime, done.status)

    return trace


def _needs_celerys(task: Any, tracer: Tracer) -> bool:
    """Tell whether something is asked of each of a task's calls that only Celery's tracer does."""
    conf = task.app.conf
    return bool(
        task.track_started
        or task.ignore_result
        or conf.worker_deduplicate_successful_tasks
        or type(task.app.loader) is not AppLoader
        or hasattr(tracer, "__wrapped__")  # somebody watches it
    )


def _is_listened_to() -> bool:
    return bool(task_prerun.receivers or task_postrun.receivers or task_success.receivers)


def _is_long(request: dict[str, Any]) -> bool:
    """Tell whether a message brought along what only Celery's tracer serves."""
    of = request.get
    has_embedded = of("callbacks") or of("errbacks") or of("chain") or of("chord")
    return bool(has_embedded or of("group") or of("ignore_result") or "headers" in request)


def _raised(task: Any, context: Any, error: Exception) -> Any:
    """Have Celery handle what a task raised, within the `except` block that caught it."""
    if isinstance(error, (Ignore, Reject)):
        info = celerys.TraceInfo(IGNORED if isinstance(error, Ignore) else REJECTED, error)
        returned = ExceptionInfo(internal=True)
        info.handle_ignore(task, context)  # a reject is handled in the same way
    else:
        info = celerys.TraceInfo(FAILURE, error)
        try:
            returned = info.handle_error_state(task, context)
        except REDIS_ERRORS as unstored:  # for which its request gives the call back
            info, returned = celerys.TraceInfo(FAILURE, unstored), ExceptionInfo(internal=True)
    celerys.traceback_clear(error)
    return celerys.trace_ok_t(returned, info, None, None)


def _tell_success(task: Any, context: Any, status: str, runtime: float) -> None:
    if celerys.logger.isEnabledFor(celerys.logging.INFO):
        celerys.info(
            celerys.LOG_SUCCESS,
            {
                "id": context.id,
                "name": context.shadow or task.name,
                "return_value": status,
                "runtime": runtime,
                "args": context.get("argsrepr"),
                "kwargs": context.get("kwargsrepr"),
            },
        )
