"""What Celery's worker holds for each call that it runs: acknowledging, revoking, and a process that died."""

from typing import Any

from billiard.exceptions import WorkerLostError
from celery.worker.request import Request
from celery.worker.state import revoked, task_ready

from ditto_tasks.transport.connection import REDIS_ERRORS
from ditto_tasks.transport.streams import StreamChannel

__all__ = ["REVOKED", "NodeRequest"]

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
