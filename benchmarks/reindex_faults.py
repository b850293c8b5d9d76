"""What reindexing keeps when workers die, when beats die, and when generations switch under searches."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from benchmarks.faults import Scene
from benchmarks.reindex_site import WAIT, Site
from benchmarks.report import Row
from benchmarks.slow_model import slow_model
from ditto_tasks import Invocation, Runtime
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.contracts.reindex import RECORDS_TARGET
from tests.beat_process import BeatProcess, Orchestra
from tests.conftest import WorkerProcess, wait_until
from tests.faults.test_beats import cutting_connections
from tests.reindexing import Library

__all__ = ["beats", "kills", "switches"]

PAGE = 20  # records
SLOTS = 3  # of a worker
PAUSE = 0.05  # seconds that the embedding of a page takes, so that kills find some at work
WRITTEN = 1_000  # records a WRITE
SCHEDULES = 50  # each has a slot a second
RESTARTS = 4  # of beats
SEARCHED = 50  # records in the index that is searched
SEARCHERS = 4
MODELS = 5  # which take turns


def kills(scene: Scene, records: int, count: int) -> list[Row]:
    """Kill workers at random moments of a full run: by turns the one with the run, and one with pages."""
    library = Library(scene.start, scene.server().url(), scene.folder(), page_size=PAGE, pause=PAUSE)
    with closing(library):
        for start in range(0, records, WRITTEN):
            library.write(*(f"a {number}" for number in range(start, min(records, start + WRITTEN))))
        for _ in range(2):
            library.hire(concurrency=SLOTS)
        running = library.submit(mode="full")
        chance = random.Random(4354)
        for number, moment in enumerate(sorted(chance.sample(range(records * 9 // 10), count))):
            _wait_scanned(library, moment)
            _victim(library.workers, running, has_run=number % 2 == 0).kill()
            library.hire(concurrency=SLOTS)
        running.result(WAIT).unwrap()
        differences = sum(library.difference())
        embedded = library.embedded()
    return _rows_of_kills(f"{records:,} records, {count} SIGKILLs", differences, embedded, count)


def _wait_scanned(library: Library, count: int) -> None:
    """Wait until a run has passed so many records; it says so each half second."""
    wait_until(lambda: library.progress().get("scanned", 0) >= count, WAIT, f"{count} are looked at", 0.05)


def _victim(workers: list[WorkerProcess], running: Invocation, *, has_run: bool) -> WorkerProcess:
    """Take a worker out of the list: that which received the run, once one has, or one that did not."""
    received = f"REINDEX.RUN[{running.id}] received"

    def chosen() -> list[WorkerProcess]:
        return [worker for worker in workers if (received in worker.log) == has_run]

    wait_until(chosen, WAIT, "a worker has the run")
    victim = chosen()[0]
    workers.remove(victim)
    return victim


def _rows_of_kills(what: str, differences: int, embedded: Counter[str], count: int) -> list[Row]:
    again = embedded.total() - len(embedded)
    allowed = count * SLOTS * PAGE  # once a kill and page in flight
    too_often = sum(times > 1 + count for times in embedded.values())
    return [
        _none(f"{what}: differences between index and store", differences, "records"),
        _none(
            f"{what}: embedded again, beyond pages in flight", max(0, again - allowed) + too_often, "records"
        ),
        Row(f"{what}: embedded again", again, None, allowed, "records", measure="value"),
    ]


def beats(scene: Scene, slots: int) -> list[Row]:
    """Stop, kill and restart two beats one at a time, and cut all connections, until the slots are sent."""
    chance = random.Random(4)
    orchestra = Orchestra(scene.server().url(), scene.folder(), schedules=SCHEDULES)
    with closing(orchestra):
        orchestra.start()
        orchestra.start()
        orchestra.sender()
        with cutting_connections(orchestra.client) as cuts:
            for part in range(RESTARTS):
                orchestra.wait_sent(slots * (part + 1) // (RESTARTS + 1))
                beat = chance.choice(orchestra.beats) if part % 2 else orchestra.sender()
                _replace(orchestra, beat, stopping=part < RESTARTS // 2)
            orchestra.wait_sent(slots)
        orchestra.stop()
        sent, wrong = orchestra.sent(), len(orchestra.not_sent_once())
    what = f"two beats, {sent:,} slots, {RESTARTS} restarts, {len(cuts)} cuts"
    return [_none(f"{what}: sent other than exactly once", wrong, "slots")]


def _replace(orchestra: Orchestra, beat: BeatProcess, *, stopping: bool) -> None:
    """Stop or kill a beat, start another, and wait until that stands by or sends."""
    if stopping:
        beat.stop()
    orchestra.replace(beat)
    new = orchestra.beats[-1]
    wait_until(lambda: "stands by" in new.log or orchestra.holder() == new.pid, what="the new beat is up")


def switches(scene: Scene, count: int) -> list[Row]:
    """Search over the queue, while another process changes which generation is active again and again."""
    with (
        slow_model(0) as url,
        closing(Site(scene, SEARCHED, page_size=8, batch_size=8, model_url=url)) as site,
        ThreadPoolExecutor(SEARCHERS) as searchers,
    ):
        site.hire("retrieval", concurrency=SEARCHERS, model=_model(0))
        _turn(site, 0)
        searches = Searches(site.runtime)
        at_work = [searchers.submit(searches.go_on) for _ in range(SEARCHERS)]
        try:
            turns = 0
            while not turns or searches.count < count:
                turns += 1
                _turn(site, turns)
        finally:
            searches.stop()
        for ended in at_work:
            ended.result(WAIT)
    what = f"{searches.count:,} searches amid {3 * turns} switches"
    return [
        _none(f"{what}: errors", searches.errors, "searches"),
        _none(f"{what}: mixed results", searches.mixed, "searches"),
        Row(f"{what}: models seen", len(searches.scores), None, 2, "models", "higher", "value"),
    ]


def _turn(site: Site, number: int) -> None:
    """Switch to another model's index, back, and forth again; the first time there is none to go back to."""
    worker = site.hire("reindex", concurrency=2, model=_model(number))
    site.run("incremental")
    for _ in range(2 if number else 0):
        site.roll_back()
    worker.kill()


def _model(number: int) -> str:
    return f"any/{number % MODELS + 1}"


class Searches:
    """Searches from many threads until it is stopped, and counts what is wrong.

    Attributes:
        mixed: results with the scores of two models, or not with all records.
        scores: all that were seen; each is one model's.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.count = self.errors = self.mixed = 0
        self.scores: set[float] = set()
        self._runtime = runtime
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def go_on(self) -> None:
        """Search, one time after the other."""
        asked = {
            "query": {"content": "?"},
            "target": {"name": RECORDS_TARGET},
            "strategy": "vector",
            "limit": SEARCHED,
        }
        while not self._stopped.is_set():
            result = self._runtime.submit("RETRIEVAL.SEARCH", asked).result(WAIT)
            with self._lock:
                self._note(result)

    def stop(self) -> None:
        self._stopped.set()

    def _note(self, result: NodeResult) -> None:
        self.count += 1
        if result.status != "success":
            self.errors += 1
            return
        candidates = result.unwrap()["candidates"]
        scores = {round(candidate["score"], 2) for candidate in candidates}
        self.mixed += len(scores) != 1 or len(candidates) != SEARCHED
        self.scores |= scores


def _none(name: str, ours: int, unit: str) -> Row:
    return Row(name, ours, None, 0, unit, measure="value")
