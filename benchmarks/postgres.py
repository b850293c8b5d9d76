"""MEMORY.SEARCH and vector search in PostgreSQL, with a filter that one record in a thousand matches.

`python -m benchmarks.postgres [--quick] [--json FILE]`; a million records take long to make, most of it
for the HNSW index; `--quick` has 50,000.

The server is the wheel's. Some records are written through the store; the rest are copies under ids, keys and
namespaces of their own, made by the database. Each search is in another namespace, and must give as many hits
as it asks for, or all that there are. Plain is what a program would write by hand for the same answer: the
same statement on a psycopg connection of its own with the same settings, and `json` for the record.
"""

import argparse
import json
import random
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg

from benchmarks.memory import Drafts
from benchmarks.report import Row, finish, medians
from ditto_tasks.contracts.index import IndexManifest
from ditto_tasks.contracts.memory import MemorySearchInput, MemoryWriteInput
from providers.indexes.postgres import HNSW, SEARCH, PostgresIndex
from providers.stores._postgres_connections import SETTINGS
from providers.stores.postgres import PostgresStore
from tests.postgres_server import PostgresServer

WRITTEN = 10_000  # records that go through the store
BATCH = 1_000
NAMESPACES = 1_000  # one record in a thousand is in each
DIMENSIONS = 64
HITS = 10

KEYWORD_GOAL = 30.0  # ms
VECTOR_GOAL = 30.0  # ms
VECTOR_RATIO = 1.15

SERVER = {
    "shared_buffers": "2GB",
    "maintenance_work_mem": "2GB",
    "max_wal_size": "8GB",
    "dynamic_shared_memory_type": "mmap",
}
COPIES = """
    INSERT INTO memories (id, memory_key, key_digest, content, metadata, namespace, kind, orders, words)
    SELECT
        gen_random_uuid()::text, memory_key || ':' || copy, sha256((memory_key || ':' || copy)::bytea),
        content, metadata, 'team:' || mod(number * 7 + copy, %s), kind, orders, words
    FROM memories, generate_series(1, %s) AS copy
"""
MATCHING = "SELECT count(*) FROM memories WHERE namespace = %s AND words @@ memory_query(%s)"
MANIFEST = IndexManifest("random", DIMENSIONS, "none")


class Plain:
    """The hand-written program: one connection, vectors as pgvector's text."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        for setting in SETTINGS:
            self._connection.execute(setting.encode())
        statement = SEARCH.format(table="vectors_notes", where="WHERE namespace = %s", exactly="")
        self._statement = statement.replace("<#> %s", "<#> %s::vector").encode()

    def close(self) -> None:
        self._connection.close()

    def search(self, vector: npt.NDArray[np.float32], namespace: str) -> list[tuple[Any, float]]:
        text = str(vector.tolist())
        rows = self._connection.execute(self._statement, (text, namespace, text, HITS), prepare=False)
        return [(json.loads(record), score) for record, score in rows]


def measure(size: int, rounds: int) -> list[Row]:
    """Fill a server and search it."""
    server = PostgresServer(**SERVER)
    try:
        server.start()
        server.execute("CREATE EXTENSION vector")
        return [_keyword(server, size, rounds), *_vector(server, size, rounds)]
    finally:
        server.remove()


def _keyword(server: PostgresServer, size: int, rounds: int) -> Row:
    drafts, picked = Drafts(), random.Random(11)
    with PostgresStore(_rest(server)) as store:
        for _ in range(WRITTEN // BATCH):
            store.write(MemoryWriteInput.from_wire({"memories": drafts.batch(BATCH)}))
        _copy(server, size // WRITTEN - 1)
        asked = [(drafts.words(2), f"team:{picked.randrange(NAMESPACES)}") for _ in range(rounds)]
        counts: list[int] = []

        def search(number: int) -> None:
            words, namespace = asked[number]
            request = MemorySearchInput(query=" ".join(words), filter={"namespace": namespace}, limit=HITS)
            counts.append(len(store.search(request)))

        (seconds,) = medians(rounds, search)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for (words, namespace), count in zip(asked, counts, strict=True):
            [(matching,)] = connection.execute(MATCHING, (namespace, words)).fetchall()
            assert count == min(HITS, matching)
    return Row(f"SEARCH two words, {_size(size)}", seconds * 1e3, None, KEYWORD_GOAL, "ms", measure="value")


def _copy(server: PostgresServer, copies: int) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP INDEX memories_words")
        connection.execute("UPDATE memories SET namespace = 'team:' || mod(number * 7, %s)", (NAMESPACES,))
        connection.execute(COPIES, (NAMESPACES, copies))
        connection.execute("CREATE INDEX memories_words ON memories USING gin (words)")
        connection.execute("VACUUM ANALYZE memories")


def _vector(server: PostgresServer, size: int, rounds: int) -> list[Row]:
    source = np.random.default_rng(7)
    with PostgresIndex(_rest(server), "notes", MANIFEST) as index:
        _fill(server, size, source)
        queries = _units(source, rounds)
        plain = Plain(server.url())
        ours, reference = medians(
            rounds,
            lambda number: _expect(
                index.search(queries[number], limit=HITS, filter={"namespace": f"team:{number % NAMESPACES}"})
            ),
            lambda number: _expect(plain.search(queries[number], f"team:{number % NAMESPACES}")),
        )
        (whole,) = medians(rounds, lambda number: _expect(index.search(queries[number], limit=HITS)))
        plain.close()
    return [
        Row(f"vector search, {_size(size)}", ours * 1e3, None, VECTOR_GOAL, "ms", measure="value"),
        Row("vector search over psycopg", ours * 1e3, reference * 1e3, VECTOR_RATIO, "ms"),
        Row(f"vector search without a filter, {_size(size)}", whole * 1e3, None, None, "ms"),
    ]


def _fill(server: PostgresServer, size: int, source: np.random.Generator) -> None:
    """Copy random vectors in, and make their index again at the end, as one does with that many."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP INDEX vectors_notes_vector")
        into = "COPY vectors_notes (id, record, digest, namespace, vector) FROM STDIN"
        with connection.cursor() as cursor, cursor.copy(into) as copy:
            for start in range(0, size, BATCH):
                for place, vector in enumerate(_units(source, BATCH), start):
                    id = str(uuid.UUID(int=place))
                    record = json.dumps({"id": id, "content": {"text": f"record {place} " * 8}})
                    copy.write_row((id, record, "digest", f"team:{place % NAMESPACES}", str(vector.tolist())))
        connection.execute(HNSW.format(table="vectors_notes").encode())
        connection.execute("VACUUM ANALYZE vectors_notes")


def _units(source: np.random.Generator, count: int) -> npt.NDArray[np.float32]:
    vectors = source.standard_normal((count, DIMENSIONS)).astype(np.float32)
    units: npt.NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units


def _expect(hits: Any) -> None:
    assert len(hits) == HITS


def _rest(server: PostgresServer) -> str:
    return server.url().partition("://")[2]


def _size(count: int) -> str:
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1_000}k"


def main() -> int:
    parser = argparse.ArgumentParser(description="Search in PostgreSQL with a filter of one in a thousand")
    parser.add_argument("--quick", action="store_true", help="50k records, fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    options = parser.parse_args()
    rows = measure(50_000, 100) if options.quick else measure(1_000_000, 500)
    return finish(rows, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
