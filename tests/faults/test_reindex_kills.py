"""Worker processes killed while they reindex: the run goes on elsewhere, and the index becomes the store."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartWorker
from tests.reindexing import Library

RECORDS = 2000
PAGE = 20  # records
SLOTS = 3  # of a worker
KILLS = 4
WITHIN = 120.0  # seconds


@pytest.fixture
def library(worker_process: StartWorker, broker_url: str, tmp_path: Path) -> Iterator[Library]:
    library = Library(worker_process, broker_url, tmp_path, page_size=PAGE, pause=0.05)
    yield library
    library.close()


@pytest.mark.parametrize(("mode", "workers"), [("incremental", 1), ("full", 1), ("full", 2)])
def test_a_run_survives_the_death_of_its_workers_and_embeds_only_what_was_at_hand_again(
    library: Library, mode: str, workers: int
) -> None:
    chance = random.Random(mode + str(workers))
    for start in range(0, RECORDS, 500):
        library.write(*(f"a {number}" for number in range(start, start + 500)))
    for _ in range(workers):
        library.hire(concurrency=SLOTS)
    running = library.submit(mode=mode)
    alive = list(library.workers)
    for kill in range(1, KILLS + 1):
        library.wait_embedded(RECORDS * kill // (KILLS + 2))
        alive.pop(chance.randrange(len(alive))).kill()
        alive.append(library.hire(concurrency=SLOTS))
    report = running.result(WITHIN).unwrap()

    assert library.difference() == (0, 0, 0)
    assert library.target.generations.active().index.count() == RECORDS
    assert report["failedCount"] == 0
    times = library.embedded()
    assert len(times) == RECORDS
    assert max(times.values()) <= 1 + KILLS
    assert times.total() - RECORDS <= KILLS * SLOTS * PAGE
    library.forget_embedded()
    assert library.run()["embedded"] == 0
    assert library.embedded() == {}


def test_what_was_deleted_before_the_death_of_the_run_does_not_come_back(library: Library) -> None:
    ids = library.write(*(f"a {number}" for number in range(600)))
    library.hire(concurrency=SLOTS)
    running = library.submit(mode="full")
    library.wait_embedded(200)
    library.delete(*ids[::2])
    library.workers[0].kill()
    library.hire(concurrency=SLOTS)
    running.result(WITHIN).unwrap()
    assert library.difference() == (0, 0, 0)
    assert library.target.generations.active().index.count() == 300
