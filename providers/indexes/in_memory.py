"""An index in this process' memory: the reference behaviour of the contract suite."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError
from ditto_tasks.contracts.index import IndexEntry, IndexHit, IndexManifest
from providers.indexes._manifest import check_definition
from providers.indexes._records import filter_values, index_filter, read_record, record_text
from providers.indexes._vectors import Vector, checked_entries, unit_vector

__all__ = ["InMemoryIndex", "open_in_memory"]

SCORE_DIGITS = 12  # the product of equal vectors differs beyond them with their place in the matrix


@dataclass(frozen=True, slots=True)
class _Kept:
    """An entry with what filters ask of it."""

    text: str
    digest: str
    filtered: Mapping[str, str | None]
    vector: Vector


@dataclass(frozen=True, slots=True)
class _Table:
    """All entries in the order of their ids, their vectors as one matrix."""

    ids: list[str]
    entries: list[_Kept]
    matrix: npt.NDArray[np.float64]


class InMemoryIndex:
    """Keeps entries in a dict and compares a query with all of them, exactly; safe to call from many threads.

    Raises:
        InvalidDefinition: no index can have this name or manifest.
    """

    def __init__(self, name: str, manifest: IndexManifest) -> None:
        check_definition(name, manifest)
        self._manifest = manifest
        self._lock = threading.Lock()
        self._entries: dict[str, _Kept] = {}  # by id
        self._table: _Table | None = None  # of the entries; None after a change
        self._closed = False
        self._dropped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def manifest(self) -> IndexManifest:
        """What made the vectors."""
        return self._manifest

    def close(self) -> None:
        """Refuse further calls; closing twice does nothing."""
        self._closed = True

    def drop(self, call: Call = NO_CALL) -> None:
        """Forget the entries and close; dropping twice does nothing."""
        if self._dropped:
            return
        self._check(call)
        with self._lock:
            self._entries, self._table = {}, None
        self._dropped = True
        self.close()

    def upsert(self, entries: Sequence[IndexEntry], call: Call = NO_CALL) -> None:
        """Put the entries in the place of those with the same ids, all or none."""
        self._check(call)
        kept = {
            entry.record.id: _Kept(
                record_text(entry.record), entry.digest, filter_values(entry.record), vector
            )
            for entry, vector in checked_entries(entries, self._manifest.dimensions)
        }
        with self._lock:
            self._entries.update(kept)
            self._table = None

    def delete(self, ids: Sequence[str], call: Call = NO_CALL) -> Sequence[str]:
        """Remove the records and return the ids that were there, in the order asked."""
        self._check(call)
        with self._lock:
            deleted = [id for id in dict.fromkeys(ids) if id in self._entries]
            for id in deleted:
                del self._entries[id]
            self._table = None
        return deleted

    def search(
        self,
        vector: Sequence[float],
        *,
        limit: int,
        filter: Mapping[str, Any] | None = None,
        call: Call = NO_CALL,
    ) -> Sequence[IndexHit]:
        """Return the nearest records, nearest first, ties by id."""
        self._check(call)
        wanted = index_filter(filter)
        query = unit_vector(vector, self._manifest.dimensions)
        table = self._listed()
        scores = np.clip(np.round(table.matrix @ query, SCORE_DIGITS), -1.0, 1.0)
        nearest = np.argsort(-scores, kind="stable")  # equal ones stay in the order of ids
        matching = (place for place in nearest if _matches(table.entries[place], wanted))
        return [
            IndexHit(read_record(table.entries[place].text), float(scores[place]))
            for place, _ in zip(matching, range(limit), strict=False)
        ]

    def digests(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, str]:
        """Return the digest of each of these records that is there."""
        self._check(call)
        with self._lock:
            return {id: self._entries[id].digest for id in ids if id in self._entries}

    def vectors(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, Vector]:
        """Return the vector of each of these records that is there."""
        self._check(call)
        with self._lock:
            return {id: self._entries[id].vector for id in ids if id in self._entries}

    def page(self, after: str | None, *, limit: int, call: Call = NO_CALL) -> Sequence[tuple[str, str]]:
        """Return ids with digests in the order of ids."""
        self._check(call)
        table = self._listed()
        listed = [
            (id, entry.digest)
            for id, entry in zip(table.ids, table.entries, strict=True)
            if after is None or id > after
        ]
        return listed[:limit]

    def count(self, call: Call = NO_CALL) -> int:
        """Count the records."""
        self._check(call)
        return len(self._entries)

    def _check(self, call: Call) -> None:
        call.check()
        if self._closed:
            raise RetrievalError("RETRIEVAL_PROVIDER_UNAVAILABLE", "The index is closed")

    def _listed(self) -> _Table:
        with self._lock:
            if self._table is None:
                ids = sorted(self._entries)
                entries = [self._entries[id] for id in ids]
                shape = (len(ids), self._manifest.dimensions)
                matrix = np.array([entry.vector for entry in entries]).reshape(shape)
                self._table = _Table(ids, entries, matrix)
            return self._table


def open_in_memory(rest: str, *, name: str, manifest: IndexManifest) -> InMemoryIndex:
    """Open the index of `memory://`, which has nothing after it; it starts empty."""
    if rest:
        raise InvalidDefinition("an index in memory has no address: use memory://")
    return InMemoryIndex(name, manifest)


def _matches(entry: _Kept, filter: Mapping[str, str]) -> bool:
    return all(entry.filtered[field] == value for field, value in filter.items())
