"""A store in a MySQL or MariaDB database, with the server's full-text search.

A batch is there whole or not at all; how safe an answered write is, is the server's setting
(`innodb_flush_log_at_trx_commit`).
"""

import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import MemoryNodeError
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
from providers.stores._feed import ChangeCursor, last_to_forget
from providers.stores._mysql_connections import Address, Connections, Cursor
from providers.stores._mysql_sql import (
    ADVANCE,
    CHANGES,
    FEED,
    FORGET,
    INSERT,
    NOTE,
    OLDEST_DELETION,
    UPDATE,
    columns,
    create_schema,
    deleting,
    listing,
    locking,
    match_expression,
    place,
    ranking,
    selecting,
    sort_values,
)
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
from providers.text import contains_literally, literal, phrases

__all__ = ["MysqlStore", "open_mysql"]

CHUNK = 500  # records a statement; after each the call may stop

T = TypeVar("T")


class MysqlStore:
    """Keeps records in the table `memories`; opens connections as threads need them, and closes them itself.

    Args:
        address: of the database; the table is created if missing.

    Raises:
        StoreUnavailable: the database cannot be opened, or its table is of a newer version or another
            program.
    """

    def __init__(self, address: Address) -> None:
        self._connections = Connections(address, setup=create_schema)

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
        rows: dict[str, Row] = {}
        with self._connections.use(call) as connection, connection.cursor() as cursor:
            for field, values in (("id", request.ids), ("key", request.keys)):
                for chunk in chunks(values or (), CHUNK, call):
                    cursor.execute(selecting(field, len(chunk)), [place(field, value) for value in chunk])
                    rows.update((row.id, row) for row, _ in map(_numbered, cursor.fetchall()))
        return [item(row) for row in rows.values()]

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        """Return one page; the order of values is `_paging`'s.

        Of a value it sees the first 500 bytes, of a key the first 250 characters.
        By id, a page costs the same wherever it is; any other order reads all records that the filter leaves.
        """
        paging = Paging.of(request)
        limit = request.limit or DEFAULT_QUERY_LIMIT
        statement, values = listing(paging)
        with self._connections.use(call) as connection, connection.cursor() as cursor:
            cursor.execute(statement, [*values, limit + 1])
            rows = cursor.fetchall()
        page = rows[:limit]
        items = tuple(item(_row(row)) for row in page)
        if len(rows) <= limit:
            return trusted(MemoryQueryOutput, {"items": items})
        last = sort_values(paging.fields, page[-1][4:])
        return trusted(MemoryQueryOutput, {"items": items, "next_cursor": paging.cursor(last)})

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Sequence[MemoryHit]:
        """Return the records that hold one of the query's phrases; none for a blank query.

        The best come first, in the server's judgement: rare words, and those that a record repeats, count.
        Words are compared by their English stem. Of equal scores, the older record is first. A query without
        words is looked for literally, which reads every record, and found in the order of ids with the
        score 1.
        """
        query = checked_query(request)
        filter = checked_filter(request.filter)
        limit = request.limit or DEFAULT_SEARCH_LIMIT
        wanted = phrases(query)
        if not wanted:
            return self._literal(literal(query), filter, limit, call)
        statement, values = ranking(filter)
        expression = match_expression(wanted)
        with self._connections.use(call) as connection, connection.cursor() as cursor:
            cursor.execute(statement, [expression, expression, *values, limit])
            return [_hit(row, row[4]) for row in cursor.fetchall()]

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
        values = [columns(None, row) for row in rows]

        def work(cursor: Cursor) -> list[MemoryItem]:
            existing = {row.key: row for row, _ in _rows(cursor, selecting, "key", keys, call)}
            written = [
                created(row.id, draft) if row.key not in existing else checked_reuse(existing[row.key], draft)
                for row, draft in zip(rows, drafts, strict=True)
            ]
            fresh = [
                (row.id, value) for value, row in zip(values, rows, strict=True) if row.key not in existing
            ]
            for chunk in chunks(fresh, CHUNK, call):
                cursor.executemany(INSERT, [value for _, value in chunk])
            _note(cursor, [id for id, _ in fresh], call)
            return written

        return self._connections.transact(call, work)

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Change the records, all or none."""
        patches = request.memories
        ids = [patch.id for patch in patches]

        def work(cursor: Cursor) -> list[MemoryItem]:
            numbered = {row.id: (number, row) for row, number in _rows(cursor, locking, "id", ids, call)}
            for id in ids:
                if id not in numbered:
                    raise MemoryNodeError("NOT_FOUND", f"there is no record {id!r:.80}")
            changed = [(numbered[patch.id][0], patched(numbered[patch.id][1], patch)) for patch in patches]
            for chunk in chunks(changed, CHUNK, call):
                cursor.executemany(UPDATE, [columns(number, row) for number, row in chunk])
            _note(cursor, ids, call)
            return [item(row) for _, row in changed]

        return self._connections.transact(call, work)

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        """Remove the records and return the ids that were there, in the order asked."""
        ids = list(dict.fromkeys(request.ids))

        def work(cursor: Cursor) -> MemoryDeleteOutput:
            numbers = {row.id: number for row, number in _rows(cursor, locking, "id", ids, call)}
            for chunk in chunks(list(numbers.values()), CHUNK, call):
                cursor.execute(deleting(len(chunk)), chunk)
            _bury(cursor, list(numbers), call)
            return trusted(MemoryDeleteOutput, {"deleted": tuple(id for id in ids if id in numbers)})

        return self._connections.transact(call, work)

    def change_cursor(self, call: Call = NO_CALL) -> str:
        """Return the cursor of the present."""
        call.check()
        with self._connections.use(call) as connection, connection.cursor() as cursor:
            store, revision, _, _ = _feed(cursor)
        return _cursor(store, revision).text()

    def changes(self, cursor: str, *, limit: int, call: Call = NO_CALL) -> ChangePage:
        """Return what changed, transaction by transaction in the order of their commits.

        For this, transactions that write end one after the other: the server cannot commit them in groups,
        and each waits for those before it to note their changes and reach the disk.
        """
        call.check()
        since = ChangeCursor.read(cursor, limit=limit, rest=1)
        after = since.rest[0].encode()
        with self._connections.use(call) as connection, connection.cursor() as asked:
            # Whoever is to be seen by the next statement must have committed by this one.
            store, revision, _, _ = _feed(asked)
            asked.execute(CHANGES, (since.revision, revision, since.revision, after, limit + 1))
            rows = [(number, id.decode()) for number, id in asked.fetchall()]
            *_, forgotten = _feed(asked)  # read after the page: what was forgotten before it is known then
        since.check(store, is_known=forgotten < since.revision <= revision + 1)
        ids = tuple(id for _, id in rows[:limit])
        if len(rows) <= limit:
            return ChangePage(ids, _cursor(store, revision).text(), is_last=True)
        return ChangePage(ids, ChangeCursor(store, rows[limit - 1][0], ids[-1:]).text(), is_last=False)

    def _literal(self, needle: str, filter: dict[str, str], limit: int, call: Call) -> list[MemoryHit]:
        hits: list[MemoryHit] = []
        after: tuple[str] | None = None
        with self._connections.use(call) as connection, connection.cursor() as cursor:
            while needle and len(hits) < limit:
                call.check()
                statement, values = listing(Paging(filter, BY_ID, after))
                cursor.execute(statement, [*values, CHUNK])
                rows = cursor.fetchall()
                found = (row for row in rows if contains_literally(decode_json(row[2]), needle))
                hits.extend(_hit(row, 1.0) for row in found)
                if len(rows) < CHUNK:
                    break
                after = (rows[-1][0].decode(),)
        return hits[:limit]


def open_mysql(rest: str) -> MysqlStore:
    """Open the store of `mysql://user:password@host:port/database`; `Address` has the details."""
    return MysqlStore(Address.parse(rest))


def _note(cursor: Cursor, ids: Sequence[str], call: Call) -> None:
    """Note changes, as the last thing before the commit: from here on other writers wait."""
    if ids:
        cursor.execute(ADVANCE, (0,))
        _, revision, _, _ = _feed(cursor)
        _keep(cursor, [(id.encode(), revision, None) for id in ids], call)


def _bury(cursor: Cursor, ids: Sequence[str], call: Call) -> None:
    """Note deletions likewise, and let the oldest tombstones go when there are too many."""
    if ids:
        cursor.execute(ADVANCE, (len(ids),))
        _, revision, newest, _ = _feed(cursor)
        numbered = enumerate(ids, newest - len(ids) + 1)
        _keep(cursor, [(id.encode(), revision, number) for number, id in numbered], call)
        cursor.execute(OLDEST_DELETION)
        [(oldest,)] = cursor.fetchall()
        last = last_to_forget(oldest, newest, len(ids))
        for statement in FORGET if last >= oldest else ():
            cursor.execute(statement, (last,))


def _keep(cursor: Cursor, changes: Sequence[tuple[bytes, int, int | None]], call: Call) -> None:
    for chunk in chunks(changes, CHUNK, call):
        cursor.executemany(NOTE, chunk)


def _feed(cursor: Cursor) -> tuple[str, int, int, int]:
    cursor.execute(FEED)
    [(store, revision, deletions, forgotten)] = cursor.fetchall()
    return store, revision, deletions, forgotten


def _cursor(store: str, revision: int) -> ChangeCursor:
    """Make the cursor of what comes after a revision."""
    return ChangeCursor(store, revision + 1, ("",))


def _rows(
    cursor: Cursor, statement: Any, field: str, values: Sequence[str], call: Call
) -> Iterator[tuple[Row, int]]:
    """Give the rows with these ids or keys, each with its number."""
    for chunk in chunks(values, CHUNK, call):
        cursor.execute(statement(field, len(chunk)), [place(field, value) for value in chunk])
        yield from map(_numbered, cursor.fetchall())


def _numbered(row: Sequence[Any]) -> tuple[Row, int]:
    return _row(row), row[4]


def _row(row: Sequence[Any]) -> Row:
    return Row(row[0].decode(), *row[1:4])


def _hit(row: Sequence[Any], score: float) -> MemoryHit:
    return trusted(MemoryHit, {"memory": item(_row(row)), "score": score})
