"""REINDEX.RUN on worker processes, over a real Redis and files of SQLite."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ditto_tasks.contracts.errors import MemoryNodeError
from tests.conftest import StartWorker, wait_until
from tests.reindex_app import HELD, RELEASED, TARGET
from tests.reindexing import WITHIN, Library

MakeLibrary = Callable[..., Library]
PAGE = 20  # records


@pytest.fixture
def make_library(worker_process: StartWorker, broker_url: str, tmp_path: Path) -> Iterator[MakeLibrary]:
    """Makes the library of a test, with the options of `Library`."""
    made: list[Library] = []

    def make(**options: Any) -> Library:
        made.append(Library(worker_process, broker_url, tmp_path, **options))
        return made[-1]

    yield make
    for library in made:
        library.close()


def test_runs_bring_up_what_is_new_changed_and_deleted(make_library: MakeLibrary) -> None:
    library = make_library()
    library.hire()
    ids = library.write(*(f"a {number}" for number in range(200)))
    first = library.run()
    assert (first["scanned"], first["embedded"], first["failedCount"]) == (200, 200, 0)
    assert library.difference() == (0, 0, 0)

    library.forget_embedded()
    assert library.run()["embedded"] == 0
    assert library.embedded() == {}

    library.update(ids[0], "b")
    library.delete(ids[1])
    library.write("c")
    report = library.run()
    assert (report["embedded"], report["removed"]) == (2, 1)
    assert report["scanned"] < 10
    assert library.embedded() == {"b": 1, "c": 1}
    assert library.difference() == (0, 0, 0)

    library.forget_embedded()
    assert library.run(mode="full")["embedded"] == 200
    assert set(library.embedded().values()) == {1}
    assert library.difference() == (0, 0, 0)


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_a_worker_of_one_slot_does_the_pages_of_its_run_itself(make_library: MakeLibrary, pool: str) -> None:
    library = make_library()
    library.hire(concurrency=1, pool=pool)
    library.write(*(f"a {number}" for number in range(100)))
    assert library.run()["embedded"] == 100
    assert library.difference() == (0, 0, 0)


def test_pages_are_done_by_all_workers(make_library: MakeLibrary) -> None:
    library = make_library(pause=0.5)
    library.hire(wait=False)
    library.hire(wait=False)
    for worker in library.workers:
        worker.wait_ready()
    library.write(*(f"a {number}" for number in range(600)))
    assert library.run()["embedded"] == 600
    for worker in library.workers:
        wait_until(lambda: "REINDEX.PAGE success" in worker.log, what="each has done one")  # noqa: B023
    assert set(library.embedded().values()) == {1}


@pytest.mark.parametrize(("pool", "others_help"), [("threads", False), ("prefork", True)])
def test_with_a_model_that_threads_make_no_faster_only_other_processes_help(
    make_library: MakeLibrary, pool: str, others_help: bool
) -> None:
    library = make_library(pause=0.02, is_parallel=False)
    worker = library.hire(concurrency=3, pool=pool)
    library.write(*(f"a {number}" for number in range(200)))
    assert library.run()["embedded"] == 200
    assert ("REINDEX.PAGE success" in worker.log) is others_help
    library.hire(concurrency=1)
    assert library.run(mode="full")["embedded"] == 200
    assert any("REINDEX.PAGE success" in hired.log for hired in library.workers)


def test_a_run_does_pages_itself_for_as_long_as_another_has_one(
    make_library: MakeLibrary, tmp_path: Path
) -> None:
    library = make_library()
    library.hire(concurrency=1)
    library.hire(concurrency=1)
    ids = library.write(*(f"a {number}" for number in range(200)))
    library.update(min(ids), HELD)  # in the first page, which goes to the other worker
    running = library.submit()
    library.wait_embedded(100)
    (tmp_path / RELEASED).touch()
    assert running.result(WITHIN).unwrap()["embedded"] == 200
    assert library.difference() == (0, 0, 0)


def test_records_that_writers_change_meanwhile_end_as_their_last_state(make_library: MakeLibrary) -> None:
    library = make_library(pause=0.05)
    library.hire()
    ids = library.write(*(f"a {number}" for number in range(300)))
    running = library.submit(mode="full")
    library.wait_embedded(40)
    writers = [threading.Thread(target=_write_about, args=(library, ids, seed)) for seed in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(WITHIN)
    running.result(WITHIN).unwrap()
    library.run()
    assert library.difference() == (0, 0, 0)


def test_failures_are_listed_and_the_rest_is_done(make_library: MakeLibrary) -> None:
    library = make_library()
    library.hire()
    refused = library.write(*(f"a {number}!" for number in range(15)))
    library.write(*(f"b {number}" for number in range(100)))
    report = library.run()
    assert (report["embedded"], report["failedCount"]) == (100, 15)
    assert {failure["id"] for failure in report["failed"]} == set(refused)
    assert {failure["reason"] for failure in report["failed"]} == {"it shouts"}


def test_too_many_failures_end_the_run_as_failed(make_library: MakeLibrary) -> None:
    library = make_library()
    library.hire()
    library.write(*(f"a {number}!" for number in range(60)))
    result = library.submit().result(WITHIN)
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "REINDEX_TOO_MANY_FAILURES")
    assert library.progress()["state"] == "failed"


def test_a_cancelled_run_goes_on_where_it_was(make_library: MakeLibrary) -> None:
    library = make_library(pause=0.3, page_size=PAGE)
    library.hire()
    library.write(*(f"a {number}" for number in range(600)))
    running = library.submit(mode="full")
    library.wait_embedded(100)
    running.cancel("enough")
    result = running.result(WITHIN)
    assert result.status == "cancelled"
    assert library.progress()["state"] == "cancelled"
    done = sum(library.embedded().values())
    assert done < 600
    report = library.run(mode="full")
    assert report["run"] == library.progress()["run"]
    assert report["embedded"] + report["unchanged"] == 600  # a page may have ended after its run
    assert sum(library.embedded().values()) - 600 <= PAGE  # what the run itself had at hand
    assert library.difference() == (0, 0, 0)


def test_a_run_that_comes_meanwhile_is_covered(make_library: MakeLibrary, tmp_path: Path) -> None:
    library = make_library()
    library.hire()
    ids = library.write(*(f"a {number}" for number in range(300)))
    library.update(min(ids), HELD)
    running = library.submit(mode="full")
    library.wait_embedded(20)
    library.write("late")
    assert library.run() == {"covered": True}
    (tmp_path / RELEASED).touch()
    report = running.result(WITHIN).unwrap()
    assert (report["passes"], report["answered"]) == (2, 1)
    assert library.difference() == (0, 0, 0)


def test_progress_is_told_while_it_runs(make_library: MakeLibrary) -> None:
    library = make_library(pause=0.7)
    library.hire()
    library.write(*(f"a {number}" for number in range(300)))
    running = library.submit()
    wait_until(lambda: 0 < library.progress().get("embedded", 0) < 300, WITHIN, "some are told")
    assert library.progress()["execution"] == running.id
    assert running.result(WITHIN).unwrap()["embedded"] == library.progress()["embedded"] == 300
    assert library.progress()["state"] == "finished"


def test_a_check_names_what_differs_and_repairs_it(make_library: MakeLibrary) -> None:
    library = make_library()
    library.hire()
    first, second, third = library.write("a", "b", "c")
    library.run()
    library.update(first, "aa")
    library.delete(second)
    checked = library.runtime.invoke("REINDEX.CHECK", {"target": TARGET}).unwrap()
    assert (checked["missing"], checked["stale"], checked["orphaned"]) == ([], [first], [second])
    repaired = library.runtime.invoke("REINDEX.CHECK", {"target": TARGET, "repair": True}).unwrap()
    assert (repaired["repaired"]["embedded"], repaired["repaired"]["removed"]) == (1, 1)
    assert library.difference() == (0, 0, 0)
    assert third


def _write_about(library: Library, ids: list[str], seed: int) -> None:
    """Change and delete records at random; what another has deleted is gone already."""
    chance = random.Random(seed)
    for number in range(60):
        with suppress(MemoryNodeError):  # it is gone
            library.update(chance.choice(ids), f"b {seed} {number}")
        if number % 10 == 0:
            library.delete(chance.choice(ids))
        if number % 15 == 0:
            library.write(f"c {seed} {number}")
