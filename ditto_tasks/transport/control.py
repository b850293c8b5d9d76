"""Celery's remote control, where a revoke is a cancel: from Flower, the command line, or any app of ours."""

from typing import Any

from celery.app.control import Control
from celery.worker.control import Panel
from celery.worker.state import active_requests

from ditto_tasks.transport.request import REVOKED, NodeRequest

__all__ = ["NodeControl", "cancel_on_revoke"]


class NodeControl(Control):
    """Leaves a tombstone for each revoked call, so that a revoke holds for workers that start later.

    It speaks kombu's JSON, which any Celery client reads, and which takes all that a worker says of itself.
    """

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        self.mailbox.serializer = "json"

    def revoke(self, task_id: Any, *args: Any, **kwargs: Any) -> Any:
        for execution_id in [task_id] if isinstance(task_id, str) else task_id:
            self.app.backend.cancel(execution_id, REVOKED)
        return super().revoke(task_id, *args, **kwargs)


def cancel_on_revoke() -> None:
    """Make this process's workers cancel running calls on any revoke; Celery's needs `terminate` for that."""
    revoke = Panel.data["revoke"]

    def revoke_and_cancel(state: Any, task_id: Any, **kwargs: Any) -> Any:
        answer = revoke(state, task_id, **kwargs)
        revoked = {task_id} if isinstance(task_id, str) else set(task_id or ())
        for request in list(active_requests):
            if request.id in revoked and isinstance(request, NodeRequest):
                request.terminate(None)
        return answer

    if getattr(revoke, "__name__", "") != revoke_and_cancel.__name__:
        Panel.data["revoke"] = revoke_and_cancel
