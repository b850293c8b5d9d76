"""What Celery's worker holds for each call that it runs: acknowledging, revoking, and a process that died."""

from typing import Any

from billiard.exceptions import WorkerLostError
from celery.worker.request import Request
from celery.worker.state import revoked, task_ready

from ditto_tasks.transport.connection import REDIS_ERRORS

__all__ = ["REVOKED", "NodeRequest"]

REVOKED = "revoked"  # the reason of such a cancel


class NodeRequest(Request):
    """A request whose revoke is a cancel, and whose lost process gives the call back.

    A revoked call is run all the same, with its token set: so it ends as its node ends a cancelled call.
    """

    acknowledged: bool

    def acknowledge(self) -> None:
        """Settle the message now, from whatever thread runs the call: the loop need not turn for it."""
        if not self.acknowledged:
            self.message.channel.qos.ack(self.message.delivery_tag)
            self.acknowledged = True

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
