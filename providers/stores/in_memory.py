"""A store in this process' memory: the reference behaviour of the contract suite."""

import math
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError
from ditto_tasks.contracts.json_value import decode_json
from ditto_tasks.contracts.memory import (
    DEFAULT_QUERY_LIMIT,
    DEFAULT_SEARCH_LIMIT,
    ChangePage,
    MemoryDeleteInput,
    MemoryDeleteOutput,
    MemoryGetInput,
    MemoryHit,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemorySearchInput,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from providers.stores._in_memory_feed import ChangeLog
from providers.stores._paging import Paging, SortField, SortValue, checked_filter, order_key
from providers.stores._rows import (
    Row,
    checked_query,
    checked_reuse,
    item,
    json_text,
    metadata_text,
    patched,
    refuse_repeated,
)
from providers.text import contains_literally, literal, phrases, search_text, words

__all__ = ["InMemoryStore", "open_in_memory"]

K1, B = 1.2, 0.75  # of bm25; FTS5 has the same, https://www.sqlite.org/fts5.html#the_bm25_function
RAREST = 1e-6  # weight of a phrase that most records hold, as in FTS5: scores stay positive

Phrase = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A row with what filters, orders and searches ask of it."""

    row: Row
    metadata: Mapping[str, object]
    words: tuple[str, ...]


class InMemoryStore:
    """Keeps records in a dict; safe to call from many threads.

    A search ranks by bm25 over whole words: unlike the SQL stores, it takes `run` and `running` for two.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}  # by id, oldest first
        self._ids: dict[str, str] = {}  # by key
        self._changes = ChangeLog()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Refuse further calls; closing twice does nothing."""
        self._closed = True

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Return the records with these ids or keys."""
        self._check(call)
        with self._lock:
            ids = [*(request.ids or ()), *(self._ids.get(key, "") for key in request.keys or ())]
            rows = [self._entries[id].row for id in dict.fromkeys(ids) if id in self._entries]
        return [item(row) for row in rows]

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        """Return one page; the order of values is `_paging`'s."""
        self._check(call)
        paging = Paging.of(request)
        limit = request.limit or DEFAULT_QUERY_LIMIT
        listed = [(_sort_values(entry, paging.fields), entry.row) for entry in self._matching(paging.filter)]
        for place, field in reversed(list(enumerate(paging.fields))):
            listed.sort(key=lambda pair, place=place: pair[0][place], reverse=field.descending)  # type: ignore[misc]
        if paging.after is not None:
            listed = [pair for pair in listed if _is_after(pair[0], paging.after, paging.fields)]
        page = listed[:limit]
        items = tuple(item(row) for _, row in page)
        if len(listed) <= limit:
            return trusted(MemoryQueryOutput, {"items": items})
        return trusted(MemoryQueryOutput, {"items": items, "next_cursor": paging.cursor(page[-1][0])})

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Sequence[MemoryHit]:
        """Return the records that hold one of the query's phrases, best bm25 first; none for a blank query.

        Of equal scores, the older record is first. A query without words is looked for literally, and found
        in the order of ids with the score 1.
        """
        self._check(call)
        query = checked_query(request)
        filter = checked_filter(request.filter)
        wanted = phrases(query)
        scored = self._ranked(wanted, filter) if wanted else self._literal(literal(query), filter)
        limit = request.limit or DEFAULT_SEARCH_LIMIT
        return [trusted(MemoryHit, {"memory": item(row), "score": score}) for score, row in scored[:limit]]

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Create the records, all or none; absent metadata differs from an empty object."""
        self._check(call)
        refuse_repeated(request.memories)
        entries = [
            _entry(Row(str(uuid.uuid4()), draft.key, json_text(draft.content), metadata_text(draft.metadata)))
            for draft in request.memories
        ]
        with self._lock:
            for place, draft in enumerate(request.memories):
                existing = self._ids.get(draft.key) if draft.key is not None else None
                if existing is not None:
                    entries[place] = self._entries[existing]
                    checked_reuse(entries[place].row, draft)
            for entry in entries:
                if entry.row.id not in self._entries:
                    self._keep(entry)
        return [item(entry.row) for entry in entries]

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Change the records, all or none."""
        self._check(call)
        with self._lock:
            for patch in request.memories:
                if patch.id not in self._entries:
                    raise MemoryNodeError("NOT_FOUND", f"there is no record {patch.id!r:.80}")
            entries = [_entry(patched(self._entries[patch.id].row, patch)) for patch in request.memories]
            for entry in entries:
                self._keep(entry)
        return [item(entry.row) for entry in entries]

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        """Remove the records and return the ids that were there, in the order asked."""
        self._check(call)
        with self._lock:
            deleted = tuple(id for id in dict.fromkeys(request.ids) if id in self._entries)
            for id in deleted:
                key = self._entries.pop(id).row.key
                if key is not None:
                    del self._ids[key]
            self._changes.deleted(deleted)
        return trusted(MemoryDeleteOutput, {"deleted": deleted})

    def change_cursor(self, call: Call = NO_CALL) -> str:
        """Return the cursor of the present."""
        self._check(call)
        with self._lock:
            return self._changes.cursor()

    def changes(self, cursor: str, *, limit: int, call: Call = NO_CALL) -> ChangePage:
        """Return what changed; revisions rise as writes follow."""
        self._check(call)
        with self._lock:
            return self._changes.page(cursor, limit)

    def _check(self, call: Call) -> None:
        call.check()
        if self._closed:
            raise MemoryNodeError("STORE_UNAVAILABLE", "The memory store is closed")

    def _keep(self, entry: _Entry) -> None:
        self._entries[entry.row.id] = entry
        self._changes.changed(entry.row.id)
        if entry.row.key is not None:
            self._ids[entry.row.key] = entry.row.id

    def _matching(self, filter: Mapping[str, str]) -> list[_Entry]:
        with self._lock:
            entries = list(self._entries.values())
        return [entry for entry in entries if _matches(entry, filter)]

    def _literal(self, needle: str, filter: Mapping[str, str]) -> list[tuple[float, Row]]:
        if not needle:
            return []
        rows = sorted(entry.row for entry in self._matching(filter))
        return [(1.0, row) for row in rows if contains_literally(decode_json(row.content), needle)]

    def _ranked(self, wanted: Sequence[Phrase], filter: Mapping[str, str]) -> list[tuple[float, Row]]:
        """Score over all records, as FTS5 does, and keep those that the filter lets through."""
        entries = self._matching({})
        scores = _bm25(wanted, [entry.words for entry in entries])
        scored = [
            (score, entry.row)
            for score, entry in zip(scores, entries, strict=True)
            if score > 0 and _matches(entry, filter)
        ]
        return sorted(scored, key=lambda pair: -pair[0])


def open_in_memory(rest: str) -> InMemoryStore:
    """Open the store of `memory://`, which has nothing after it."""
    if rest:
        raise InvalidDefinition("a store in memory has no name: use memory://")
    return InMemoryStore()


def _entry(row: Row) -> _Entry:
    metadata = decode_json(row.metadata) if row.metadata is not None else {}
    return _Entry(row, metadata, tuple(words(search_text(decode_json(row.content)))))


def _matches(entry: _Entry, filter: Mapping[str, str]) -> bool:
    return all(
        (entry.row.key if field == "key" else entry.metadata.get(field)) == value
        for field, value in filter.items()
    )


def _sort_values(entry: _Entry, fields: Sequence[SortField]) -> tuple[SortValue, ...]:
    columns = {"id": entry.row.id, "key": entry.row.key or ""}
    return tuple(
        columns[field.name] if field.is_column else order_key(entry.metadata.get(field.name))
        for field in fields
    )


def _is_after(values: Sequence[SortValue], cursor: Sequence[SortValue], fields: Sequence[SortField]) -> bool:
    for value, place, field in zip(values, cursor, fields, strict=True):
        if value != place:
            return (value < place) if field.descending else (value > place)  # type: ignore[operator]
    return False


def _bm25(wanted: Sequence[Phrase], texts: Sequence[Sequence[str]]) -> list[float]:
    """Score texts by the phrases in them; 0 for those that hold none.

    Source: Robertson and Zaragoza, 2009, doi:10.1561/1500000019, with the weights of FTS5.
    """
    scores = [0.0] * len(texts)
    mean_length = sum(map(len, texts)) / max(1, len(texts))
    for phrase in wanted:
        counts = [_occurrences(phrase, text) for text in texts]
        holding = sum(count > 0 for count in counts)
        weight = max(math.log((len(texts) - holding + 0.5) / (holding + 0.5)), RAREST)
        for place, count in enumerate(counts):
            if count:
                length = len(texts[place]) / mean_length
                scores[place] += weight * count * (K1 + 1) / (count + K1 * (1 - B + B * length))
    return scores


def _occurrences(phrase: Phrase, text: Sequence[str]) -> int:
    size = len(phrase)
    return sum(
        word == phrase[0] and tuple(text[place : place + size]) == phrase for place, word in enumerate(text)
    )
