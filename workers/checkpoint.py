"""Where a reindexing run is: kept as a record of the store that it reads, so that any worker finds it."""

from typing import Any, Literal

from pydantic import ValidationError

from ditto_tasks.contracts.base import Contract, ListOf, Maybe
from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.memory import MemoryStore
from ditto_tasks.contracts.reindex import (
    NO_DRIFT,
    Drift,
    Mode,
    ReindexFailure,
    ReindexPageOutput,
    ReindexReport,
)
from ditto_tasks.transport.runs import RunLost
from providers.indexes.kept import KeptRecord
from providers.indexes.walk import Phase, Place, Step

__all__ = ["LISTED", "Checkpoint", "Checkpoints"]

LISTED = 100  # failures in a report; all are counted

State = Literal["running", "cancelled", "stopped", "failed", "finished"]
"""`stopped`: by an error, to be taken up again; `failed`: by too many failures, to begin anew."""


class Checkpoint(Contract):
    """A run with its place and its counts; frozen: each step makes the next one.

    Attributes:
        execution: the call that runs it, or ran it last.
        token: that of the lease under which it was written; see `Runs`.
        generation: that which is brought up.
        index: tells its index from others.
        cursor, entry, since: of the place.
        expected: how many records it will look at, about; 0: that is not known.
        started_at: seconds since the epoch.
    """

    run: str
    target: str
    mode: Mode
    execution: str
    token: int
    generation: int = 1
    index: str = ""
    state: State = "running"
    passes: int = 1
    answered: int = 0
    phase: Phase = "records"
    cursor: Maybe[str] = None
    entry: Maybe[str] = None
    since: Maybe[str] = None
    expected: int = 0
    scanned: int = 0
    embedded: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: ListOf[ReindexFailure] = ()
    failed_count: int = 0
    drift: Drift = NO_DRIFT
    started_at: float = 0.0
    updated_at: float = 0.0

    @property
    def place(self) -> Place:
        """Where the run goes on."""
        return Place(self.phase, self.cursor, self.entry, self.since)

    @property
    def is_open(self) -> bool:
        """Whether another call is to go on where this run was interrupted."""
        return self.state in ("running", "cancelled", "stopped")

    @property
    def has_found_nothing(self) -> bool:
        """Whether its index may be empty, as far as the run knows."""
        return self.phase == "records" and not (self.embedded or self.unchanged)

    @property
    def followed(self) -> str | None:
        """Up to where the index follows the store's changes; None: that is not known."""
        return self.since if self.state == "finished" or self.phase == "changes" else None

    def at(self, place: Place) -> "Checkpoint":
        """Move to a place."""
        return self.with_fields(phase=place.phase, cursor=place.cursor, entry=place.entry, since=place.since)

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
            generation=self.generation,
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
    """The checkpoint of one target's runs, in its store."""

    def __init__(self, store: MemoryStore, target: str) -> None:
        self._record = KeptRecord(store, f"reindex:{target}")

    @property
    def id(self) -> str | None:
        """Of the record; None before it was read or written."""
        return self._record.id

    def read(self, call: Call) -> Checkpoint | None:
        """Return what was written last; None: nothing, or nothing that this version understands."""
        content = self._record.read(call)
        try:
            return None if content is None else Checkpoint.from_wire(content)
        except ValidationError:
            return None

    def write(self, checkpoint: Checkpoint, call: Call) -> None:
        """Put it in the place of the last one.

        Args:
            call: may be another than that of the run, which has no time left when it is cancelled.

        Raises:
            RunLost: another run has written since, under a greater token.
        """
        last = self.read(call)
        if last is not None and last.token > checkpoint.token:
            raise RunLost
        self._record.write(checkpoint.to_json(), call)


def _sum(one: Drift, other: Drift) -> Drift:
    return Drift(
        missing=one.missing + other.missing,
        stale=one.stale + other.stale,
        orphaned=one.orphaned + other.orphaned,
    )
