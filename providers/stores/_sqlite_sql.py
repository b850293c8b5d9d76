"""The SQL of the SQLite store: its schema, and statements built from filters and orders.

Every value is bound. Metadata is compared as the JSON text that `->` cuts out of it: `json_extract` would end
a string at its first NUL, and give a number for true.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import chain

from ditto_tasks.contracts.errors import StoreUnavailable
from ditto_tasks.contracts.json_value import decode_json
from providers.stores._paging import Paging, SortField, later_than, order_key
from providers.stores._rows import json_text

__all__ = [
    "BURY",
    "CHANGES",
    "DELETE",
    "DELETE_WORDS",
    "FEED",
    "FORGET",
    "INSERT",
    "INSERT_WORDS",
    "LAST",
    "SCHEMA",
    "TOMBSTONES",
    "UPDATE",
    "UPDATE_WORDS",
    "create_schema",
    "listing",
    "match_expression",
    "ranking",
    "register_functions",
    "selecting",
]

# `number` is the rowid, by name so that VACUUM keeps it; it ties a record to its words.
_RECORDS = (
    """
    CREATE TABLE memories (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        memory_key TEXT UNIQUE,
        content TEXT NOT NULL,
        metadata TEXT
    )
    """,
    "CREATE INDEX memories_namespace ON memories (metadata -> '$.namespace', id)",
    "CREATE INDEX memories_kind ON memories (metadata -> '$.kind', id)",
    """
    CREATE VIRTUAL TABLE memory_words USING fts5 (
        words, tokenize = "porter unicode61 remove_diacritics 2"
    )
    """,
)

# A record has a revision from its first change on that the feed knows: one of before has none. Tombstones are
# numbered without a gap. `forgotten` is the greatest revision of a tombstone that is gone.
_FEED = (
    "ALTER TABLE memories ADD COLUMN revision INTEGER",
    "CREATE UNIQUE INDEX memories_revision ON memories (revision) WHERE revision IS NOT NULL",
    """
    CREATE TABLE memory_tombstones (
        number INTEGER PRIMARY KEY,
        revision INTEGER NOT NULL UNIQUE,
        id TEXT NOT NULL
    )
    """,
    "CREATE TABLE memory_feed (store TEXT NOT NULL, forgotten INTEGER NOT NULL)",
    "INSERT INTO memory_feed VALUES (lower(hex(randomblob(16))), 0)",
)

SCHEMA = (_RECORDS, _FEED)  # what each version added to the one before
VERSION = len(SCHEMA)  # in the file's user_version

_LAST_REVISION = """
    max(
        coalesce((SELECT max(revision) FROM memories WHERE revision IS NOT NULL), 0),
        coalesce((SELECT max(revision) FROM memory_tombstones), 0)
    )
"""
LAST = f"SELECT coalesce((SELECT max(number) FROM memories), 0), {_LAST_REVISION}"
INSERT = (
    "INSERT INTO memories (number, revision, id, memory_key, content, metadata) VALUES (?, ?, ?, ?, ?, ?)"
)
INSERT_WORDS = "INSERT INTO memory_words (rowid, words) VALUES (?, ?)"
UPDATE = "UPDATE memories SET revision = ?, content = ?, metadata = ? WHERE number = ?"
UPDATE_WORDS = "UPDATE memory_words SET words = ? WHERE rowid = ?"
DELETE = "DELETE FROM memories WHERE number = ?"
DELETE_WORDS = "DELETE FROM memory_words WHERE rowid = ?"

FEED = f"SELECT store, forgotten, {_LAST_REVISION} + 1 FROM memory_feed"
# To bind: a revision and a limit, both of them twice, and the limit.
CHANGES = """
    SELECT * FROM (SELECT revision, id FROM memories WHERE revision >= ? ORDER BY revision LIMIT ?)
    UNION ALL
    SELECT * FROM (SELECT revision, id FROM memory_tombstones WHERE revision >= ? ORDER BY revision LIMIT ?)
    ORDER BY revision LIMIT ?
"""
BURY = "INSERT INTO memory_tombstones (revision, id) VALUES (?, ?)"
TOMBSTONES = "SELECT (SELECT min(number) FROM memory_tombstones), (SELECT max(number) FROM memory_tombstones)"
FORGET = (  # the tombstones up to a number
    "UPDATE memory_feed SET forgotten = (SELECT max(revision) FROM memory_tombstones WHERE number <= ?)",
    "DELETE FROM memory_tombstones WHERE number <= ?",
)

_COLUMNS = "id, memory_key, content, metadata"
_FILTERS = {"key": "memory_key", "namespace": "metadata -> '$.namespace'", "kind": "metadata -> '$.kind'"}

Statement = tuple[str, list[str | bytes]]


def create_schema(connection: sqlite3.Connection, *, path: str) -> None:
    """Make the tables, or what an older version of them lacks.

    Raises:
        StoreUnavailable: the file belongs to a newer version of this store, or to another program.
    """
    if _version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    version = _version(connection)  # again: another process may have been faster
    if version > VERSION:
        raise StoreUnavailable(
            f"SQLite file {path}: its schema is version {version}, this release knows {VERSION}: upgrade it"
        )
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StoreUnavailable(f"SQLite file {path}: has tables of another program: name another file")
    for statement in chain.from_iterable(SCHEMA[version:]):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def register_functions(connection: sqlite3.Connection) -> None:
    """Give a connection the function that orders metadata."""
    connection.create_function("order_key", 1, _order_key, deterministic=True)


@cache
def selecting(column: str, count: int) -> str:
    """Return the statement that reads the records with one of `count` values in a column."""
    marks = ", ".join("?" * count)
    return f"SELECT {_COLUMNS}, number FROM memories WHERE {column} IN ({marks})"


def listing(paging: Paging) -> Statement:
    """Return the statement of one page; its last value, the limit, is left to bind.

    Each row ends with its sort values, in the order of `paging.fields`.
    """
    expressions = [_expression(field) for field in paging.fields]
    conditions, values = _filtered(paging.filter)
    if paging.after is not None:
        condition, places = later_than(paging.fields, expressions, paging.after, "?")
        conditions.append(condition)
        values += places
    order = [
        f"{expression} {'DESC' if field.descending else 'ASC'}"
        for expression, field in zip(expressions, paging.fields, strict=True)
    ]
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    columns = ", ".join((_COLUMNS, *expressions))
    return f"SELECT {columns} FROM memories {where}ORDER BY {', '.join(order)} LIMIT ?", values


def ranking(filter: Mapping[str, str]) -> Statement:
    """Return the statement of a search; to bind are the match expression, these values, and the limit.

    Records are read for the best only. CROSS JOIN keeps the words in front: asked once for each record of a
    namespace, they would be asked in vain most times.
    """
    conditions, values = _filtered(filter)
    joined = "CROSS JOIN memories ON memories.number = memory_words.rowid " if conditions else ""
    where = " AND ".join(("memory_words MATCH ?", *conditions))
    best = (
        f"SELECT memory_words.rowid AS number, rank AS badness FROM memory_words {joined}"
        f"WHERE {where} ORDER BY rank, memory_words.rowid LIMIT ?"
    )
    return (
        f"SELECT {_COLUMNS}, -badness FROM ({best}) JOIN memories USING (number) ORDER BY badness, number",
        values,
    )


def match_expression(wanted: Sequence[Sequence[str]]) -> str:
    """Write phrases as an FTS5 expression; their words hold no quotes, so quoting makes them literal."""
    return " OR ".join(f'"{" ".join(phrase)}"' for phrase in wanted)


def _filtered(filter: Mapping[str, str]) -> tuple[list[str], list[str | bytes]]:
    conditions = [f"{_FILTERS[field]} = ?" for field in filter]
    values: list[str | bytes] = [
        value if field == "key" else json_text(value) for field, value in filter.items()
    ]
    return conditions, values


def _expression(field: SortField) -> str:
    if field.is_column:
        return {"id": "id", "key": "coalesce(memory_key, '')"}[field.name]
    return f"order_key(metadata -> '$.\"{field.name}\"')"  # the name has passed the pattern of field names


def _order_key(text: str | None) -> bytes:
    return order_key(None if text is None else decode_json(text))


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
