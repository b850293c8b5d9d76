"""An index in one SQLite file, searched in memory; for the threads and processes of one machine.

A write that was answered survives a killed process and a power loss; a batch is there whole or not at all.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError, RetrievalError
from ditto_tasks.contracts.index import IndexEntry, IndexHit, IndexManifest
from providers.chunks import chunks
from providers.indexes._manifest import check_definition, check_manifest, manifest_text, read_manifest
from providers.indexes._matrix import Matrix, MatrixRow
from providers.indexes._records import FILTER_FIELDS, filter_values, index_filter, read_record, record_text
from providers.indexes._sqlite_sql import (
    CHANGED,
    CLEAR,
    COUNT,
    DELETE,
    DROP,
    DROPPED,
    FIND,
    FORGET,
    FORGET_REMOVED,
    NEXT_REVISION,
    NOTE_REMOVED,
    PAGE,
    REGISTER,
    REMOVED,
    REVISION,
    UPSERT,
    create_schema,
    selecting,
)
from providers.indexes._vectors import Vector, checked_entries, unit_vector
from providers.stores._failures import INDEX
from providers.stores._sqlite_connections import Connections, interruptible

__all__ = ["SqliteIndex", "open_sqlite"]

CHUNK = 500  # entries a statement; after each the call may stop
LOADED = 2_000  # vectors read at a time
HISTORY = 1_000  # revisions whose removals are kept: an instance that is further behind reads all anew

T = TypeVar("T")

_live: "weakref.WeakSet[SqliteIndex]" = weakref.WeakSet()


class SqliteIndex:
    """Keeps entries in an SQLite file, and their vectors in memory, too, where a search compares them all.

    Each instance in each process has a matrix of its own (`Matrix` says how large), read at the first search;
    later ones read what was written since, by whomever.

    Args:
        path: of the file, created if missing; its directory must exist. It may hold several indexes, and
            nothing else.

    Raises:
        InvalidDefinition: the path is empty or `:memory:`, or no index can have this name or manifest.
        IndexMismatch: the index was made with another manifest.
        StoreUnavailable: the file cannot be opened and written, or is of a newer version or another program.
    """

    def __init__(self, path: str, name: str, manifest: IndexManifest) -> None:
        check_definition(name, manifest)
        self._name = name
        self._manifest = manifest
        self._closed = False
        self._dropped = False
        self._number = 0  # of this index in the file
        self._lock = threading.Lock()  # of the matrix; taken within a call of the file, which forks wait for
        self._matrix = Matrix(manifest.dimensions)
        self._revision = -1  # up to which the matrix has been read

        def setup(connection: sqlite3.Connection) -> None:
            self._number = _registered(connection, path, name, manifest)

        self._connections = Connections(path, setup=setup, prepare=lambda connection: None)
        _live.add(self)

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
        """Close the connections of this process and refuse further calls; closing twice does nothing."""
        self._closed = True
        self._connections.close()

    def drop(self, call: Call = NO_CALL) -> None:
        """Remove the index from the file, and close; dropping twice does nothing."""
        if self._dropped:
            return
        self._check(call)
        with self._using(call) as connection:
            connection.execute(DROP, (self._number,))
            for (number,) in connection.execute(DROPPED).fetchall():
                _clear(connection, number, call)
        self._dropped = True
        self.close()

    def leave_to_parent(self) -> None:
        """Start anew in a child of a fork that came amid a search for which it could not wait."""
        if self._lock.locked():
            self._lock = threading.Lock()
            self._matrix, self._revision = Matrix(self._manifest.dimensions), -1

    def upsert(self, entries: Sequence[IndexEntry], call: Call = NO_CALL) -> None:
        """Put the entries in the place of those with the same ids, all or none."""
        self._check(call)
        checked = checked_entries(entries, self._manifest.dimensions)
        with self._writing(call) as (connection, revision):
            for chunk in chunks(checked, CHUNK, call):
                rows = [(self._number, *_row(entry, vector, revision)) for entry, vector in chunk]
                connection.executemany(UPSERT, rows)

    def delete(self, ids: Sequence[str], call: Call = NO_CALL) -> Sequence[str]:
        """Remove the records and return the ids that were there, in the order asked."""
        self._check(call)
        unique = list(dict.fromkeys(ids))
        with self._writing(call) as (connection, revision):
            numbers = self._selected(connection, "number", unique, call)
            for chunk in chunks(list(numbers.values()), CHUNK, call):
                connection.executemany(DELETE, [(number,) for number in chunk])
                connection.executemany(NOTE_REMOVED, [(self._number, revision, number) for number in chunk])
            connection.execute(FORGET_REMOVED, (self._number, revision - HISTORY))
        return [id for id in unique if id in numbers]

    def search(
        self,
        vector: Sequence[float],
        *,
        limit: int,
        filter: Mapping[str, Any] | None = None,
        call: Call = NO_CALL,
    ) -> Sequence[IndexHit]:
        """Return the nearest records, nearest first, ties by id; exact, whatever the filter leaves."""
        self._check(call)
        wanted = index_filter(filter)
        query = unit_vector(vector, self._manifest.dimensions)
        with self._using(call) as connection, self._lock:
            connection.execute("BEGIN")  # one state of the file, from the vectors to the records
            self._refresh(connection, call)
            nearest = self._matrix.nearest(query, limit, wanted)
            records = self._selected(connection, "record", [number for number, _ in nearest], call)
        return [IndexHit(read_record(records[number]), score) for number, score in nearest]

    def digests(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, str]:
        """Return the digest of each of these records that is there."""
        self._check(call)
        with self._reading(call) as connection:
            return self._selected(connection, "digest", ids, call)

    def vectors(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, Vector]:
        """Return the vector of each of these records that is there."""
        self._check(call)
        with self._reading(call) as connection:
            found = self._selected(connection, "vector", ids, call)
        return {id: np.frombuffer(vector, dtype=np.float32) for id, vector in found.items()}

    def page(self, after: str | None, *, limit: int, call: Call = NO_CALL) -> Sequence[tuple[str, str]]:
        """Return ids with digests in the order of ids."""
        self._check(call)
        with self._reading(call) as connection:
            return connection.execute(PAGE, (self._number, after or "", limit)).fetchall()

    def count(self, call: Call = NO_CALL) -> int:
        """Count the records."""
        self._check(call)
        with self._reading(call) as connection:
            (count,) = connection.execute(COUNT, (self._number,)).fetchone()
        return int(count)

    def _check(self, call: Call) -> None:
        call.check()
        if self._closed:
            raise RetrievalError("RETRIEVAL_PROVIDER_UNAVAILABLE", "The index is closed")

    @contextmanager
    def _using(self, call: Call) -> Iterator[sqlite3.Connection]:
        with _translated(), self._connections.use() as connection, interruptible(connection, call):
            yield connection

    @contextmanager
    def _reading(self, call: Call) -> Iterator[sqlite3.Connection]:
        """Lend a connection to read with; that the index was there all the while is seen at the end."""
        with self._using(call) as connection:
            yield connection
            self._asked(connection, REVISION)

    @contextmanager
    def _writing(self, call: Call) -> Iterator[tuple[sqlite3.Connection, int]]:
        """Lend a connection within a transaction, with its revision; it commits unless an error came."""
        with self._using(call) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection, self._asked(connection, NEXT_REVISION)
            connection.execute("COMMIT")

    def _asked(self, connection: sqlite3.Connection, statement: str) -> int:
        """Return the revision that a statement gives of this index, unless somebody dropped it."""
        for (revision,) in connection.execute(statement, (self._number,)).fetchall():
            return int(revision)
        raise INDEX.is_gone(self._name)

    def _refresh(self, connection: sqlite3.Connection, call: Call) -> None:
        """Bring the matrix up to the file's revision; after an error the next search does it again."""
        revision = self._asked(connection, REVISION)
        if revision == self._revision:
            return
        if not revision - HISTORY <= self._revision < revision:
            self._matrix, self._revision = Matrix(self._manifest.dimensions), -1
        seen = (self._number, self._revision)
        self._matrix.remove([number for (number,) in connection.execute(REMOVED, seen)])
        changed = connection.execute(CHANGED, seen)
        while rows := changed.fetchmany(LOADED):
            call.check()
            self._matrix.put([MatrixRow(number, id, values, vector) for number, id, *values, vector in rows])
        self._revision = revision

    def _selected(
        self, connection: sqlite3.Connection, wanted: str, asked: Sequence[Any], call: Call
    ) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for chunk in chunks(asked, CHUNK, call):
            found.update(connection.execute(selecting(wanted, len(chunk)), (self._number, *chunk)))
        return found


def open_sqlite(rest: str, *, name: str, manifest: IndexManifest) -> SqliteIndex:
    """Open the index of `sqlite:///PATH`."""
    if not rest.startswith("/"):
        raise InvalidDefinition(
            "sqlite:// takes a third slash before the path: sqlite:///notes.index, sqlite:////var/lib/notes.index"
        )
    return SqliteIndex(rest[1:], name, manifest)


def _registered(connection: sqlite3.Connection, path: str, name: str, manifest: IndexManifest) -> int:
    """Make tables and index, unless they are there, and return the index's number."""
    connection.execute("BEGIN IMMEDIATE")
    create_schema(connection, path)
    connection.execute(REGISTER, (name, manifest_text(manifest)))
    number, kept = connection.execute(FIND, (name,)).fetchone()
    check_manifest(name, read_manifest(kept), manifest)
    connection.execute("COMMIT")
    return int(number)


def _clear(connection: sqlite3.Connection, number: int, call: Call) -> None:
    """Delete what a dropped index has left, a few rows a transaction."""
    for statement in CLEAR:
        while connection.execute(statement, (number, CHUNK)).rowcount:
            call.check()
    connection.execute(FORGET, (number,))


def _row(entry: IndexEntry, vector: Vector, revision: int) -> tuple[Any, ...]:
    values = filter_values(entry.record)
    return (
        entry.record.id,
        revision,
        entry.digest,
        *(values[field] for field in FILTER_FIELDS),
        vector.astype(np.float32).tobytes(),
        record_text(entry.record),
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Say what the file's connections say in the words of an index."""
    try:
        yield
    except MemoryNodeError as error:
        raise RetrievalError("RETRIEVAL_BACKEND_ERROR", _MESSAGES.get(error.code, _FAILED)) from error
    except sqlite3.Error as error:
        raise RetrievalError("RETRIEVAL_BACKEND_ERROR", _FAILED) from error


_FAILED = "The index cannot be read or written"
_MESSAGES = {
    "INVALID_INPUT": "A value is too large for the index",
    "STORE_BUSY": "The index is busy with other writers; try again",
    "STORE_FULL": "The index has no room left; nothing was written",
}


def _after_fork_in_child() -> None:
    for index in list(_live):
        index.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)
