"""REINDEX.RUN on one worker process beside a straight script that reads, embeds and upserts.

`python -m benchmarks.reindex [--quick] [--json FILE]`; 5,000 records with `--quick`, else 100,000. Store and
index are files of SQLite, the model is wordllama, pages have the same size on both sides. The script uses the
same store, index and embedding, in one loop, and keeps no place: what is measured is what tasks cost. An
incremental run follows; it is to read no more than what changed, and a little.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import Row, finish
from ditto_tasks import Runtime
from ditto_tasks.contracts.index import IndexEntry, IndexManifest
from ditto_tasks.contracts.memory import MemoryQueryInput, MemoryUpdateInput, MemoryWriteInput
from providers.embedding import open_embedding
from providers.embedding.batching import embed_contents
from providers.embedding.records import RecordEmbedding, record_digest
from providers.indexes import open_index
from providers.stores import Store, open_store
from tests.conftest import RedisServer, WorkerProcess, connected

WORDS = 40  # in a record
WRITTEN = 1_000  # records a WRITE
PAGE = 128  # records
CHANGED = 100
DIMENSIONS = 256  # of wordllama
ROUNDS = 3
WAIT = 1800.0  # seconds for any run

SPEED = 0.85  # of the script's
INCREMENTAL = 2.0  # seconds
READ = 200  # records


class Bench:
    """A store of records in a folder, and a worker process that reindexes it."""

    def __init__(self, folder: Path, records: int, url: str) -> None:
        self.records = records
        self._folder = folder
        self._random = random.Random(4354)
        self._vocabulary = [f"word{number}" for number in range(5_000)]
        self.store: Store = open_store(f"sqlite:///{folder}/memory.sqlite")
        self.ids = self._filled()
        self._embedding = open_embedding("wordllama")
        self.runtime: Runtime = connected(url)

    def change(self, count: int) -> None:
        patches = [
            {"id": id, "content": {"text": self._text()}} for id in self._random.sample(self.ids, count)
        ]
        self.store.update(MemoryUpdateInput.from_wire({"memories": patches}))

    def run(self, mode: str) -> Any:
        invocation = self.runtime.submit("REINDEX.RUN", {"target": "memories", "mode": mode})
        return invocation.result(WAIT).unwrap()

    def straight(self, number: int) -> None:
        """Read, embed and upsert all, as a program would that nobody interrupts."""
        store = open_store(f"sqlite:///{self._folder}/memory.sqlite")
        url = f"sqlite:///{self._folder}/straight{number}.sqlite"
        embed = RecordEmbedding(self._embedding)
        manifest = IndexManifest(self._embedding.identity, DIMENSIONS, embed.preprocessing)
        with store, open_index(url, name="memories", manifest=manifest) as index:
            request = MemoryQueryInput(limit=PAGE)
            while True:
                page: Any = store.query(request)
                vectors = embed_contents(embed, page.items, "document")
                entries = [
                    IndexEntry(record, vector, record_digest(record))
                    for record, vector in zip(page.items, vectors, strict=True)
                ]
                index.upsert(entries)
                if page.next_cursor is None:
                    return
                request = MemoryQueryInput(limit=PAGE, cursor=page.next_cursor)

    def close(self) -> None:
        self.runtime.close()
        self.store.close()

    def _filled(self) -> list[str]:
        ids: list[str] = []
        for _ in range(self.records // WRITTEN):
            drafts = [{"content": {"text": self._text()}} for _ in range(WRITTEN)]
            written = self.store.write(MemoryWriteInput.from_wire({"memories": drafts}))
            ids += [record.id for record in written]  # type: ignore[union-attr]
        return ids

    def _text(self) -> str:
        return " ".join(self._random.choices(self._vocabulary, k=WORDS))


@contextmanager
def bench(records: int) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = RedisServer(folder)
        server.start()
        made = Bench(folder, records, server.url())
        settings = folder / "ditto.yaml"
        workers = {
            "reindex": {"pageSize": PAGE},
            "retrieval": {"embedding": {"model": "wordllama", "batchSize": PAGE}},
        }
        settings.write_text(json.dumps({"workers": workers}))
        environ = {
            "DITTO_BROKER_URL": server.url(),
            "DITTO_CONFIG": str(settings),
            "DITTO_RUNTIME_WORKSPACE": name,
            "DITTO_WORKER_MEMORY_STORE_URL": f"sqlite:///{folder}/memory.sqlite",
            "DITTO_WORKER_RETRIEVAL_INDEX_URL": f"sqlite:///{folder}/index.sqlite",
        }
        worker = WorkerProcess("workers.app", folder, environ, "-c", "2")
        try:
            worker.wait_ready()
            yield made
        finally:
            made.close()
            worker.kill()
            server.kill()


def measure(records: int, rounds: int) -> list[Row]:
    """Reindex all, by turns with the script; then what changed."""
    ours: list[float] = []
    theirs: list[float] = []
    with bench(records) as made:
        made.run("incremental")
        for number in range(rounds):
            theirs.append(_seconds(lambda number=number: made.straight(number)))
            ours.append(_seconds(lambda: made.run("full")))
        quick: list[tuple[float, Any]] = []
        for _ in range(3):
            made.change(CHANGED)
            quick.append(_timed(lambda: made.run("incremental")))
    of = f"{records:,} records"
    fastest = (records / min(ours), records / min(theirs))
    return [
        Row(f"full run, {of}", *fastest, SPEED, "records/s", "higher"),
        Row(
            f"{CHANGED} changes in {of}: time",
            max(seconds for seconds, _ in quick),
            None,
            INCREMENTAL,
            "s",
            measure="value",
        ),
        Row(
            f"{CHANGED} changes in {of}: read",
            max(report["scanned"] for _, report in quick),
            None,
            READ,
            "records",
            measure="value",
        ),
        Row(
            f"{CHANGED} changes in {of}: embedded",
            max(report["embedded"] for _, report in quick),
            None,
            CHANGED,
            "records",
            measure="value",
        ),
    ]


def _timed(act: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = act()
    return time.perf_counter() - start, answer


def _seconds(act: Any) -> float:
    return _timed(act)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5,000 records instead of 100,000")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    rows = measure(5_000 if options.quick else 100_000, ROUNDS)
    return finish(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
