"""A walk over store and index: which records a run looks at, in which order, and from where it goes on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import MemoryNodeError
from ditto_tasks.contracts.index import VectorIndex
from ditto_tasks.contracts.memory import (
    ChangeFeed,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemoryStore,
)
from providers.embedding.records import record_digest
from providers.indexes.look import Look, Looks, is_indexed

__all__ = ["Phase", "Place", "Step", "Walk"]

Phase = Literal["records", "changes"]
"""What is walked: all records and entries, then what changed meanwhile."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a walk goes on.

    Attributes:
        cursor: of the records; None: their beginning.
        entry: the id of the last one that was held against them; None: none was.
        since: where changes are followed from; None: the store does not tell them.
    """

    phase: Phase
    cursor: str | None = None
    entry: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A page of the walk.

    Attributes:
        ids: of the records that are to be brought up; may be empty.
        scanned: how many records were looked at.
        unchanged: how many of those have the entry that they should, and are not among `ids`.
        place: where to go on once the step is done.
        seen: what the walk has read of the records; None: not what whoever brings them up must know.
    """

    ids: tuple[str, ...]
    place: Place
    scanned: int = 0
    unchanged: int = 0
    seen: Look | None = None


class Walk:
    """Plans one pass over a target; reads, and changes nothing.

    Args:
        page_size: records in a step.
        skipped: ids of records in which reindexing keeps what it knows, and which change with its steps.
    """

    def __init__(
        self,
        store: MemoryStore,
        index: VectorIndex,
        *,
        page_size: int,
        skipped: frozenset[str],
        call: Call,
    ) -> None:
        self._store = store
        self._index = index
        self._page_size = page_size
        self._skipped = skipped
        self._call = call
        self._looks = Looks(store, index, call)

    def begin(self, since: str | None) -> Place:
        """Return the place where a pass begins.

        Args:
            since: up to where the index follows the store's changes; None: that is not known.
        """
        if not isinstance(self._store, ChangeFeed):
            return Place("records")
        if since is not None and self._can_follow(self._store, since):
            return Place("changes", since=since)
        return Place("records", since=self._store.change_cursor(self._call))

    def resume(self, place: Place) -> Place:
        """Return the place, or the beginning when it is not known since when the store has changes, or the
        store has forgotten them."""
        if not isinstance(self._store, ChangeFeed):
            return place
        is_known = place.since is not None and self._can_follow(self._store, place.since)
        return place if is_known else self.begin(None)

    def steps(self, place: Place) -> Iterator[Step]:
        """Go on from a place to the end of the pass.

        Raises:
            MemoryNodeError: of the store; CURSOR_EXPIRED when it fell too far behind its changes.
            RetrievalError: of the index.
        """
        if place.phase == "records":
            yield from self._records(place)
        if place.since is not None and isinstance(self._store, ChangeFeed):
            yield from self._changes(self._store, place.since)

    def _can_follow(self, feed: ChangeFeed, since: str) -> bool:
        try:
            feed.changes(since, limit=1, call=self._call)
        except MemoryNodeError as error:
            if error.code not in ("CURSOR_EXPIRED", "INVALID_INPUT"):  # the latter: another store's
                raise
            return False
        return True

    def _records(self, place: Place) -> Iterator[Step]:
        """Read all records and all entries, both in the order of their ids, and hold them against each other.

        A step has the records of a page whose entries are not theirs, and the entries up to its end that
        belong to no record of it. In a store that lists in another order these are not gone after all, as
        whoever brings them up finds out.
        """
        is_last = False
        while not is_last:
            self._call.check()
            since = self._looks.now()
            page = MemoryQueryOutput.from_wire(self._store.query(self._query(place.cursor), self._call))
            is_last = page.next_cursor is None
            end = None if is_last else page.items[-1].id
            records = {record.id: record for record in page.items if is_indexed(record)}
            known: dict[str, str] = {}
            others: list[str] = []
            for id, digest in self._entries(place.entry, end):
                if id in records:
                    known[id] = digest
                else:
                    others.append(id)
                if len(others) == self._page_size:
                    yield Step(tuple(others), replace(place, entry=id))
                    others.clear()
            ids = [id for id, record in records.items() if not _is_current(record, known.get(id))]
            place = replace(place, cursor=page.next_cursor, entry=end)
            there = Place("changes", since=place.since) if is_last else place
            stale = {id: known[id] for id in ids if id in known}
            seen = None if others else Look({id: records[id] for id in ids}, stale, since)
            yield Step((*ids, *others), there, len(records), len(records) - len(ids), seen)

    def _entries(self, after: str | None, last: str | None) -> Iterator[tuple[str, str]]:
        """Read ids with digests from an id on, without it, to the last one; None: to the end."""
        while True:
            page = self._index.page(after, limit=self._page_size, call=self._call)
            for id, digest in page:
                if last is not None and id > last:
                    return
                yield id, digest
            if len(page) < self._page_size or page[-1][0] == last:
                return
            after = page[-1][0]

    def _query(self, cursor: str | None) -> MemoryQueryInput:
        if cursor is None:
            return MemoryQueryInput(limit=self._page_size)
        return MemoryQueryInput(limit=self._page_size, cursor=cursor)

    def _changes(self, feed: ChangeFeed, since: str) -> Iterator[Step]:
        while True:
            self._call.check()
            page = feed.changes(since, limit=self._page_size, call=self._call)
            since = page.cursor
            ids = tuple(id for id in page.ids if id not in self._skipped)
            yield Step(ids, Place("changes", since=since), scanned=len(ids))
            if page.is_last:
                return


def _is_current(record: MemoryItem, digest: str | None) -> bool:
    return digest is not None and digest == record_digest(record)
