"""An index in a PostgreSQL database with pgvector: a table each, searched through HNSW or exactly.

Vectors are kept at length 1 and compared by their inner product, which is the cosine then: in pgvector, the
cosine distance of a zero vector is NaN, and an index of it leaves zero vectors out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError, StoreUnavailable
from ditto_tasks.contracts.index import IndexEntry, IndexHit, IndexManifest
from providers.indexes._manifest import check_definition, check_manifest, manifest_text, read_manifest
from providers.indexes._records import filter_values, index_filter, read_record, record_text
from providers.indexes._vectors import Vector, checked_entries, unit_vector
from providers.stores._failures import INDEX
from providers.stores._postgres_connections import MAX_CONNECTIONS, Connections, Faults, Line, psycopg
from providers.stores._postgres_text import lookup_text, read_text, stored_text

__all__ = ["PostgresIndex", "open_postgres"]

MAX_DIMENSIONS = 16_000  # of pgvector's type
MAX_IN_ROW_DIMENSIONS = 1_000  # half a page; a longer vector is kept beside its row
MAX_HNSW_DIMENSIONS = 2_000  # of its index; longer vectors are always searched exactly
LOCK_NUMBER = 7_031_982_115  # of the advisory lock that whoever makes tables holds; any will do

FAULTS = Faults(
    "The index",
    RetrievalError,
    busy="RETRIEVAL_BACKEND_ERROR",
    full="RETRIEVAL_BACKEND_ERROR",
    invalid="RETRIEVAL_INVALID_INPUT",
    unavailable="RETRIEVAL_PROVIDER_UNAVAILABLE",
)

MANIFESTS = "CREATE TABLE IF NOT EXISTS vector_indexes (name text PRIMARY KEY, manifest text NOT NULL)"
SCHEMA = (
    """
    CREATE TABLE {table} (
        id text COLLATE "C" PRIMARY KEY,
        record text NOT NULL,
        digest text NOT NULL,
        key text COLLATE "C",
        namespace text COLLATE "C",
        kind text COLLATE "C",
        vector vector({dimensions}) NOT NULL
    )
    """,
    "CREATE INDEX {table}_key ON {table} (key)",
    "CREATE INDEX {table}_namespace ON {table} (namespace)",
    "CREATE INDEX {table}_kind ON {table} (kind)",
)
IN_ROW = "ALTER TABLE {table} ALTER vector SET STORAGE PLAIN"  # where an exact search finds it sooner
HNSW = "CREATE INDEX {table}_vector ON {table} USING hnsw (vector vector_ip_ops)"

UPSERT = """
    INSERT INTO {table} (id, record, digest, key, namespace, kind, vector)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (id) DO UPDATE
    SET record = excluded.record, digest = excluded.digest, key = excluded.key,
        namespace = excluded.namespace, kind = excluded.kind, vector = excluded.vector
"""
# In one order, so that two who change the same records never wait for each other.
DELETE = """
    DELETE FROM {table}
    WHERE id IN (SELECT id FROM {table} WHERE id = ANY (%s) ORDER BY id FOR UPDATE)
    RETURNING id
"""
SEARCH = """
    SELECT record, -(vector <#> %s) AS score
    FROM {table} {where}
    ORDER BY (vector <#> %s){exactly}, id
    LIMIT %s
"""
DIGESTS = "SELECT id, digest FROM {table} WHERE id = ANY (%s)"
VECTORS = "SELECT id, vector_send(vector) FROM {table} WHERE id = ANY (%s)"
PAGE = "SELECT id, digest FROM {table} WHERE id > %s ORDER BY id LIMIT %s"
COUNT = "SELECT count(*) FROM {table}"
DROP = "DROP TABLE IF EXISTS {table}"

EXACTLY = " + 0.0"  # an order that no index has


class PostgresIndex:
    """Keeps entries in a table `vectors_<name>`; opens connections as threads need them, closes them itself.

    Args:
        rest: of the URL, after `postgresql://`.
        connections: the most that one process has; a call waits for one as long as it may last.

    Raises:
        InvalidDefinition: the URL cannot be read, or no index can have this name or manifest.
        IndexMismatch: the index was made with another manifest.
        StoreUnavailable: the database cannot be reached, or has no pgvector.
    """

    def __init__(
        self, rest: str, name: str, manifest: IndexManifest, *, connections: int = MAX_CONNECTIONS
    ) -> None:
        check_definition(name, manifest)
        if manifest.dimensions > MAX_DIMENSIONS:
            raise InvalidDefinition(
                f"index {name}: {manifest.dimensions} dimensions are more than pgvector's {MAX_DIMENSIONS:,}"
            )
        self._name = name
        self._manifest = manifest
        self._table = f"vectors_{name}"
        self._dropped = False
        self._connections = Connections(
            rest, FAULTS, setup=self._create, prepare=_send_vectors, size=connections
        )

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
        self._connections.close()

    def drop(self, call: Call = NO_CALL) -> None:
        """Drop the table, once no statement uses it any more, and close; dropping twice does nothing."""
        if self._dropped:
            return
        call.check()
        with self._connections.use(call) as line, line.transaction():
            line.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_NUMBER,))
            line.execute(self._statement(DROP))
            line.execute("DELETE FROM vector_indexes WHERE name = %s", (self._name,))
        self._dropped = True
        self.close()

    def upsert(self, entries: Sequence[IndexEntry], call: Call = NO_CALL) -> None:
        """Put the entries in the place of those with the same ids, all or none."""
        call.check()
        checked = checked_entries(entries, self._manifest.dimensions)
        rows = sorted(_columns(entry, vector) for entry, vector in checked)  # by id, as DELETE locks them
        with self._using(call) as line, line.transaction(), line.cursor() as cursor:
            cursor.executemany(self._statement(UPSERT), [(*row[:-1], _Sent(row[-1])) for row in rows])

    def delete(self, ids: Sequence[str], call: Call = NO_CALL) -> Sequence[str]:
        """Remove the records and return the ids that were there, in the order asked."""
        call.check()
        asked = {stored_text(id): id for id in ids}
        with self._using(call) as line:
            deleted = {id for (id,) in line.execute(self._statement(DELETE), (list(asked),))}
        return [id for stored, id in asked.items() if stored in deleted]

    def search(
        self,
        vector: Sequence[float],
        *,
        limit: int,
        filter: Mapping[str, Any] | None = None,
        call: Call = NO_CALL,
    ) -> Sequence[IndexHit]:
        """Return the nearest records, nearest first, ties by id.

        PostgreSQL chooses: few records that match a filter are compared one by one, many are found through
        HNSW, which is approximate. Where HNSW ends with fewer than `limit`, all that match are compared.
        """
        call.check()
        wanted = index_filter(filter)
        query = _Sent(_binary(unit_vector(vector, self._manifest.dimensions)))
        where = "WHERE " + " AND ".join(f"{field} = %s" for field in wanted) if wanted else ""
        values = [query, *(lookup_text(value) for value in wanted.values()), query, limit]
        with self._using(call) as line:
            for exactly in ("", EXACTLY):
                statement = self._statement(SEARCH, where=where, exactly=exactly)
                rows = line.execute(statement, values, prepare=False).fetchall()
                if len(rows) == limit:
                    break
        return [IndexHit(read_record(record), max(-1.0, min(1.0, score))) for record, score in rows]

    def digests(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, str]:
        """Return the digest of each of these records that is there."""
        call.check()
        with self._using(call) as line:
            rows = line.execute(self._statement(DIGESTS), ([stored_text(id) for id in ids],)).fetchall()
        return {read_text(id): read_text(digest) for id, digest in rows}

    def vectors(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, Vector]:
        """Return the vector of each of these records that is there."""
        call.check()
        with self._using(call) as line:
            rows = line.execute(self._statement(VECTORS), ([stored_text(id) for id in ids],)).fetchall()
        return {read_text(id): _read(vector) for id, vector in rows}

    def page(self, after: str | None, *, limit: int, call: Call = NO_CALL) -> Sequence[tuple[str, str]]:
        """Return ids with digests in the order of ids."""
        call.check()
        with self._using(call) as line:
            rows = line.execute(self._statement(PAGE), (stored_text(after or ""), limit)).fetchall()
        return [(read_text(id), read_text(digest)) for id, digest in rows]

    def count(self, call: Call = NO_CALL) -> int:
        """Count the records; reads all of their ids."""
        call.check()
        with self._using(call) as line:
            [(count,)] = line.execute(self._statement(COUNT)).fetchall()
        return int(count)

    @contextmanager
    def _using(self, call: Call) -> Iterator[Line]:
        with self._connections.use(call) as line:
            try:
                yield line
            except _GONE as error:
                raise INDEX.is_gone(self._name) from error

    def _statement(self, template: str, **parts: Any) -> bytes:
        """Fill the table in, whose name has passed the pattern of names, and parts of our own."""
        return template.format(table=self._table, **parts).encode()

    def _create(self, line: Line) -> None:
        """Make the table, unless it is there with the same manifest."""
        with line.transaction():
            line.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_NUMBER,))
            line.execute(MANIFESTS)
            kept = line.execute(
                "SELECT manifest FROM vector_indexes WHERE name = %s", (self._name,)
            ).fetchone()
            if kept is not None:
                check_manifest(self._name, read_manifest(kept[0]), self._manifest)
                return
            _need_pgvector(line)
            dimensions = self._manifest.dimensions
            for statement in SCHEMA:
                line.execute(self._statement(statement, dimensions=dimensions))
            if dimensions <= MAX_IN_ROW_DIMENSIONS:
                line.execute(self._statement(IN_ROW))
            if dimensions <= MAX_HNSW_DIMENSIONS:
                line.execute(self._statement(HNSW))
            line.execute(
                "INSERT INTO vector_indexes VALUES (%s, %s)", (self._name, manifest_text(self._manifest))
            )


def open_postgres(rest: str, *, name: str, manifest: IndexManifest) -> PostgresIndex:
    """Open an index of `postgresql://USER:PASSWORD@HOST:PORT/DATABASE`."""
    return PostgresIndex(rest, name, manifest)


_GONE = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.DataException,  # pgvector's: the table was made anew, for vectors of another length
)


class _Sent(bytes):
    """A vector in the form that pgvector receives."""


def _binary(vector: Vector) -> bytes:
    """Write the number of dimensions and 0, each as two bytes, then the components as float32, big-endian."""
    return len(vector).to_bytes(2, "big") + b"\x00\x00" + vector.astype(">f4").tobytes()


def _read(binary: bytes) -> Vector:
    """Read what `_binary` writes."""
    return np.frombuffer(binary, dtype=">f4", offset=4).astype(np.float32)


def _columns(entry: IndexEntry, vector: Vector) -> tuple[Any, ...]:
    """Return what UPSERT takes of an entry."""
    asked = filter_values(entry.record)
    return (
        stored_text(entry.record.id),
        record_text(entry.record),
        stored_text(entry.digest),
        *(None if value is None else lookup_text(value) for value in asked.values()),
        _binary(vector),
    )


def _need_pgvector(line: Line) -> None:
    try:
        with line.transaction():
            line.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except psycopg.Error:
        raise StoreUnavailable(
            "PostgreSQL: the database has no pgvector: install it, and CREATE EXTENSION vector as its owner"
        ) from None


def _send_vectors(line: Line) -> None:
    """Teach a connection to send vectors: pgvector's type has another number in every database."""
    found = psycopg.types.TypeInfo.fetch(line, "vector")
    if found is None:
        raise StoreUnavailable("PostgreSQL: pgvector is not in the search path: add its schema to the URL's")

    number = found.oid

    class VectorDumper(psycopg.adapt.Dumper):
        format = psycopg.pq.Format.BINARY
        oid = number

        def dump(self, obj: _Sent) -> bytes:
            return obj

    line.adapters.register_dumper(_Sent, VectorDumper)
