"""RETRIEVAL.SEARCH on four engines, each beside the engine's own client called directly.

`python -m benchmarks.engines [--quick] [--json FILE]`; 4,000 records in each engine, 500 with `--quick`;
all of it takes some ten minutes, most of them for Milvus Lite.

Ours is a call of the node: input checked, target and strategy resolved, records read, output checked.
Direct is what a program would write by hand for the same answer, over the same data: the statement in
sqlite3 or psycopg, `query_points` of Qdrant's client, `search` of Milvus's, and `json` for the records.
Vectors in SQLite have no client but numpy, over a matrix that is in memory already. For hybrid search,
direct makes both searches of a hundred, one after the other, and neither fuses nor smooths. Qdrant
searches no words: its hybrid search has them from SQLite.

Vectors are drawn by chance, one for each text, so that no model is measured. The provider alone, which has a
goal, is the index beside the client, with equal limit, payload and vector, and no filter.
"""

import argparse
import gc
import json
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psycopg
from pymilvus import MilvusClient
from qdrant_client import QdrantClient

from benchmarks.memory import SEARCH as SQLITE_SEARCH
from benchmarks.memory import Drafts
from benchmarks.report import Row, finish, turns
from ditto_tasks import Runtime
from ditto_tasks.contracts.index import VectorIndex
from ditto_tasks.contracts.memory import MemoryWriteInput
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall
from providers.indexes.postgres import SEARCH as POSTGRES_VECTORS
from providers.retrieval.records import RecordTarget
from providers.stores import open_store
from providers.stores._postgres_connections import SETTINGS
from providers.stores._postgres_sql import ranking
from tests.postgres_server import PostgresServer
from workers.retrieval import retrieval_worker

DIMENSIONS = 384
HITS = 10
POOL = 100  # of each branch of hybrid search, as ours has it
ASKED = 2  # words of a query: the first of a record, so that there are hits
BATCH = 200  # records a WRITE
CALLERS = 4  # at once, for the throughput
WARM = 5  # calls before any that counts
HELD = 15  # times as many rounds where there is a goal, so that a busy moment does not decide
TAIL = 100  # rounds from which on a p99 says something

NAME = "texts"  # of the index
INDEX_RATIO = {"PostgreSQL": 1.15, "Qdrant": 1.15}  # of a provider's call over its client's


class Drawn:
    """An embedding that draws the vector of a text by chance, always the same."""

    identity = "drawn"
    dimensions = DIMENSIONS

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        return [_drawn(text) for text in contents]


@cache
def _drawn(text: str) -> list[float]:
    vector = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIMENSIONS)
    numbers: list[float] = (vector / np.linalg.norm(vector)).astype(np.float32).tolist()
    return numbers


class Direct(Protocol):
    """An engine's own client; for one thread at a time."""

    def words(self, words: list[str], limit: int) -> list[Any]: ...

    def nearest(self, vector: list[float], limit: int) -> list[Any]: ...

    def close(self) -> None: ...


class DirectSqlite:
    """The statement for words; numpy for vectors, the records by one more statement."""

    def __init__(self, store: Path, index: Path | None) -> None:
        self._store = sqlite3.connect(store, check_same_thread=False)
        self._index = None if index is None else sqlite3.connect(index, check_same_thread=False)
        if self._index is not None:
            rows = self._index.execute("SELECT number, vector FROM entries").fetchall()
            self._numbers = [number for number, _ in rows]
            joined = b"".join(vector for _, vector in rows)
            self._matrix = np.frombuffer(joined, np.float32).reshape(len(rows), DIMENSIONS)

    def words(self, words: list[str], limit: int) -> list[Any]:
        query = " OR ".join(f'"{word}"' for word in words)
        rows = self._store.execute(SQLITE_SEARCH, (query, limit)).fetchall()
        return [(id, key, json.loads(content), score) for id, key, content, _, score in rows]

    def nearest(self, vector: list[float], limit: int) -> list[Any]:
        assert self._index is not None
        scores = self._matrix @ np.array(vector, np.float32)
        places = np.argpartition(-scores, limit)[:limit]
        best = {self._numbers[place]: scores[place] for place in places[np.argsort(-scores[places])]}
        marks = ", ".join("?" * limit)
        statement = f"SELECT number, record FROM entries WHERE number IN ({marks})"
        records = dict(self._index.execute(statement, list(best)))
        return [(json.loads(records[number]), float(score)) for number, score in best.items()]

    def close(self) -> None:
        self._store.close()
        if self._index is not None:
            self._index.close()


class DirectPostgres:
    """Our statements, on a connection of its own with the same settings."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        for setting in SETTINGS:
            self._connection.execute(setting.encode())
        statement = POSTGRES_VECTORS.format(table=f"vectors_{NAME}", where="", exactly="")
        self._nearest = statement.replace("<#> %s", "<#> %s::vector").encode()

    def words(self, words: list[str], limit: int) -> list[Any]:
        statement, values = ranking([(word,) for word in words], {}, limit)
        return self._connection.execute(statement.encode(), values, prepare=False).fetchall()

    def nearest(self, vector: list[float], limit: int) -> list[Any]:
        text = str(vector)
        rows = self._connection.execute(self._nearest, (text, text, limit), prepare=False)
        return [(json.loads(record), score) for record, score in rows]

    def close(self) -> None:
        self._connection.close()


class DirectQdrant:
    """Qdrant's client on a copy of the directory, which only one client may open; words from SQLite.

    All share that client, which without a server does one search at a time.
    """

    def __init__(self, client: QdrantClient, lock: threading.Lock, store: Path) -> None:
        self._client, self._lock = client, lock
        self._sqlite = DirectSqlite(store, None)
        self.words = self._sqlite.words
        self.close = self._sqlite.close

    def nearest(self, vector: list[float], limit: int) -> list[Any]:
        with self._lock:
            return self._client.query_points(NAME, query=vector, using="record", limit=limit).points


class DirectMilvus:
    """Milvus's client, on the same file."""

    def __init__(self, path: Path) -> None:
        self._client = MilvusClient(uri=str(path))
        self.close = self._client.close

    def words(self, words: list[str], limit: int) -> list[Any]:
        return self._search("memories", " ".join(words), "sparse", limit)

    def nearest(self, vector: list[float], limit: int) -> list[Any]:
        return self._search(NAME, vector, "vector", limit)

    def _search(self, collection: str, data: Any, field: str, limit: int) -> list[Any]:
        [hits] = self._client.search(
            collection,
            data=[data],
            anns_field=field,
            limit=limit,
            output_fields=["payload"],
            consistency_level="Strong",
        )
        return [(json.loads(hit["entity"]["payload"]), hit["distance"]) for hit in hits]


@dataclass(frozen=True, slots=True)
class Engine:
    """A filled engine: our target on it, and what opens its own client."""

    name: str
    target: RecordTarget
    open_direct: Callable[[], Direct]
    strategies: tuple[str, ...] = ("keyword", "vector", "hybrid")

    @property
    def index(self) -> VectorIndex:
        generations = self.target.generations
        return generations.opened(generations.read(NO_RETRIEVAL_CALL).active).index


@contextmanager
def sqlite_engine(folder: Path, drafts: list[Any]) -> Iterator[Engine]:
    store, index = folder / "store.sqlite", folder / "index.sqlite"
    with _filled(f"sqlite:///{store}", f"sqlite:///{index}", drafts) as target:
        yield Engine("SQLite", target, lambda: DirectSqlite(store, index))


@contextmanager
def postgres_engine(folder: Path, drafts: list[Any]) -> Iterator[Engine]:
    server = PostgresServer()
    try:
        server.start()
        server.execute("CREATE EXTENSION vector")
        with _filled(server.url(), server.url(), drafts) as target:
            server.execute("VACUUM ANALYZE")
            yield Engine("PostgreSQL", target, lambda: DirectPostgres(server.url()))
    finally:
        server.remove()


@contextmanager
def qdrant_engine(folder: Path, drafts: list[Any]) -> Iterator[Engine]:
    store, index, copy = folder / "store.sqlite", folder / "qdrant", folder / "copy"
    with _filled(f"sqlite:///{store}", f"qdrant:///{index}", drafts):
        pass
    shutil.copytree(index, copy)
    client, lock = QdrantClient(path=str(copy), force_disable_check_same_thread=True), threading.Lock()
    try:
        with _opened(f"sqlite:///{store}", f"qdrant:///{index}") as target:
            yield Engine(
                "Qdrant", target, lambda: DirectQdrant(client, lock, store), strategies=("vector", "hybrid")
            )
    finally:
        client.close()


@contextmanager
def milvus_engine(folder: Path, drafts: list[Any]) -> Iterator[Engine]:
    path = folder / "milvus.db"
    with _filled(f"milvus:///{path}", f"milvus:///{path}", drafts) as target:
        yield Engine("Milvus Lite", target, lambda: DirectMilvus(path))


def _opened(store_url: str, index_url: str) -> RecordTarget:
    return RecordTarget.open(NAME, open_store(store_url), index_url, Drawn())


@contextmanager
def _filled(store_url: str, index_url: str, drafts: list[Any]) -> Iterator[RecordTarget]:
    with _opened(store_url, index_url) as target:
        for start in range(0, len(drafts), BATCH):
            request = MemoryWriteInput.from_wire({"memories": drafts[start : start + BATCH]})
            ids = tuple(record.id for record in target.store.write(request))
            target.bring_up(ids, NO_RETRIEVAL_CALL)
        yield target


def measure(engine: Engine, queries: list[list[str]]) -> Iterator[Row]:
    """Search by each strategy, then the index alone."""
    direct = engine.open_direct()
    with Runtime(workers=[retrieval_worker({NAME: engine.target.target})]) as runtime:
        for strategy in engine.strategies:
            yield from _of_strategy(engine, runtime, direct, strategy, queries)
    vectors = [_drawn(" ".join(words)) for words in queries]
    index = engine.index

    def ours(number: int) -> None:
        _expect(index.search(vectors[number % len(vectors)], limit=HITS))

    def reference(number: int) -> None:
        _expect(direct.nearest(vectors[number % len(vectors)], HITS))

    rounds = len(queries) * (HELD if engine.name in INDEX_RATIO else 1)
    taken = [statistics.median(times) for times in _warm(rounds, ours, reference)]
    direct.close()
    name = f"{engine.name}: the index over its client, p50"
    yield Row(name, taken[0] * 1e3, taken[1] * 1e3, INDEX_RATIO.get(engine.name), "ms")


def _of_strategy(
    engine: Engine, runtime: Runtime, direct: Direct, strategy: str, queries: list[list[str]]
) -> Iterator[Row]:
    def ours(number: int) -> None:
        query = {"content": " ".join(queries[number])}
        request = {"query": query, "target": {"name": NAME}, "strategy": strategy, "limit": HITS}
        assert runtime.invoke("RETRIEVAL.SEARCH", request).unwrap()["candidates"]

    def reference(number: int) -> None:
        _search_direct(direct, strategy, queries[number])

    taken = _warm(len(queries), ours, reference)
    name = f"{engine.name} {strategy}"
    p50 = [statistics.median(times) * 1e3 for times in taken]
    yield Row(f"{name}, p50", *p50, None, "ms")
    if len(queries) >= TAIL:
        p99 = [statistics.quantiles(times, n=100)[98] * 1e3 for times in taken]
        yield Row(f"{name}, p99", *p99, None, "ms")

    directs = [engine.open_direct() for _ in range(CALLERS)]

    def ours_of(caller: int, number: int) -> None:
        ours(number)

    def reference_of(caller: int, number: int) -> None:
        _search_direct(directs[caller], strategy, queries[number])

    rates = [_rate(act, len(queries)) for act in (ours_of, reference_of)]
    for each in directs:
        each.close()
    yield Row(f"{name}, {CALLERS} callers", *rates, None, "/s", "higher")


def _search_direct(direct: Direct, strategy: str, words: list[str]) -> None:
    limit = POOL if strategy == "hybrid" else HITS
    if strategy != "vector":
        assert direct.words(words, limit)
    if strategy != "keyword":
        assert direct.nearest(_drawn(" ".join(words)), limit)


def _warm(rounds: int, *acts: Callable[[int], None]) -> list[list[float]]:
    turns(WARM, *acts)
    return turns(rounds, *acts)


def _rate(act: Callable[[int, int], None], count: int) -> float:
    """Return the searches a second when some callers do a share of them each at once."""

    def share(caller: int) -> None:
        for number in range(caller, count, CALLERS):
            act(caller, number)

    with ThreadPoolExecutor(CALLERS) as callers:
        start = time.perf_counter()
        list(callers.map(share, range(CALLERS)))
        return count / (time.perf_counter() - start)


def _expect(hits: Sequence[Any]) -> None:
    assert len(hits) == HITS


def main() -> int:
    parser = argparse.ArgumentParser(description="RETRIEVAL.SEARCH on four engines beside their own clients")
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds; under a minute")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    options = parser.parse_args()
    records, rounds = (500, 20) if options.quick else (4_000, TAIL)
    drafts = Drafts().batch(records)
    queries = [draft["content"]["text"].split()[:ASKED] for draft in drafts[:rounds]]
    rows: list[Row] = []
    for open_engine in (sqlite_engine, postgres_engine, qdrant_engine, milvus_engine):
        with tempfile.TemporaryDirectory() as folder, open_engine(Path(folder), drafts) as engine:
            gc.collect()
            gc.freeze()  # as a worker does once it is ready
            rows += measure(engine, queries)
        gc.unfreeze()
    return finish(rows, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
