"""The SQL of the SQLite index: its schema and its statements. Every value is bound."""

import sqlite3
from functools import cache

from ditto_tasks.contracts.errors import StoreUnavailable

__all__ = [
    "CHANGED",
    "CLEAR",
    "COUNT",
    "DELETE",
    "DROP",
    "DROPPED",
    "FIND",
    "FORGET",
    "FORGET_REMOVED",
    "NEXT_REVISION",
    "NOTE_REMOVED",
    "PAGE",
    "REGISTER",
    "REMOVED",
    "REVISION",
    "UPSERT",
    "create_schema",
    "selecting",
]

# Of the schema, in the file's user_version; the memory store counts there, too, from 1.
VERSION = 10_001

# A `number` names an index, or a record of one, and is never given again: nothing is taken for what is gone.
# A write gives what it changes the index's next `revision`, so that whoever has read up to one reads only
# what came after it.
SCHEMA = (
    """
    CREATE TABLE indexes (
        number INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        manifest TEXT NOT NULL,
        revision INTEGER NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE entries (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        of_index INTEGER NOT NULL,
        id TEXT NOT NULL,
        revision INTEGER NOT NULL,
        digest TEXT NOT NULL,
        memory_key TEXT,
        namespace TEXT,
        kind TEXT,
        vector BLOB NOT NULL,
        record TEXT NOT NULL,
        UNIQUE (of_index, id)
    )
    """,
    "CREATE INDEX entries_revision ON entries (of_index, revision)",
    """
    CREATE TABLE removed (
        of_index INTEGER NOT NULL,
        revision INTEGER NOT NULL,
        number INTEGER NOT NULL,
        PRIMARY KEY (of_index, revision, number)
    ) WITHOUT ROWID
    """,
)

# The number is drawn by lot, out of 2^47: SQLite would give that of the last index again, once it is dropped.
REGISTER = """
    INSERT INTO indexes (number, name, manifest) VALUES (abs(random() >> 16), ?, ?)
    ON CONFLICT (name) DO NOTHING
"""
FIND = "SELECT number, manifest FROM indexes WHERE name = ?"
REVISION = "SELECT revision FROM indexes WHERE number = ? AND name < '~'"
NEXT_REVISION = (
    "UPDATE indexes SET revision = revision + 1 WHERE number = ? AND name < '~' RETURNING revision"
)
UPSERT = """
    INSERT INTO entries (of_index, id, revision, digest, memory_key, namespace, kind, vector, record)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (of_index, id) DO UPDATE SET
        revision = excluded.revision, digest = excluded.digest, memory_key = excluded.memory_key,
        namespace = excluded.namespace, kind = excluded.kind, vector = excluded.vector,
        record = excluded.record
"""
DELETE = "DELETE FROM entries WHERE number = ?"
NOTE_REMOVED = "INSERT INTO removed (of_index, revision, number) VALUES (?, ?, ?)"
FORGET_REMOVED = "DELETE FROM removed WHERE of_index = ? AND revision <= ?"
CHANGED = (
    "SELECT number, id, memory_key, namespace, kind, vector FROM entries WHERE of_index = ? AND revision > ?"
)
REMOVED = "SELECT number FROM removed WHERE of_index = ? AND revision > ?"
PAGE = "SELECT id, digest FROM entries WHERE of_index = ? AND id > ? ORDER BY id LIMIT ?"
COUNT = "SELECT count(*) FROM entries WHERE of_index = ?"
# A dropped index is gone by its name, then its rows, a few at a time: each statement commits, so that writers
# of other indexes wait for no more than that. What a killed process leaves, the next drop takes along.
DROP = "UPDATE indexes SET name = '~' || number WHERE number = ? AND name < '~'"
DROPPED = "SELECT number FROM indexes WHERE name >= '~'"
CLEAR = (
    """
    DELETE FROM entries WHERE number IN (SELECT number FROM entries WHERE of_index = ?1 LIMIT ?2)
    """,
    """
    DELETE FROM removed WHERE (of_index, revision, number) IN
        (SELECT of_index, revision, number FROM removed WHERE of_index = ?1 LIMIT ?2)
    """,
)
FORGET = "DELETE FROM indexes WHERE number = ? AND name >= '~'"

_SELECTED = {  # by '+' the planner is kept from reading the whole index for a few numbers
    "digest": "SELECT id, digest FROM entries WHERE of_index = ? AND id",
    "number": "SELECT id, number FROM entries WHERE of_index = ? AND id",
    "vector": "SELECT id, vector FROM entries WHERE of_index = ? AND id",
    "record": "SELECT number, record FROM entries WHERE +of_index = ? AND number",
}


def create_schema(connection: sqlite3.Connection, path: str) -> None:
    """Make the tables, unless they are there; within a transaction.

    Raises:
        StoreUnavailable: the file belongs to a newer version of this index, or to another program.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return
    if version > VERSION:
        raise StoreUnavailable(
            f"SQLite file {path}: its schema is version {version}, this release knows {VERSION}: upgrade it"
        )
    if version or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StoreUnavailable(f"SQLite file {path}: has other tables: an index takes a file of its own")
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")


@cache
def selecting(wanted: str, count: int) -> str:
    """Return the statement that reads digests, numbers or vectors by `count` ids, or records by numbers."""
    return f"{_SELECTED[wanted]} IN ({', '.join('?' * count)})"
