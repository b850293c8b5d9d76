"""Records in which reindexing keeps what it knows, in the store that it reads: any worker finds them."""

from collections.abc import Mapping, Sequence
from typing import Any

from ditto_tasks.contracts.base import MAX_LIMIT, changed
from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.memory import (
    MemoryGetInput,
    MemoryHit,
    MemoryItem,
    MemorySearchInput,
    MemorySearchProvider,
    MemoryStore,
    MemoryUpdateInput,
    MemoryWriteInput,
)

__all__ = ["KeptRecord", "WithoutKept", "is_kept"]

_PREFIX = "checkpoint:"  # begins their keys
_KEPT = 2  # of a target: where its run is, and its generations


class KeptRecord:
    """One such record.

    Args:
        name: what follows `checkpoint:` in the record's key.

    Attributes:
        key: of the record.
        id: of the record; None before it was read or written.
    """

    def __init__(self, store: MemoryStore, name: str) -> None:
        self._store = store
        self.key = f"{_PREFIX}{name}"
        self.id: str | None = None

    def read(self, call: Call) -> Any:
        """Return what was written last; None: nothing."""
        asked = MemoryGetInput(ids=(), keys=(self.key,))
        found = [MemoryItem.from_wire(record) for record in self._store.get(asked, call)]
        self.id = found[0].id if found else None
        return found[0].content if found else None

    def write(self, content: Any, call: Call) -> None:
        """Put it in the place of what was written last; readers see the one or the other.

        Raises:
            MemoryNodeError: KEY_CONFLICT when another wrote the record first; others of the store.
        """
        if self.id is not None:
            patch = {"id": self.id, "content": content}
            self._store.update(MemoryUpdateInput.from_wire({"memories": [patch]}), call)
            return
        draft = {"key": self.key, "content": content, "metadata": {"kind": "checkpoint"}}
        (record,) = self._store.write(MemoryWriteInput.from_wire({"memories": [draft]}), call)
        self.id = MemoryItem.from_wire(record).id


def is_kept(record: MemoryItem) -> bool:
    """Tell whether a record is such a one: it has no entry in an index."""
    return record.key is not None and record.key.startswith(_PREFIX)


class WithoutKept:
    """A memory search that finds no such record; for a store that holds those of one target."""

    def __init__(self, search: MemorySearchProvider) -> None:
        self._search = search

    def search(
        self, request: MemorySearchInput, call: Call = NO_CALL
    ) -> Sequence[MemoryHit | Mapping[str, Any]]:
        """Search; raises what the search below does."""
        if request.limit is None:
            return [hit for hit in self._search.search(request, call) if not _is_kept_hit(hit)]
        asked = changed(request, limit=min(request.limit + _KEPT, MAX_LIMIT))
        found = [hit for hit in self._search.search(asked, call) if not _is_kept_hit(hit)]
        return found[: request.limit]


def _is_kept_hit(hit: MemoryHit | Mapping[str, Any]) -> bool:
    key = hit.memory.key if isinstance(hit, MemoryHit) else hit["memory"].get("key")
    return key is not None and key.startswith(_PREFIX)
