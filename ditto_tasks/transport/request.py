"""What Celery's worker holds for each call that it runs: acknowledging, revoking, and a process that died."""

from typing import Any

from billiard.exceptions import WorkerLostError
from celery.exceptions import InvalidTaskError
from celery.worker.request import Request
from celery.worker.state import revoked, task_ready
from celery.worker.strategy import default
from kombu.exceptions import ContentDisallowed

from ditto_tasks.transport.connection import REDIS_ERRORS
from ditto_tasks.transport.streams import NotATask, StreamChannel

__all__ = ["REVOKED", "NodeRequest", "node_strategy"]

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


def node_strategy(task: Any, app: Any, consumer: Any, **options: Any) -> Any:
    """Make Celery's handler of a task's messages, which lets only such in as it survives.

    The handler raises:
        NotATask: the message came from a stream and is none of a task.
        InvalidTaskError: it came from elsewhere; Celery's worker refuses it.
    """
    handle = default(task, app, consumer, **options)

    def handle_checked(message: Any, *rest: Any, **named: Any) -> Any:
        if not _is_of_a_task(message):
            from_stream = isinstance(message.channel, StreamChannel)
            raise (NotATask if from_stream else InvalidTaskError)("its body or headers are none of a task")
        return handle(message, *rest, **named)

    return handle_checked


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
