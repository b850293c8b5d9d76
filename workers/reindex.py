"""The REINDEX worker: pages of records embedded anew where they have changed."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from ditto_tasks.contracts.base import describe
from ditto_tasks.contracts.errors import NodeError, RetrievalError
from ditto_tasks.contracts.reindex import ReindexPageInput
from ditto_tasks.contracts.retrieval import RetrievalCall
from ditto_tasks.worker import Worker, WorkerContext
from providers.retrieval.records import RecordTarget

__all__ = ["reindex_worker"]


def reindex_worker(
    targets: Callable[[], Mapping[str, RecordTarget]], *, concurrency: int | None = None
) -> Worker:
    """Define a worker for REINDEX.PAGE and REINDEX.STATUS.

    Args:
        targets: opens the targets by name, called once a process that runs the worker, and closed with it.
        concurrency: calls that one process runs at once; None: `workers.reindex.concurrency` in a Celery
            worker, no limit in-process.

    Raises:
        InvalidDefinition: the concurrency is out of range.
    """
    return Worker(
        "REINDEX",
        {"REINDEX.PAGE": _page, "REINDEX.STATUS": _status},
        concurrency=concurrency,
        resources=targets,
        dispose=_close,
    )


def _page(input: Any, context: WorkerContext) -> dict[str, Any]:
    try:
        request = ReindexPageInput.from_wire(input)
    except ValidationError as error:
        raise NodeError("INVALID_INPUT", describe(error)) from None
    target: RecordTarget | None = context.resources.get(request.target)
    if target is None:
        raise RetrievalError(
            "RETRIEVAL_TARGET_NOT_FOUND",
            f"there is no target {request.target!r:.80}: there are {', '.join(context.resources)}",
        )
    return target.bring_up(request.ids, _call(context)).to_wire()


def _status(_: Any, context: WorkerContext) -> dict[str, Any]:
    call = _call(context)
    return {"targets": [target.status(name, call).to_wire() for name, target in context.resources.items()]}


def _call(context: WorkerContext) -> RetrievalCall:
    return RetrievalCall.of(context.call, context.config.workers.retrieval.defaults())


def _close(targets: Mapping[str, RecordTarget]) -> None:
    for target in targets.values():
        target.close()
