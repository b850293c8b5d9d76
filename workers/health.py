"""The nodes through which a worker shows that it takes calls, runs them and answers."""

from collections.abc import Sequence
from typing import Any

from celery import Celery

from ditto_tasks.transport.canary import canary_node
from ditto_tasks.worker import Worker, WorkerContext

__all__ = ["health_worker"]


def health_worker(app: Celery, nodes: Sequence[str]) -> Worker:
    """Define the canaries of a worker app that serves these nodes, one a capability.

    Each answers with the name of the Celery worker that ran it and the nodes of the capability. It looks at
    no store: that the worker answers is all it says.
    """
    by_capability: dict[str, list[str]] = {}
    for node in nodes:
        by_capability.setdefault(node.partition(".")[0], []).append(node)

    def answering(served: list[str]) -> Any:
        def answer(input: Any, context: WorkerContext) -> dict[str, Any]:
            return {"worker": app.current_worker_task.request.hostname, "nodes": served}

        return answer

    canaries = {canary_node(name): answering(served) for name, served in by_capability.items()}
    return Worker("HEALTH", canaries, repeatable=canaries)
