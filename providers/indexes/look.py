"""A look at records and their entries, and which of the records were written since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import MemoryNodeError
from ditto_tasks.contracts.index import VectorIndex
from ditto_tasks.contracts.memory import ChangeFeed, MemoryGetInput, MemoryItem, MemoryStore
from providers.indexes.kept import is_kept

__all__ = ["Look", "Looks", "is_indexed"]

_FOLLOWED = 100  # changes read at once; where more came meanwhile, all records may have been written


@dataclass(frozen=True, slots=True)
class Look:
    """What was read of some records.

    Attributes:
        records: those that are there, by id, without those in which reindexing keeps what it knows.
        entries: the digests of their entries, and of those whose record is not there.
        since: what was written after this is not all in `records`; None: the store does not tell.
    """

    records: Mapping[str, MemoryItem]
    entries: Mapping[str, str]
    since: str | None


class Looks:
    """Looks at the records of a store and at their entries in an index.

    Raises:
        MemoryNodeError: by every method, of the store.
        RetrievalError: by `at`, of the index.
    """

    def __init__(self, store: MemoryStore, index: VectorIndex, call: Call) -> None:
        self._store = store
        self._feed = store if isinstance(store, ChangeFeed) else None
        self._index = index
        self._call = call

    def now(self) -> str | None:
        """Return what a look that begins now has as `since`."""
        return None if self._feed is None else self._feed.change_cursor(self._call)

    def at(self, ids: Sequence[str]) -> Look:
        """Look at these records."""
        since = self.now()
        asked = MemoryGetInput(ids=tuple(ids), keys=())
        found = map(MemoryItem.from_wire, self._store.get(asked, self._call))
        records = {record.id: record for record in found if is_indexed(record)}
        return Look(records, self._index.digests(ids, self._call), since)

    def written(self, ids: tuple[str, ...], look: Look) -> tuple[str, ...]:
        """Return those of the records that were written since a look, or all where that is not known."""
        if self._feed is None or look.since is None or not ids:
            return ids
        try:
            page = self._feed.changes(look.since, limit=_FOLLOWED, call=self._call)
        except MemoryNodeError as error:
            if error.code not in ("CURSOR_EXPIRED", "INVALID_INPUT"):  # the latter: another store's
                raise
            return ids
        changed = set(page.ids)
        return tuple(id for id in ids if id in changed) if page.is_last else ids


def is_indexed(record: MemoryItem) -> bool:
    """Tell whether a record has an entry: one in which reindexing keeps what it knows has none."""
    return not is_kept(record)
