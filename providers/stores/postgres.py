"""A store in a PostgreSQL database with full-text search, for the processes of many machines.

A write that was answered is committed; a batch is there whole or not at all. Tables are made on opening, in
the schema that the URL names (`?options=-csearch_path%3Dnotes`), else in the user's default one.
"""

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

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
    MemoryDraft,
    MemoryGetInput,
    MemoryHit,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemorySearchInput,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from providers.stores._feed import ChangeCursor, most_to_forget, not_a_cursor, tombstones_beside
from providers.stores._paging import BY_ID, Paging, checked_filter
from providers.stores._postgres_connections import MAX_CONNECTIONS, Connections, Faults, Line, psycopg
from providers.stores._postgres_sql import (
    CHANGES,
    DELETE,
    FEED,
    INSERT,
    LOCK,
    SELECT_BY_ID,
    SELECT_BY_KEY,
    UPDATE,
    create_schema,
    listing,
    orders_text,
    ranking,
    sort_values,
)
from providers.stores._postgres_text import key_digest, lookup_text, read_text, stored_text
from providers.stores._rows import (
    Row,
    checked_query,
    checked_reuse,
    created,
    item,
    json_text,
    metadata_text,
    patched,
    refuse_repeated,
)
from providers.text import contains_literally, literal, phrases, search_text, words

__all__ = ["PostgresStore", "open_postgres"]

CHUNK = 500  # records that a literal search reads at a time
RACES = 5  # times that a key may be deleted by others between its conflict and the look at its record
LONGEST_WORD = 500  # characters; PostgreSQL's limit is 2,046 bytes
MOST_WORDS = 400_000  # bytes of one record's words; with what goes with them, PostgreSQL's limit is 1 MiB

_SNAPSHOT = re.compile(r"[0-9]{1,18}:[0-9]{1,18}:[0-9,]*\Z")

FAULTS = Faults(
    "The memory store",
    MemoryNodeError,
    busy="STORE_BUSY",
    full="STORE_FULL",
    invalid="INVALID_INPUT",
    unavailable="STORE_UNAVAILABLE",
)


class PostgresStore:
    """Keeps records in a table; opens connections as threads need them, and closes them itself.

    Args:
        rest: of the URL, after `postgresql://`.
        language: whose stems words are compared by, as PostgreSQL's snowball names it; `simple`: as they are.
            It is settled when the tables are made.
        connections: the most that one process has; a call waits for one as long as it may last.

    Raises:
        InvalidDefinition: the URL cannot be read, or the language is unknown.
        StoreUnavailable: the database cannot be reached, or its tables are of a newer version, another
            program or another language.
    """

    def __init__(self, rest: str, *, language: str = "english", connections: int = MAX_CONNECTIONS) -> None:
        if not re.fullmatch("[a-z]+", language):
            raise InvalidDefinition(f"language {language!r:.80}: name it in lower-case letters, as 'english'")
        self._connections = Connections(
            rest, FAULTS, setup=partial(create_schema, language=language), size=connections
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of this process and refuse further calls; closing twice does nothing."""
        self._connections.close()

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Return the records with these ids or keys."""
        call.check()
        rows: dict[str, Row] = {}
        with self._connections.use(call) as line:
            if request.ids:
                ids = [stored_text(id) for id in request.ids]
                rows.update((row.id, row) for row in _rows(line, SELECT_BY_ID, ids))
            if request.keys:
                digests = [key_digest(key) for key in request.keys]
                rows.update((row.id, row) for row in _rows(line, SELECT_BY_KEY, digests))
        return [item(row) for row in rows.values()]

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        """Return one page; the order of values is `_paging`'s.

        By id, a page costs the same wherever it is; any other order reads all records that the filter leaves.
        """
        call.check()
        paging = Paging.of(request)
        limit = request.limit or DEFAULT_QUERY_LIMIT
        statement, values = listing(paging, limit + 1)
        with self._connections.use(call) as line:
            rows = _planned(line, statement, values)
        page = rows[:limit]
        items = tuple(item(_row(row[:4])) for row in page)
        if len(rows) <= limit:
            return trusted(MemoryQueryOutput, {"items": items})
        last = sort_values(paging.fields, page[-1][4:])
        return trusted(MemoryQueryOutput, {"items": items, "next_cursor": paging.cursor(last)})

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Sequence[MemoryHit]:
        """Return the records that hold one of the query's phrases, best bm25 first; none for a blank query.

        Words are compared by their stem. Of equal scores, the older record is first. A query without words is
        looked for literally, which reads every record, and found in the order of ids with the score 1. Of a
        record, phrases are found within the first 16,383 words, words within the first 400,000 bytes of them.
        """
        call.check()
        query = checked_query(request)
        filter = checked_filter(request.filter)
        limit = request.limit or DEFAULT_SEARCH_LIMIT
        wanted = [_clipped(phrase) for phrase in phrases(query)]
        if not wanted:
            return self._literal(literal(query), filter, limit, call)
        statement, values = ranking(wanted, filter, limit)
        with self._connections.use(call) as line:
            rows = _planned(line, statement, values)
        return [_hit(row[:4], row[4]) for row in rows]

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Create the records, all or none; absent metadata differs from an empty object."""
        call.check()
        drafts = request.memories
        refuse_repeated(drafts)
        fresh = {str(uuid.uuid4()): draft for draft in drafts}
        with self._writing(call) as line:
            written = {id: created(id, draft) for id, draft in fresh.items()}
            for _ in range(RACES):
                lost = _insert(line, fresh)
                fresh = {}
                kept = _by_key(line, [draft.key for draft in lost.values() if draft.key is not None])
                for id, draft in lost.items():
                    if draft.key in kept:
                        written[id] = checked_reuse(kept[draft.key], draft)
                    else:
                        fresh[id] = draft  # deleted by another since
                if not fresh:
                    return list(written.values())
        raise MemoryNodeError("STORE_BUSY", "The memory store is busy with other writers; try again")

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Change the records, all or none."""
        call.check()
        patches = request.memories
        with self._writing(call) as line:
            rows = {row.id: row for row in _rows(line, LOCK, [stored_text(patch.id) for patch in patches])}
            for patch in patches:
                if patch.id not in rows:
                    raise MemoryNodeError("NOT_FOUND", f"there is no record {patch.id!r:.80}")
            changed = [patched(rows[patch.id], patch) for patch in patches]
            columns = zip(
                *(
                    (
                        row.id,
                        row.content,
                        row.metadata,
                        *_asked(_metadata(row)),
                        _word_text(patch.content) if patch.has_content else None,
                    )
                    for row, patch in zip(changed, patches, strict=True)
                ),
                strict=True,
            )
            line.execute(UPDATE, [list(column) for column in columns])
        return [item(row) for row in changed]

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        """Remove the records and return the ids that were there, in the order asked."""
        call.check()
        ids = list(dict.fromkeys(request.ids))
        with self._connections.use(call) as line:
            stored = [stored_text(id) for id in ids]
            values = (stored, tombstones_beside(len(ids)), most_to_forget(len(ids)))
            deleted = {id for (id,) in line.execute(DELETE, values)}
        return trusted(MemoryDeleteOutput, {"deleted": tuple(id for id in ids if id in deleted)})

    def change_cursor(self, call: Call = NO_CALL) -> str:
        """Return the cursor of the present, which is a snapshot of transactions."""
        call.check()
        with self._connections.use(call) as line:
            [(store, now)] = line.execute(FEED).fetchall()
        return _cursor(store, seen=now).text()

    def changes(self, cursor: str, *, limit: int, call: Call = NO_CALL) -> ChangePage:
        """Return what changed, in the order in which the changing transactions began to write.

        Changes that a snapshot did not see are told, however old the transaction is that commits them; none
        waits for another. A walk over several pages takes in what its first page could see: its last one has
        more after it if anything was committed meanwhile.
        """
        call.check()
        since = ChangeCursor.read(cursor, limit=limit, rest=3)
        seen, until, id = since.rest
        if not (_SNAPSHOT.match(seen) and (not until or _SNAPSHOT.match(until))):
            raise not_a_cursor()
        values = {"revision": str(since.revision), "id": id, "seen": seen, "limit": limit + 1}
        with self._connections.use(call) as line:
            try:
                rows = line.execute(CHANGES, values, prepare=False).fetchall()
            except psycopg.DataError:  # a snapshot that cannot be, or a text with NUL
                raise not_a_cursor() from None
        store, forgotten, now, *_ = rows[0]
        since.check(store, is_known=forgotten < _oldest(seen) and _newest(seen) <= _newest(now))
        until = until or now
        found = [(revision, id) for *_, revision, id in rows if id is not None]
        ids = tuple(id for _, id in found[:limit])
        if len(found) <= limit:
            return ChangePage(ids, _cursor(store, seen=until).text(), is_last=until == now)
        revision, id = found[limit - 1]
        return ChangePage(ids, ChangeCursor(store, revision, (seen, until, id)).text(), is_last=False)

    @contextmanager
    def _writing(self, call: Call) -> Iterator[Line]:
        """Lend a connection within a transaction that commits at the end, and not at all after an error."""
        with self._connections.use(call) as line, line.transaction():
            yield line

    def _literal(self, needle: str, filter: dict[str, str], limit: int, call: Call) -> list[MemoryHit]:
        if not needle:
            return []
        hits: list[MemoryHit] = []
        paging = Paging(filter, BY_ID, None)
        with self._connections.use(call) as line:
            while len(hits) < limit:
                call.check()
                rows = _planned(line, *listing(paging, CHUNK))
                hits += [
                    _hit(row[:4], 1.0) for row in rows if contains_literally(decode_json(row[2]), needle)
                ]
                if len(rows) < CHUNK:
                    break
                paging = Paging(filter, BY_ID, (rows[-1][0],))
        return hits[:limit]


def open_postgres(rest: str) -> PostgresStore:
    """Open the store of `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    return PostgresStore(rest)


def _cursor(store: str, *, seen: str) -> ChangeCursor:
    """Make the cursor of what a snapshot did not see; within a walk, it also holds the first page's."""
    return ChangeCursor(store, _oldest(seen), (seen, "", ""))


def _oldest(snapshot: str) -> int:
    """Return the id of the oldest transaction that was open."""
    return int(snapshot.split(":")[0])


def _newest(snapshot: str) -> int:
    """Return the id that the next transaction was to have."""
    return int(snapshot.split(":")[1])


def _insert(line: Line, drafts: dict[str, MemoryDraft]) -> dict[str, MemoryDraft]:
    """Insert records by their ids; returns those whose key is taken."""
    if not drafts:
        return {}
    columns = zip(*(_columns(id, draft) for id, draft in drafts.items()), strict=True)
    inserted = {id for (id,) in line.execute(INSERT, [list(column) for column in columns])}
    return {id: draft for id, draft in drafts.items() if id not in inserted}


def _columns(id: str, draft: MemoryDraft) -> tuple[Any, ...]:
    """Return what INSERT takes of a draft."""
    key = draft.key
    return (
        id,
        None if key is None else stored_text(key),
        None if key is None else key_digest(key),
        json_text(draft.content),
        metadata_text(draft.metadata),
        *_asked(draft.metadata),
        _word_text(draft.content),
    )


def _asked(metadata: dict[str, Any] | None) -> tuple[str | None, str | None, str]:
    """Return what filters and orders ask of metadata: namespace, kind, and how each field sorts."""
    fields = metadata or {}
    namespace, kind = (
        lookup_text(value) if isinstance(value, str) else None
        for value in (fields.get("namespace"), fields.get("kind"))
    )
    return namespace, kind, orders_text(fields)


def _word_text(content: Any) -> str:
    """Return the words of a record, separated by spaces, within the limits of PostgreSQL."""
    text = " ".join(_clipped(words(search_text(content))))
    if len(text) < MOST_WORDS // 4:
        return text
    return text.encode()[:MOST_WORDS].decode(errors="ignore").rpartition(" ")[0]


def _clipped(words: Sequence[str]) -> list[str]:
    return [word[:LONGEST_WORD] for word in words]


def _metadata(row: Row) -> dict[str, Any] | None:
    return None if row.metadata is None else decode_json(row.metadata)


def _by_key(line: Line, keys: Sequence[str]) -> dict[str | None, Row]:
    if not keys:
        return {}
    return {row.key: row for row in _rows(line, SELECT_BY_KEY, [key_digest(key) for key in keys])}


def _rows(line: Line, statement: str, values: Sequence[str | bytes]) -> Iterator[Row]:
    return map(_row, line.execute(statement, (list(values),)).fetchall())


def _row(values: Sequence[Any]) -> Row:
    id, key, content, metadata = values
    return Row(id, None if key is None else read_text(key), content, metadata)


def _planned(line: Line, statement: str, values: Sequence[Any]) -> list[Any]:
    """Run a statement whose best plan depends on its values: one that is prepared would be given any."""
    return line.execute(statement, values, prepare=False).fetchall()


def _hit(values: Sequence[Any], score: float) -> MemoryHit:
    return trusted(MemoryHit, {"memory": item(_row(values)), "score": score})
