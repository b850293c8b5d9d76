"""Where a reindexing run is: kept as a record of the store that it reads, so that any worker finds it."""

from typing import Any, Literal

from pydantic import ValidationError

from ditto_tasks.contracts.base import Contract, ListOf, Maybe
from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.memory import (
    MemoryGetInput,
    MemoryItem,
    MemoryStore,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.reindex import Drift, Mode, ReindexFailure, ReindexPageOutput, ReindexReport
from ditto_tasks.transport.runs import RunLost
from providers.indexes.walk import Phase, Place, Step

__all__ = ["LISTED", "Checkpoint", "Checkpoints", "checkpoint_key"]

LISTED = 100  # failures in a report; all are counted

State = Literal["running", "cancelled", "stopped", "failed", "finished"]
"""`stopped`: by an error, to be taken up again; `failed`: by too many failures, to begin anew."""


class Checkpoint(Contract):
    """A run with its place and its counts; frozen: each step makes the next one.

    Attributes:
        execution: the call that runs it, or ran it last.
        token: that of the lease under which it was written; see `Runs`.
        index: names the index that was brought up.
        cursor, since: of the place.
        started_at: seconds since the epoch.
    """

    run: str
    target: str
    mode: Mode
    execution: str
    token: int
    index: str = ""
    state: State = "running"
    passes: int = 1
    answered: int = 0
    phase: Phase = "records"
    cursor: Maybe[str] = None
    since: Maybe[str] = None
    scanned: int = 0
    embedded: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: ListOf[ReindexFailure] = ()
    failed_count: int = 0
    drift: Drift = Drift(missing=0, stale=0, orphaned=0)
    started_at: float = 0.0
    updated_at: float = 0.0

    @property
    def place(self) -> Place:
        """Where the run goes on."""
        return Place(self.phase, self.cursor, self.since)

    @property
    def is_open(self) -> bool:
        """Whether another call is to go on where this run was interrupted."""
        return self.state in ("running", "cancelled", "stopped")

    @property
    def followed(self) -> str | None:
        """Up to where the index follows the store's changes; None: that is not known."""
        return self.since if self.state == "finished" or self.phase == "changes" else None

    def at(self, place: Place) -> "Checkpoint":
        """Move to a place."""
        return self.with_fields(phase=place.phase, cursor=place.cursor, since=place.since)

    def after(self, step: Step, page: ReindexPageOutput) -> "Checkpoint":
        """Count a step that is done, and move on to its place."""
        return self.at(step.place).with_fields(
            scanned=self.scanned + step.scanned,
            embedded=self.embedded + page.embedded,
            unchanged=self.unchanged + step.unchanged + (page.unchanged if step.scanned else 0),
            removed=self.removed + page.removed,
            failed=(*self.failed, *page.failed)[:LISTED],
            failed_count=self.failed_count + len(page.failed),
            drift=_sum(self.drift, page.drift),
        )

    def with_fields(self, **fields: Any) -> "Checkpoint":
        """Make one that differs in these fields."""
        return self.model_copy(update=fields)

    def report(self) -> ReindexReport:
        """Say what the run did."""
        return ReindexReport(
            run=self.run,
            target=self.target,
            mode=self.mode,
            scanned=self.scanned,
            embedded=self.embedded,
            unchanged=self.unchanged,
            removed=self.removed,
            failed=self.failed,
            failed_count=self.failed_count,
            passes=self.passes,
            answered=self.answered,
            seconds=round(self.updated_at - self.started_at, 3),
            drift=self.drift,
        )

    def to_json(self) -> dict[str, Any]:
        """Write all that is known, what it does not have left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Checkpoints:
    """The checkpoint of one target's runs, in its store.

    Attributes:
        id: of the record; None before there is one.
    """

    def __init__(self, store: MemoryStore, target: str) -> None:
        self._store = store
        self._key = checkpoint_key(target)
        self.id: str | None = None

    def read(self, call: Call) -> Checkpoint | None:
        """Return what was written last; None: nothing, or nothing that this version understands."""
        found = [MemoryItem.from_wire(record) for record in self._store.get(self._get(), call)]
        self.id = found[0].id if found else None
        if not found:
            return None
        try:
            return Checkpoint.from_wire(found[0].content)
        except ValidationError:
            return None

    def write(self, checkpoint: Checkpoint, call: Call) -> None:
        """Put it in the place of the last one.

        Args:
            call: may be another than that of the run, which has no time left when it is cancelled.

        Raises:
            RunLost: another run has written since, under a greater token.
        """
        content = checkpoint.to_json()
        last = self.read(call)
        if last is not None and last.token > checkpoint.token:
            raise RunLost
        if self.id is not None:
            patch = {"id": self.id, "content": content}
            self._store.update(MemoryUpdateInput.from_wire({"memories": [patch]}), call)
            return
        draft = {"key": self._key, "content": content, "metadata": {"kind": "checkpoint"}}
        (record,) = self._store.write(MemoryWriteInput.from_wire({"memories": [draft]}), call)
        self.id = MemoryItem.from_wire(record).id

    def _get(self) -> MemoryGetInput:
        return MemoryGetInput(ids=(), keys=(self._key,))


def checkpoint_key(target: str) -> str:
    """Name the record in which the runs of a target keep their place."""
    return f"checkpoint:reindex:{target}"


def _sum(one: Drift, other: Drift) -> Drift:
    return Drift(
        missing=one.missing + other.missing,
        stale=one.stale + other.stale,
        orphaned=one.orphaned + other.orphaned,
    )
