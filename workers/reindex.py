"""The REINDEX worker: whole indexes, and pages of records, brought up to their stores."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from ditto_tasks.contracts.base import Contract, describe
from ditto_tasks.contracts.errors import NodeError, RetrievalError
from ditto_tasks.contracts.reindex import (
    ReindexCheckInput,
    ReindexCheckOutput,
    ReindexPageInput,
    ReindexPageOutput,
    ReindexRollbackInput,
    ReindexRunInput,
)
from ditto_tasks.contracts.retrieval import RetrievalCall
from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.runs import LocalRuns, RedisRuns, Runs
from ditto_tasks.worker import Worker, WorkerContext
from providers.indexes.sync import Differences
from providers.retrieval.records import RecordTarget
from workers.checkpoint import LISTED
from workers.pages import wait_for_turn
from workers.run import Run

__all__ = ["reindex_worker"]

SHOWN = 20  # ids of each kind in what a check answers
_DONE = ("embedded", "unchanged", "removed", "failed", "drift")  # of a report that a page has, too

C = TypeVar("C", bound=Contract)


@dataclass(frozen=True, slots=True)
class _Opened:
    """What one worker has open.

    Attributes:
        runs: who runs what, where no Redis keeps it.
    """

    targets: Mapping[str, RecordTarget]
    runs: LocalRuns = field(default_factory=LocalRuns)

    def target(self, name: str) -> RecordTarget:
        if name not in self.targets:
            raise RetrievalError(
                "RETRIEVAL_TARGET_NOT_FOUND",
                f"there is no target {name!r:.80}: there are {', '.join(self.targets)}",
            )
        return self.targets[name]

    def close(self) -> None:
        for target in self.targets.values():
            target.close()


def reindex_worker(
    targets: Callable[[], Mapping[str, RecordTarget]], *, concurrency: int | None = None
) -> Worker:
    """Define a worker for the nodes of REINDEX.

    Args:
        targets: opens the targets by name, called once a process that runs the worker, and closed with it.
        concurrency: calls that one process runs at once; None: `workers.reindex.concurrency` in a Celery
            worker, no limit in-process.

    Raises:
        InvalidDefinition: the concurrency is out of range.
    """
    return Worker(
        "REINDEX",
        {
            "REINDEX.RUN": _run,
            "REINDEX.ROLLBACK": _roll_back,
            "REINDEX.PAGE": _page,
            "REINDEX.CHECK": _check,
            "REINDEX.STATUS": _status,
        },
        concurrency=concurrency,
        resources=lambda: _Opened(targets()),
        dispose=lambda opened: opened.close(),
    )


def _run(input: Any, context: WorkerContext) -> dict[str, Any]:
    request = _request(ReindexRunInput, input)
    with _runs(context) as runs:
        return _of(request.target, runs, context).run(request.mode)


def _roll_back(input: Any, context: WorkerContext) -> dict[str, Any]:
    request = _request(ReindexRollbackInput, input)
    with _runs(context) as runs:
        return _of(request.target, runs, context).roll_back()


def _of(name: str, runs: Runs, context: WorkerContext) -> Run:
    section = context.config.workers.reindex
    return Run(
        name,
        _opened(context).target(name),
        runs,
        _call(context),
        page_size=section.page_size,
        max_failed_share=section.max_failed_share,
        keep=section.keep_previous,
        limit=_limit(context),
    )


def _page(input: Any, context: WorkerContext) -> dict[str, Any]:
    request = _request(ReindexPageInput, input)
    target = _opened(context).target(request.target)
    return target.bring_up(request.ids, _call(context), generation=request.generation).to_wire()


def _check(input: Any, context: WorkerContext) -> dict[str, Any]:
    request = _request(ReindexCheckInput, input)
    target, call = _opened(context).target(request.target), _call(context)
    found = target.compare(call)
    output = ReindexCheckOutput(
        target=request.target,
        records=found.records,
        generation=found.generation,
        drift=found.drift(),
        wrong_generation=found.wrong_generation,
        missing=tuple(found.missing[:SHOWN]),
        stale=tuple(found.stale[:SHOWN]),
        orphaned=tuple(found.orphaned[:SHOWN]),
    ).to_wire()
    if request.repair and found.is_of_wrong_generation:
        output["repaired"] = _rebuilt(request.target, context).to_wire()
    elif request.repair:
        output["repaired"] = _repaired(target, found, call, context).to_wire()
    return output


def _rebuilt(name: str, context: WorkerContext) -> ReindexPageOutput:
    """Build a generation of the configured identity, and have it searched."""
    with _runs(context) as runs:
        report = _of(name, runs, context).rebuild()
    return ReindexPageOutput.from_wire({field: report[field] for field in _DONE})


def _repaired(
    target: RecordTarget, found: Differences, call: RetrievalCall, context: WorkerContext
) -> ReindexPageOutput:
    """Bring up what differs, and nothing else, a page at a time."""
    ids = (*found.missing, *found.stale, *found.orphaned)
    size, limit = context.config.workers.reindex.page_size, _limit(context)
    pages: list[ReindexPageOutput] = []
    with _runs(context) as runs:
        for start in range(0, len(ids), size):
            wait_for_turn(runs, limit, call, call.check)
            pages.append(target.bring_up(ids[start : start + size], call))
    return ReindexPageOutput(
        embedded=sum(page.embedded for page in pages),
        unchanged=sum(page.unchanged for page in pages),
        removed=sum(page.removed for page in pages),
        failed=tuple(failure for page in pages for failure in page.failed)[:LISTED],
        drift=found.drift(),
    )


def _status(_: Any, context: WorkerContext) -> dict[str, Any]:
    call = _call(context)
    targets = _opened(context).targets
    return {"targets": [target.status(name, call).to_wire() for name, target in targets.items()]}


def _request(contract: type[C], input: Any) -> C:
    try:
        return contract.from_wire(input)
    except ValidationError as error:
        raise NodeError("INVALID_INPUT", describe(error)) from None


def _opened(context: WorkerContext) -> _Opened:
    opened: _Opened = context.resources
    return opened


@contextmanager
def _runs(context: WorkerContext) -> Iterator[Runs]:
    """Lend what keeps runs: Redis, for all processes that share it, or else this worker."""
    config = context.config
    if config.result_url is None:
        yield _opened(context).runs
        return
    with connect(config.result_url) as client:
        yield RedisRuns(client, Keys(config.transport.prefix), kept=int(config.transport.idempotency_expires))


def _limit(context: WorkerContext) -> Limit:
    section = context.config.workers.reindex
    return Limit("reindex", concurrency=section.global_concurrency, per_second=section.rate_per_second)


def _call(context: WorkerContext) -> RetrievalCall:
    return RetrievalCall.of(context.call, context.config.workers.retrieval.defaults())
