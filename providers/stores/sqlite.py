"""A store in one SQLite file with full-text search (FTS5), for the threads and processes of one machine.

A write that was answered survives a killed process and a power loss; a batch is there whole or not at all.
"""

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

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
from providers.chunks import chunks
from providers.stores._feed import ChangeCursor, change_page, last_to_forget
from providers.stores._paging import BY_ID, Paging, checked_filter
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
from providers.stores._sqlite_connections import Connections, interruptible
from providers.stores._sqlite_sql import (
    BURY,
    CHANGES,
    DELETE,
    DELETE_WORDS,
    FEED,
    FORGET,
    INSERT,
    INSERT_WORDS,
    LAST,
    TOMBSTONES,
    UPDATE,
    UPDATE_WORDS,
    create_schema,
    listing,
    match_expression,
    ranking,
    register_functions,
    selecting,
)
from providers.text import contains_literally, index_text, literal, phrases, search_text

__all__ = ["SqliteStore", "open_sqlite"]

CHUNK = 500  # records a statement; after each the call may stop

T = TypeVar("T")


class SqliteStore:
    """Keeps records in an SQLite file; opens connections as threads need them, and closes them itself.

    Args:
        path: of the file, created if missing; its directory must exist.

    Raises:
        InvalidDefinition: the path is empty or `:memory:`.
        StoreUnavailable: the file cannot be opened and written, or is of a newer version or another program.
    """

    def __init__(self, path: str) -> None:
        self._connections = Connections(
            path, setup=partial(create_schema, path=path), prepare=register_functions
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
        found: dict[str, MemoryItem] = {}
        with self._connections.use() as connection:
            for column, values in (("id", request.ids), ("memory_key", request.keys)):
                if not values:
                    continue
                for chunk in chunks(values, CHUNK, call):
                    for row in connection.execute(selecting(column, len(chunk)), chunk):
                        found[row[0]] = item(row[:4])
        return list(found.values())

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        """Return one page; the order of values is `_paging`'s.

        By id, a page costs the same wherever it is; any other order reads all records that the filter leaves.
        """
        call.check()
        paging = Paging.of(request)
        limit = request.limit or DEFAULT_QUERY_LIMIT
        statement, values = listing(paging)
        with self._connections.use() as connection, interruptible(connection, call):
            rows = connection.execute(statement, [*values, limit + 1]).fetchall()
        page = rows[:limit]
        items = tuple(item(row[:4]) for row in page)
        if len(rows) <= limit:
            return trusted(MemoryQueryOutput, {"items": items})
        return trusted(MemoryQueryOutput, {"items": items, "next_cursor": paging.cursor(page[-1][4:])})

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Sequence[MemoryHit]:
        """Return the records that hold one of the query's phrases, best bm25 first; none for a blank query.

        Words are compared by their English stem. Of equal scores, the older record is first. A query without
        words is looked for literally, which reads every record, and found in the order of ids with the
        score 1.
        """
        call.check()
        query = checked_query(request)
        filter = checked_filter(request.filter)
        limit = request.limit or DEFAULT_SEARCH_LIMIT
        wanted = phrases(query)
        if not wanted:
            return self._literal(literal(query), filter, limit, call)
        statement, values = ranking(filter)
        with self._connections.use() as connection, interruptible(connection, call):
            rows = connection.execute(statement, [match_expression(wanted), *values, limit]).fetchall()
        return [_hit(row[:4], row[4]) for row in rows]

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Create the records, all or none; absent metadata differs from an empty object."""
        call.check()
        drafts = request.memories
        refuse_repeated(drafts)
        rows = [
            Row(str(uuid.uuid4()), draft.key, json_text(draft.content), metadata_text(draft.metadata))
            for draft in drafts
        ]
        keys = [draft.key for draft in drafts if draft.key is not None]
        words = [index_text(search_text(draft.content)) for draft in drafts]
        with self._writing(call) as connection:
            existing = {row.key: row for _, row in _rows(connection, "memory_key", keys, call)}
            written = [
                created(row.id, draft) if row.key not in existing else checked_reuse(existing[row.key], draft)
                for row, draft in zip(rows, drafts, strict=True)
            ]
            fresh = [pair for pair in zip(rows, words, strict=True) if pair[0].key not in existing]
            number, revision = connection.execute(LAST).fetchone()
            numbered = [(place, row, text) for place, (row, text) in enumerate(fresh, 1)]
            for chunk in chunks(numbered, CHUNK, call):
                connection.executemany(
                    INSERT, [(number + place, revision + place, *row) for place, row, _ in chunk]
                )
                connection.executemany(INSERT_WORDS, [(number + place, text) for place, _, text in chunk])
        return written

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Change the records, all or none."""
        call.check()
        patches = request.memories
        with self._writing(call) as connection:
            ids = [patch.id for patch in patches]
            numbered = {row.id: (number, row) for number, row in _rows(connection, "id", ids, call)}
            for id in ids:
                if id not in numbered:
                    raise MemoryNodeError("NOT_FOUND", f"there is no record {id!r:.80}")
            changed = [
                (numbered[patch.id][0], patched(numbered[patch.id][1], patch), patch) for patch in patches
            ]
            revisions = count(_next_revision(connection))
            for chunk in chunks(changed, CHUNK, call):
                connection.executemany(
                    UPDATE, [(next(revisions), row.content, row.metadata, place) for place, row, _ in chunk]
                )
                connection.executemany(
                    UPDATE_WORDS,
                    [
                        (index_text(search_text(patch.content)), place)
                        for place, _, patch in chunk
                        if patch.has_content
                    ],
                )
        return [item(row) for _, row, _ in changed]

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        """Remove the records and return the ids that were there, in the order asked."""
        call.check()
        ids = list(dict.fromkeys(request.ids))
        with self._writing(call) as connection:
            numbers = {row.id: number for number, row in _rows(connection, "id", ids, call)}
            tombstones = list(enumerate(numbers, _next_revision(connection)))
            for chunk in chunks([(number,) for number in numbers.values()], CHUNK, call):
                connection.executemany(DELETE, chunk)
                connection.executemany(DELETE_WORDS, chunk)
            _bury(connection, tombstones)
        return trusted(MemoryDeleteOutput, {"deleted": tuple(id for id in ids if id in numbers)})

    def change_cursor(self, call: Call = NO_CALL) -> str:
        """Return the cursor of the present."""
        call.check()
        with self._connections.use() as connection:
            store, _, following = connection.execute(FEED).fetchone()
        return ChangeCursor(store, following).text()

    def changes(self, cursor: str, *, limit: int, call: Call = NO_CALL) -> ChangePage:
        """Return what changed; one transaction writes at a time, so revisions rise as commits follow."""
        call.check()
        since = ChangeCursor.read(cursor, limit=limit)
        place = (since.revision, limit + 1)
        with self._connections.use() as connection, interruptible(connection, call):
            rows = connection.execute(CHANGES, (*place, *place, limit + 1)).fetchall()
            # read after the page: what was forgotten before it is known then
            store, forgotten, following = connection.execute(FEED).fetchone()
        since.check(store, is_known=forgotten < since.revision <= following)
        return change_page(since, rows, limit)

    @contextmanager
    def _writing(self, call: Call) -> Iterator[sqlite3.Connection]:
        """Lend a connection within a transaction that commits at the end, and not at all after an error."""
        with self._connections.use() as connection, interruptible(connection, call):
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def _literal(self, needle: str, filter: dict[str, str], limit: int, call: Call) -> list[MemoryHit]:
        if not needle:
            return []
        statement, values = listing(Paging(filter, BY_ID, None))
        hits: list[MemoryHit] = []
        with self._connections.use() as connection, interruptible(connection, call):
            cursor = connection.execute(statement, [*values, -1])
            while len(hits) < limit and (rows := cursor.fetchmany(CHUNK)):
                call.check()
                found = (row for row in rows if contains_literally(decode_json(row[2]), needle))
                hits.extend(_hit(row[:4], 1.0) for row in found)
            cursor.close()
        return hits[:limit]


def open_sqlite(rest: str) -> SqliteStore:
    """Open the store of `sqlite:///PATH`."""
    if not rest.startswith("/"):
        raise InvalidDefinition(
            "sqlite:// takes a third slash before the path: sqlite:///notes.db, sqlite:////var/lib/notes.db"
        )
    return SqliteStore(rest[1:])


def _rows(
    connection: sqlite3.Connection, column: str, values: Sequence[str], call: Call
) -> Iterator[tuple[int, Row]]:
    """Give the rows with these values in a column, each with its number."""
    for chunk in chunks(values, CHUNK, call):
        for *row, number in connection.execute(selecting(column, len(chunk)), chunk):
            yield number, Row(*row)


def _next_revision(connection: sqlite3.Connection) -> int:
    _, revision = connection.execute(LAST).fetchone()
    return int(revision) + 1


def _bury(connection: sqlite3.Connection, tombstones: Sequence[tuple[int, str]]) -> None:
    """Keep revisions and ids of records that were deleted, and let the oldest go when there are too many."""
    connection.executemany(BURY, tombstones)
    oldest, newest = connection.execute(TOMBSTONES).fetchone()
    if tombstones and (last := last_to_forget(oldest, newest, len(tombstones))) >= oldest:
        for statement in FORGET:
            connection.execute(statement, (last,))


def _hit(row: Sequence[Any], score: float) -> MemoryHit:
    return trusted(MemoryHit, {"memory": item(row), "score": score})
