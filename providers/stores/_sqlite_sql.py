"""The SQL of the SQLite store: its schema, and statements built from filters and orders.

Every value is bound. Metadata is compared as the JSON text that `->` cuts out of it: `json_extract` would end
a string at its first NUL, and give a number for true.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache

from ditto_tasks.contracts.errors import StoreUnavailable
from ditto_tasks.contracts.json_value import decode_json
from providers.stores._paging import Paging, SortField, order_key
from providers.stores._rows import json_text

__all__ = [
    "DELETE",
    "DELETE_WORDS",
    "INSERT",
    "INSERT_WORDS",
    "LAST_NUMBER",
    "UPDATE",
    "UPDATE_WORDS",
    "create_schema",
    "listing",
    "match_expression",
    "ranking",
    "register_functions",
    "selecting",
]

VERSION = 1  # of the schema, in the file's user_version

# `number` is the rowid, by name so that VACUUM keeps it; it ties a record to its words.
SCHEMA = (
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

LAST_NUMBER = "SELECT coalesce(max(number), 0) FROM memories"
INSERT = "INSERT INTO memories (number, id, memory_key, content, metadata) VALUES (?, ?, ?, ?, ?)"
INSERT_WORDS = "INSERT INTO memory_words (rowid, words) VALUES (?, ?)"
UPDATE = "UPDATE memories SET content = ?, metadata = ? WHERE number = ?"
UPDATE_WORDS = "UPDATE memory_words SET words = ? WHERE rowid = ?"
DELETE = "DELETE FROM memories WHERE number = ?"
DELETE_WORDS = "DELETE FROM memory_words WHERE rowid = ?"

_COLUMNS = "id, memory_key, content, metadata"
_FILTERS = {"key": "memory_key", "namespace": "metadata -> '$.namespace'", "kind": "metadata -> '$.kind'"}

Statement = tuple[str, list[str | bytes]]


def create_schema(connection: sqlite3.Connection, *, path: str) -> None:
    """Make the tables, unless they are there.

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
    if version == 0:
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            raise StoreUnavailable(f"SQLite file {path}: has tables of another program: name another file")
        for statement in SCHEMA:
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
        condition, places = _after(paging.fields, expressions, paging.after)
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


def _after(
    fields: Sequence[SortField], expressions: Sequence[str], after: Sequence[str | bytes]
) -> tuple[str, list[str | bytes]]:
    """Say "later in the order than these values"; none of the expressions is ever NULL."""
    alternatives: list[str] = []
    values: list[str | bytes] = []
    for place, field in enumerate(fields):
        equal = [f"{expression} = ?" for expression in expressions[:place]]
        later = f"{expressions[place]} {'<' if field.descending else '>'} ?"
        alternatives.append(" AND ".join((*equal, later)))
        values += after[: place + 1]
    return f"({' OR '.join(alternatives)})", values


def _expression(field: SortField) -> str:
    if field.is_column:
        return {"id": "id", "key": "coalesce(memory_key, '')"}[field.name]
    return f"order_key(metadata -> '$.\"{field.name}\"')"  # the name has passed the pattern of field names


def _order_key(text: str | None) -> bytes:
    return order_key(None if text is None else decode_json(text))


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)
