"""Records in which reindexing keeps what it knows, in the store that it reads: any worker finds them."""

from typing import Any

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.memory import (
    MemoryGetInput,
    MemoryItem,
    MemoryStore,
    MemoryUpdateInput,
    MemoryWriteInput,
)

__all__ = ["KeptRecord", "is_kept"]

_PREFIX = "checkpoint:"  # begins their keys


class KeptRecord:
    """One such record.

    Args:
        key: what follows `checkpoint:` in the record's.

    Attributes:
        id: of the record; None before it was read or written.
    """

    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store = store
        self._key = f"{_PREFIX}{key}"
        self.id: str | None = None

    def read(self, call: Call) -> Any:
        """Return what was written last; None: nothing."""
        asked = MemoryGetInput(ids=(), keys=(self._key,))
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
        draft = {"key": self._key, "content": content, "metadata": {"kind": "checkpoint"}}
        (record,) = self._store.write(MemoryWriteInput.from_wire({"memories": [draft]}), call)
        self.id = MemoryItem.from_wire(record).id


def is_kept(record: MemoryItem) -> bool:
    """Tell whether a record is such a one: it has no entry in an index."""
    return record.key is not None and record.key.startswith(_PREFIX)
