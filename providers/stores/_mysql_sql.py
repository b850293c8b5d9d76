"""The SQL of the MySQL store: its schema, and statements built from filters and orders.

Every value is bound. What must be told apart exactly (ids, keys, namespaces, kinds) is compared as bytes or
by its hash: collations take a trailing space, an accent or a capital for nothing, and an index takes no value
of any length.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ditto_tasks.contracts.errors import StoreUnavailable
from ditto_tasks.contracts.json_value import decode_json
from providers.stores._mysql_connections import Connection
from providers.stores._paging import Paging, SortField, SortValue, is_sortable, later_than, order_key
from providers.stores._rows import Row
from providers.stores._stems import encoded
from providers.text import search_text, words

__all__ = [
    "ADVANCE",
    "CHANGES",
    "FEED",
    "FORGET",
    "INSERT",
    "NOTE",
    "OLDEST_DELETION",
    "SCHEMA",
    "UPDATE",
    "columns",
    "create_schema",
    "deleting",
    "listing",
    "locking",
    "match_expression",
    "place",
    "ranking",
    "selecting",
    "sort_values",
]

VERSION = 2  # of the schema, in the table's comment

# `number` gives the order of writing. `sort_keys` holds, for each field of the metadata that an order may
# name, its `order_key` in hexadecimal; `words` the words of the content as `_stems` writes them.
SCHEMA = f"""
    CREATE TABLE IF NOT EXISTS memories (
        number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        id VARBINARY(36) NOT NULL UNIQUE,
        key_hash BINARY(32) UNIQUE,
        namespace_hash BINARY(32),
        kind_hash BINARY(32),
        memory_key LONGTEXT,
        content LONGTEXT NOT NULL,
        metadata LONGTEXT,
        sort_keys LONGTEXT CHARACTER SET ascii COLLATE ascii_bin,
        words LONGTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
        KEY memories_namespace (namespace_hash, id),
        KEY memories_kind (kind_hash, id),
        FULLTEXT KEY memories_words (words)
    ) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
    COMMENT = 'ditto-tasks memories, version {VERSION}'
"""

# What changed stands beside the records: for a column more the server would build their table anew. A record
# is there from its first change on that the feed knows; with a `deletion`, numbered without a gap, it is a
# tombstone. `forgotten` is the greatest revision of one that is gone.
_FEED_TABLES = (
    """
    CREATE TABLE IF NOT EXISTS memory_changes (
        id VARBINARY(36) NOT NULL PRIMARY KEY,
        revision BIGINT UNSIGNED NOT NULL,
        deletion BIGINT UNSIGNED,
        KEY memory_changes_revision (revision, id),
        KEY memory_changes_deletion (deletion)
    ) ENGINE = InnoDB
    """,
    """
    CREATE TABLE IF NOT EXISTS memory_feed (
        one TINYINT NOT NULL PRIMARY KEY,
        store CHAR(36) CHARACTER SET ascii NOT NULL,
        revision BIGINT UNSIGNED NOT NULL,
        deletions BIGINT UNSIGNED NOT NULL,
        forgotten BIGINT UNSIGNED NOT NULL
    ) ENGINE = InnoDB
    """,
)
_FIRST = "INSERT IGNORE INTO memory_feed VALUES (1, %s, 0, 0, 0)"
_OLDER = f"ALTER TABLE memories COMMENT = 'ditto-tasks memories, version {VERSION}'"

# An order looks at so much of a value; values with the same beginning are in the order of their ids. The
# server sorts by 1,024 bytes at most, and a byte of a sort key is two characters.
SORTED_BYTES = 500
SORTED_CHARACTERS = 250  # of a key, each of up to four bytes

_INTO = "number, id, key_hash, namespace_hash, kind_hash, memory_key, content, metadata, sort_keys, words"
INSERT = f"INSERT INTO memories ({_INTO}) VALUES ({', '.join(['%s'] * 10)})"
# All rows of a batch in one statement; their numbers are there. MariaDB has no newer word for VALUES.
UPDATE = f"{INSERT} ON DUPLICATE KEY UPDATE " + ", ".join(
    f"{column} = VALUES({column})"
    for column in ("namespace_hash", "kind_hash", "content", "metadata", "sort_keys", "words")
)

# Whoever has done this is the only one until it commits: revisions are in the order of commits.
ADVANCE = "UPDATE memory_feed SET revision = revision + 1, deletions = deletions + %s"
FEED = "SELECT store, revision, deletions, forgotten FROM memory_feed"
NOTE = (
    "INSERT INTO memory_changes (id, revision, deletion) VALUES (%s, %s, %s) "
    "ON DUPLICATE KEY UPDATE revision = VALUES(revision), deletion = VALUES(deletion)"
)
OLDEST_DELETION = "SELECT min(deletion) FROM memory_changes"
FORGET = (  # the tombstones up to a number
    "UPDATE memory_feed SET forgotten = (SELECT max(revision) FROM memory_changes WHERE deletion <= %s)",
    "DELETE FROM memory_changes WHERE deletion <= %s",
)
CHANGES = (
    "SELECT revision, id FROM memory_changes"
    " WHERE revision BETWEEN %s AND %s AND (revision > %s OR id > %s) ORDER BY revision, id LIMIT %s"
)

_COLUMNS = "id, memory_key, content, metadata"
_FILTERS = {"key": "key_hash", "namespace": "namespace_hash", "kind": "kind_hash"}
_MATCH = "MATCH (words) AGAINST (%s IN BOOLEAN MODE)"
_COMMENT = re.compile(r"ditto-tasks memories, version (\d+)\Z")

Statement = tuple[str, list[bytes]]


def create_schema(connection: Connection) -> None:
    """Make the tables, or those that an older version lacks.

    Raises:
        StoreUnavailable: `memories` belongs to a newer version of this store, or to another program.
    """
    with connection.cursor() as cursor:
        cursor.execute(SCHEMA)
        cursor.execute(
            "SELECT table_comment FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name = 'memories'"
        )
        [(comment,)] = cursor.fetchall()
        version = _version(comment)
        for statement in _FEED_TABLES:
            cursor.execute(statement)
        cursor.execute(_FIRST, (str(uuid.uuid4()),))
        if version < VERSION:
            cursor.execute(_OLDER)


def columns(number: int | None, row: Row) -> tuple[Any, ...]:
    """Return the values of `INSERT` and `UPDATE`; without a number the server gives one."""
    metadata = {} if row.metadata is None else decode_json(row.metadata)
    return (
        number,
        row.id.encode(),
        _hash(row.key),
        _hash(metadata.get("namespace")),
        _hash(metadata.get("kind")),
        row.key,
        row.content,
        row.metadata,
        _sort_keys(metadata),
        " ".join(encoded(words(search_text(decode_json(row.content))))),
    )


@cache
def selecting(field: str, count: int) -> str:
    """Return the statement that reads the records with one of `count` ids or keys; `place` makes them."""
    column = {"id": "id", "key": "key_hash"}[field]
    return f"SELECT {_COLUMNS}, number FROM memories WHERE {column} IN ({_marks(count)})"


def locking(field: str, count: int) -> str:
    """Return the same for records that the transaction is about to change."""
    return f"{selecting(field, count)} FOR UPDATE"


@cache
def deleting(count: int) -> str:
    """Return the statement that deletes the records with `count` numbers."""
    return f"DELETE FROM memories WHERE number IN ({_marks(count)})"


def place(field: str, value: str) -> bytes:
    """Return what is kept of an id (itself), or of a key, namespace or kind (its hash)."""
    return value.encode() if field == "id" else hashlib.sha256(value.encode()).digest()


def listing(paging: Paging) -> Statement:
    """Return the statement of one page; its last value, the limit, is left to bind.

    Each row ends with its sort values, in the order of `paging.fields`, to be read with `sort_values`.
    """
    expressions = [_expression(field) for field in paging.fields]
    conditions, values = _filtered(paging.filter)
    if paging.after is not None:
        sought = [
            value.encode() if isinstance(value, str) else value.hex().encode() for value in paging.after
        ]
        condition, places = later_than(paging.fields, expressions, sought, "%s")
        conditions.append(condition)
        values += places
    order = [
        f"{expression} {'DESC' if field.descending else 'ASC'}"
        for expression, field in zip(expressions, paging.fields, strict=True)
    ]
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    selected = ", ".join((_COLUMNS, *expressions))
    return f"SELECT {selected} FROM memories {where}ORDER BY {', '.join(order)} LIMIT %s", values


def ranking(filter: Mapping[str, str]) -> Statement:
    """Return the statement of a search; to bind are the match expression twice, these values, and the limit.

    Records are read for the best only.
    """
    conditions, values = _filtered(filter)
    where = " AND ".join((_MATCH, *conditions))
    best = (
        f"SELECT number, {_MATCH} AS score FROM memories WHERE {where} ORDER BY score DESC, number LIMIT %s"
    )
    return (
        f"SELECT {_COLUMNS}, score FROM ({best}) best JOIN memories USING (number) "
        "ORDER BY score DESC, number",
        values,
    )


def match_expression(wanted: Sequence[Sequence[str]]) -> str:
    """Write phrases as a boolean full-text query; as `_stems` writes words, none holds an operator."""
    return " ".join(f'"{" ".join(encoded(phrase))}"' for phrase in wanted)


def sort_values(fields: Sequence[SortField], values: Sequence[bytes]) -> list[SortValue]:
    """Read the sort values at the end of a row of `listing`, as a cursor keeps them."""
    return [
        value.decode() if field.is_column else bytes.fromhex(value.decode())
        for field, value in zip(fields, values, strict=True)
    ]


def _version(comment: str) -> int:
    found = _COMMENT.match(comment)
    if found is None:
        raise StoreUnavailable("MySQL: the table 'memories' is of another program: name another database")
    if int(found[1]) > VERSION:
        raise StoreUnavailable(
            f"MySQL: the schema is version {found[1]}, this release knows {VERSION}: upgrade it"
        )
    return int(found[1])


def _filtered(filter: Mapping[str, str]) -> tuple[list[str], list[bytes]]:
    conditions = [f"{_FILTERS[field]} = %s" for field in filter]
    return conditions, [place(field, value) for field, value in filter.items()]


def _expression(field: SortField) -> str:
    if field.name == "id":
        return "id"
    if field.name == "key":
        return f"CAST(LEFT(coalesce(memory_key, ''), {SORTED_CHARACTERS}) AS BINARY)"
    path = f"'$.\"{field.name}\"'"  # the name has passed the pattern of field names
    return f"CAST(coalesce(JSON_UNQUOTE(JSON_EXTRACT(sort_keys, {path})), '00') AS BINARY)"


def _sort_keys(metadata: Mapping[str, Any]) -> str | None:
    keys = {
        name: order_key(value)[:SORTED_BYTES].hex()
        for name, value in metadata.items()
        if value is not None and is_sortable(name)
    }
    return json.dumps(keys) if keys else None


def _hash(value: Any) -> bytes | None:
    return hashlib.sha256(value.encode()).digest() if isinstance(value, str) else None


def _marks(count: int) -> str:
    return ", ".join(["%s"] * count)
