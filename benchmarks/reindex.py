"""REINDEX.RUN on worker processes: its speed, its memory, and what it keeps when processes die.

`python -m benchmarks.reindex [--quick] [--only PART ...] [--json FILE]`. Stores and indexes are in SQLite.

- speed: one worker beside a straight script, which reads, embeds and upserts in one loop, with the same
  store, index, model (wordllama) and size of a page, and keeps no place: what is measured is what tasks cost.
  Each of our runs ends with a wait until every search has seen the switch; it counts. Where others want the
  processor, who gets it decides: so its time is shown, too.
- workers: two of one slot beside one, where a model server takes 20 ms a request (benchmarks/slow_model.py).
- memory: of a worker that fills the index of a large store, at the end beside a fifth of the way; then what
  an incremental run costs there.
- kills, beats, switches: benchmarks/reindex_faults.py.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.faults import Scene, scene
from benchmarks.reindex_faults import beats, kills, switches
from benchmarks.reindex_site import Site
from benchmarks.report import Row, finish
from benchmarks.slow_model import slow_model
from ditto_tasks.contracts.index import IndexEntry, IndexManifest
from ditto_tasks.contracts.memory import MemoryQueryInput
from ditto_tasks.contracts.retrieval import IdentifiedEmbedding
from providers.embedding import open_embedding
from providers.embedding.batching import embed_contents
from providers.embedding.records import RecordEmbedding, record_digest
from providers.indexes import open_index
from providers.stores import open_store

PAGE = 128  # records
CHANGED = 100
DIMENSIONS = 256  # of wordllama
LATENCY = 20  # milliseconds of the slow model
BEHIND_MODEL = {"page_size": 16, "batch_size": 2}  # so few that the model binds, not the processor
SAMPLED = 0.1  # seconds between two looks at a process

SPEED = 0.85  # of the script's
TWO_WORKERS = 1.8  # times one
INCREMENTAL = 2.0  # seconds
READ = 200  # records
GROWN = 1.1  # memory at the end, beside a fifth of the way


@dataclass(frozen=True)
class Scale:
    """How much of everything is done.

    Attributes:
        records: of speed.
        rounds: in which the script and we take turns.
        slow: records behind the slow model.
        many: records of the large store.
        killed: records of the run whose workers are killed.
        lanes: how many of the parts that measure no speed go on at once.
    """

    records: int
    rounds: int
    slow: int
    many: int
    killed: int
    kills: int
    slots: int
    searches: int
    lanes: int


FULL = Scale(100_000, 3, 5_000, 1_000_000, 50_000, 20, 1_000, 10_000, 1)
QUICK = Scale(5_000, 3, 500, 5_000, 2_000, 2, 100, 300, 4)


def speed(opened: Scene, scale: Scale) -> list[Row]:
    """Reindex all, by turns with the script."""
    ours: list[Cost] = []
    theirs: list[Cost] = []
    with closing(Site(opened, scale.records, page_size=PAGE, batch_size=PAGE)) as site:
        worker = psutil.Process(site.hire("reindex", concurrency=2).pid)
        script = Script(site)
        for _ in range(scale.rounds):
            theirs.append(_cost(psutil.Process(), script.run))
            ours.append(_cost(worker, lambda: site.run("full")))
    what = f"full run, {scale.records:,} records"
    fastest = (scale.records / min(cost.seconds for cost in costs) for costs in (ours, theirs))
    spent = (min(cost.processor for cost in costs) * 1e6 / scale.records for costs in (ours, theirs))
    return [
        Row(what, *fastest, SPEED, "records/s", "higher"),
        Row(f"{what}: processor time", *spent, None, "µs/record"),
    ]


def workers(opened: Scene, scale: Scale) -> list[Row]:
    """Reindex all with one worker, then with two."""
    seconds: list[float] = []
    with (
        slow_model(LATENCY) as url,
        closing(Site(opened, scale.slow, model_url=url, **BEHIND_MODEL)) as site,
    ):
        for _ in range(2):
            site.hire("reindex", concurrency=1, model="any/1")
            seconds.append(_timed(lambda: site.run("full"))[0])
    one, two = (scale.slow / taken for taken in seconds)
    name = f"two workers beside one, model of {LATENCY} ms, {scale.slow:,} records"
    return [Row(name, two, one, TWO_WORKERS, "records/s", "higher")]


def memory(opened: Scene, scale: Scale) -> list[Row]:
    """Fill the index of many records, and watch the worker meanwhile; then bring up what changed."""
    with closing(Site(opened, scale.many, page_size=PAGE, batch_size=PAGE)) as site:
        worker = site.hire("reindex", concurrency=2)
        with resident(worker.pid) as megabytes:
            site.run("incremental")
        runs = [_incremental(site) for _ in range(3)]
    of = f"{scale.many:,} records"
    changes = f"{CHANGED} changes in {of}"
    seconds = max(taken for taken, _ in runs)
    read, embedded = (max(report[count] for _, report in runs) for count in ("scanned", "embedded"))
    return [
        Row(
            f"memory at the end, {of}, beside 20 %",
            megabytes[-1],
            megabytes[len(megabytes) // 5],
            GROWN,
            "MB",
        ),
        Row(f"{changes}: time", seconds, None, INCREMENTAL, "s", measure="value"),
        Row(f"{changes}: read", read, None, READ, "records", measure="value"),
        Row(f"{changes}: embedded", embedded, None, CHANGED, "records", measure="value"),
    ]


@dataclass(frozen=True)
class Cost:
    """What an act took: seconds, and those of them in which a process had a processor."""

    seconds: float
    processor: float


class Script:
    """What a program would do that nobody interrupts."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._embedding: IdentifiedEmbedding = open_embedding("wordllama")
        self._runs = 0

    def run(self) -> None:
        """Read, embed and upsert all, into an index of its own."""
        self._runs += 1
        store = open_store(self._site.store_url)
        url = f"sqlite:///{self._site.folder}/straight{self._runs}.sqlite"
        embed = RecordEmbedding(self._embedding)
        manifest = IndexManifest(self._embedding.identity, DIMENSIONS, embed.preprocessing)
        with store, open_index(url, name="memories", manifest=manifest) as index:
            request = MemoryQueryInput(limit=PAGE)
            while True:
                page: Any = store.query(request)
                vectors = embed_contents(embed, page.items, "document", batch_size=PAGE)
                entries = [
                    IndexEntry(record, vector, record_digest(record))
                    for record, vector in zip(page.items, vectors, strict=True)
                ]
                index.upsert(entries)
                if page.next_cursor is None:
                    return
                request = MemoryQueryInput(limit=PAGE, cursor=page.next_cursor)


@contextmanager
def resident(pid: int) -> Iterator[list[float]]:
    """Note the resident memory of a process, in megabytes, again and again until the block ends."""
    process, ended = psutil.Process(pid), threading.Event()
    noted: list[float] = []

    def note() -> None:
        while not ended.wait(SAMPLED):
            noted.append(process.memory_info().rss / 2**20)

    thread = threading.Thread(target=note)
    thread.start()
    try:
        yield noted
    finally:
        ended.set()
        thread.join()


def _cost(process: psutil.Process, act: Callable[[], Any]) -> Cost:
    before = sum(process.cpu_times()[:2])
    seconds, _ = _timed(act)
    return Cost(seconds, sum(process.cpu_times()[:2]) - before)


def _incremental(site: Site) -> tuple[float, Any]:
    site.change(CHANGED)
    return _timed(lambda: site.run("incremental"))


def _timed(act: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    answer = act()
    return time.perf_counter() - start, answer


Part = Callable[[Scene, Scale], list[Row]]

ALONE: dict[str, Part] = {"speed": speed, "workers": workers}
TOGETHER: dict[str, Part] = {
    "memory": memory,
    "kills": lambda opened, scale: kills(opened, scale.killed, scale.kills),
    "beats": lambda opened, scale: beats(opened, scale.slots),
    "switches": lambda opened, scale: switches(opened, scale.searches),
}


def measure(scale: Scale, names: list[str]) -> list[Row]:
    """Run the parts, each with servers and workers of its own; those that measure speed by themselves."""

    def run(part: Part) -> list[Row]:
        with scene() as opened:
            return part(opened, scale)

    def rows(parts: dict[str, Part], lanes: int) -> list[Row]:
        chosen = [part for name, part in parts.items() if not names or name in names]
        with ThreadPoolExecutor(lanes) as at_once:
            return [row for told in at_once.map(run, chosen) for row in told]

    return [*rows(ALONE, 1), *rows(TOGETHER, scale.lanes)]


def main() -> int:
    parser = argparse.ArgumentParser(description="what reindexing costs, and what it keeps")
    parser.add_argument("--quick", action="store_true", help="fewer of everything, in less than a minute")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    parser.add_argument("--only", nargs="+", default=[], choices=[*ALONE, *TOGETHER])
    options = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of the workers: Celery warns with each reconnect
    return finish(measure(QUICK if options.quick else FULL, options.only), options.json)


if __name__ == "__main__":
    sys.exit(main())
