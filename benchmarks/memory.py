"""MEMORY on SQLite beside the same statements in plain sqlite3.

`python -m benchmarks.memory [--quick] [--json FILE]`; all sizes take about three minutes.

Ours goes the whole way of the direct SDK: `Memory(store).get(...)`, input checked, output checked. Plain is
what a program would write by hand for the same answer: the statement on a connection of its own with the same
settings, and `json` for content and metadata. For reads both use the same file. For writes each has a file of
its own with the same tables, indexes and records; plain hands the text to the index as it is, for it knows
where in the content it is and that all of it is ASCII, while ours looks for text everywhere.
"""

import argparse
import json
import random
import shutil
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.report import Row, finish, medians
from ditto_tasks.contracts.memory import MemoryWriteInput
from ditto_tasks.nodes.memory import Memory
from providers.stores.sqlite import SqliteStore

BATCH = 1_000  # records a WRITE
PAGE = 100  # records a QUERY
HITS = 10  # records a SEARCH
WORDS = 20  # in a record
VOCABULARY = [f"w{number:05x}" for number in range(20_000)]
FREQUENCIES = list(accumulate(1 / (rank + 3) for rank in range(len(VOCABULARY))))  # Zipf's law, its head cut

GET_OVERHEAD = 60.0  # µs over plain
FLAT = 1.5  # GET in the largest file against the smallest
SEARCH_RATIO = 1.3
WRITE_RATIO = 0.6

GET = "SELECT id, memory_key, content, metadata FROM memories WHERE id = ?"
QUERY = "SELECT id, memory_key, content, metadata FROM memories WHERE id > ? ORDER BY id LIMIT ?"
SEARCH = """
    SELECT id, memory_key, content, metadata, -rank
    FROM memory_words JOIN memories ON memories.number = memory_words.rowid
    WHERE memory_words MATCH ? ORDER BY rank LIMIT ?
"""
INSERT = "INSERT INTO memories (number, id, memory_key, content, metadata) VALUES (?, ?, ?, ?, ?)"
INSERT_WORDS = "INSERT INTO memory_words (rowid, words) VALUES (?, ?)"


class Plain:
    """The hand-written program."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for setting in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -16384"):
            self._connection.execute(f"PRAGMA {setting}")

    def close(self) -> None:
        self._connection.close()

    def get(self, id: str) -> dict[str, Any]:
        return _record(self._connection.execute(GET, (id,)).fetchone())

    def query(self, after: str) -> list[dict[str, Any]]:
        return [_record(row) for row in self._connection.execute(QUERY, (after, PAGE))]

    def search(self, words: list[str]) -> list[dict[str, Any]]:
        query = " OR ".join(f'"{word}"' for word in words)
        rows = self._connection.execute(SEARCH, (query, HITS)).fetchall()
        return [{"memory": _record(row[:4]), "score": row[4]} for row in rows]

    def write(self, drafts: list[dict[str, Any]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        (last,) = self._connection.execute("SELECT coalesce(max(number), 0) FROM memories").fetchone()
        self._connection.executemany(
            INSERT,
            [
                (number, str(uuid.uuid4()), draft["key"], _text(draft["content"]), _text(draft["metadata"]))
                for number, draft in enumerate(drafts, last + 1)
            ],
        )
        self._connection.executemany(
            INSERT_WORDS,
            [(number, draft["content"]["text"]) for number, draft in enumerate(drafts, last + 1)],
        )
        self._connection.execute("COMMIT")


class Drafts:
    """Makes records, each with a key of its own; the same ones in every run."""

    def __init__(self) -> None:
        self._random = random.Random(7)
        self._next = 0

    def batch(self, size: int = BATCH) -> list[dict[str, Any]]:
        return [self._draft() for _ in range(size)]

    def words(self, count: int) -> list[str]:
        return self._random.choices(VOCABULARY, cum_weights=FREQUENCIES, k=count)

    def _draft(self) -> dict[str, Any]:
        self._next += 1
        return {
            "key": f"record:{self._next}",
            "content": {"text": " ".join(self.words(WORDS)), "source": {"turn": self._next}},
            "metadata": {"namespace": f"team:{self._next % 50}", "kind": "note"},
        }


def measure(sizes: list[int], rounds: int, folder: Path) -> list[Row]:
    """Fill one file step by step and measure at each size."""
    rows: list[Row] = []
    path, drafts = folder / "memory.db", Drafts()
    ids: list[str] = []
    with SqliteStore(str(path)) as store:
        for size in sizes:
            while len(ids) < size:
                written = store.write(MemoryWriteInput.from_wire({"memories": drafts.batch()}))
                ids += [record.id for record in written]
            rows += _reads(Memory(store), Plain(path), drafts, ids, rounds)
            rows += _writes(path, folder, drafts, size, max(15, rounds // 40))
    gets = [row for row in rows if row.name.startswith("GET")]
    flat = (gets[-1].ours, gets[0].ours)
    return [*rows, Row(f"GET, {_size(sizes[-1])} against {_size(sizes[0])}", *flat, FLAT, "µs")]


def _reads(memory: Memory, plain: Plain, drafts: Drafts, ids: list[str], rounds: int) -> Iterator[Row]:
    size, picked = _size(len(ids)), random.Random(11).choices(ids, k=rounds * 4)
    queries = [drafts.words(2) for _ in range(max(40, rounds // 10))]

    get = medians(
        len(picked),
        lambda number: memory.get({"ids": [picked[number]]}).unwrap(),
        lambda number: plain.get(picked[number]),
    )
    yield Row(f"GET one, {size}", *_in(1e6, get), GET_OVERHEAD, "µs", measure="difference")
    query = medians(
        rounds,
        lambda number: memory.query({"cursor": picked[number], "limit": PAGE}).unwrap(),
        lambda number: plain.query(picked[number]),
    )
    yield Row(f"QUERY a page of {PAGE}, {size}", *_in(1e6, query), None, "µs")
    search = medians(
        len(queries),
        lambda number: memory.search({"query": " ".join(queries[number]), "limit": HITS}).unwrap(),
        lambda number: plain.search(queries[number]),
    )
    yield Row(f"SEARCH two words, {size}", *_in(1e3, search), SEARCH_RATIO, "ms")
    plain.close()


def _writes(path: Path, folder: Path, drafts: Drafts, size: int, rounds: int) -> Iterator[Row]:
    """Write into two copies of the file, so that the next size starts from what the reads have seen."""
    copies = [folder / "ours.db", folder / "plain.db"]
    for copy in copies:
        _copied(path, copy)
    batches = [drafts.batch() for _ in range(rounds)]
    plain = Plain(copies[1])
    with SqliteStore(str(copies[0])) as store:
        memory = Memory(store)
        write = medians(
            rounds,
            lambda number: memory.write({"memories": batches[number]}).unwrap(),
            lambda number: plain.write(batches[number]),
        )
    plain.close()
    for copy in copies:
        copy.unlink()
    ours, reference = (BATCH / seconds for seconds in write)
    yield Row(
        f"WRITE {BATCH:,} a batch, {_size(size)}", ours, reference, WRITE_RATIO, "records/s", better="higher"
    )


def _copied(path: Path, copy: Path) -> None:
    source = sqlite3.connect(path)
    source.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    source.close()
    shutil.copyfile(path, copy)


def _record(row: Any) -> dict[str, Any]:
    id, key, content, metadata = row
    return {"id": id, "key": key, "content": json.loads(content), "metadata": json.loads(metadata)}


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _in(factor: float, seconds: list[float]) -> tuple[float, float]:
    ours, reference = seconds
    return ours * factor, reference * factor


def _size(count: int) -> str:
    return f"{count // 1_000_000}M" if count >= 1_000_000 else f"{count // 1_000}k"


def main() -> int:
    parser = argparse.ArgumentParser(description="MEMORY on SQLite beside plain sqlite3")
    parser.add_argument("--quick", action="store_true", help="1k and 100k records, fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    options = parser.parse_args()
    sizes = [1_000, 100_000] if options.quick else [1_000, 100_000, 1_000_000]
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(sizes, 200 if options.quick else 1_000, Path(folder))
    return finish(rows, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
