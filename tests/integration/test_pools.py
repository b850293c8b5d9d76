"""MEMORY over SQLite in each of Celery's pools, and resources opened once a process."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import StartWorker, connected, wait_until
from tests.integration.conftest import Site

POOLS = ["threads", "prefork", "solo"]


def settings(folder: Path, pool: str) -> str:
    """Write a ditto.yaml for this pool; on the command line Celery cannot tell `prefork` from its default."""
    path = folder / "ditto.yaml"
    path.write_text(f"workers:\n  memory:\n    pool: {pool}\n    concurrency: 2\n")
    return str(path)


@pytest.mark.parametrize("pool", POOLS)
def test_memory_works_and_resources_are_opened_once_a_process_and_closed_with_it(
    broker_url: str, worker_process: StartWorker, tmp_path: Path, pool: str
) -> None:
    store = f"sqlite:///{tmp_path / 'memory.db'}"
    worker = worker_process(
        broker_url, DITTO_CONFIG=settings(tmp_path, pool), DITTO_WORKER_MEMORY_STORE_URL=store
    )
    with connected(broker_url) as runtime:
        drafts = [{"key": f"k{n}", "content": {"text": f"note {n}"}} for n in range(20)]
        written = [
            result.unwrap()[0]
            for result in runtime.map("MEMORY.WRITE", [{"memories": [draft]} for draft in drafts])
        ]
        assert [item["key"] for item in written] == [draft["key"] for draft in drafts]
        assert len(runtime.invoke("MEMORY.QUERY", {}).unwrap()["items"]) == 20
        [hit, *_] = runtime.invoke("MEMORY.SEARCH", {"query": "note 7"}).unwrap()
        assert hit["memory"] == written[7]
        patch = {"id": written[0]["id"], "metadata": {"kind": "first"}}
        assert runtime.invoke("MEMORY.UPDATE", {"memories": [patch]}).unwrap()[0]["metadata"] == {
            "kind": "first"
        }
        assert runtime.invoke("MEMORY.DELETE", {"ids": [patch["id"]]}).unwrap() == {"deleted": [patch["id"]]}
        ran = [result.unwrap() for result in runtime.map("TEST.WHERE", [{}] * 20)]
    assert all(run["pid"] == run["opened"] for run in ran)
    assert all(run["spared"] > 10_000 for run in ran), "what is loaded is left out of garbage collections"
    worker.stop()
    assert "Traceback" not in worker.log
    opened = [line for line in worker.trace if line.startswith("opened")]
    closed = [line for line in worker.trace if line.startswith("closed")]
    assert len(opened) == len(set(opened)) == (2 if pool == "prefork" else 1)
    assert sorted(closed) == sorted(line.replace("opened", "closed") for line in opened)
    assert (f"opened {worker.pid}" in opened) == (pool != "prefork")


def test_a_warm_stop_lets_the_running_call_end(
    broker_url: str, worker_process: StartWorker, tmp_path: Path
) -> None:
    worker = worker_process(broker_url)
    with connected(broker_url) as runtime:
        invocation = runtime.submit("TEST.HELD", {"until": str(tmp_path / "gate")})
        wait_until(lambda: invocation.status() == "running")
        with ThreadPoolExecutor(1) as threads:
            stopped = threads.submit(worker.stop)
            wait_until(lambda: "Warm shutdown" in worker.log, what="the worker stops")
            assert invocation.status() == "running"
            (tmp_path / "gate").touch()
            assert stopped.result() == 0
        assert invocation.result(5).unwrap() == "done"


@pytest.mark.parametrize("pool", POOLS)
def test_a_store_that_cannot_be_opened_is_named(
    broker_url: str, worker_process: StartWorker, tmp_path: Path, pool: str
) -> None:
    store = f"sqlite:///{tmp_path}/no/such/folder/memory.db"
    worker = worker_process(
        broker_url,
        wait=False,
        DITTO_CONFIG=settings(tmp_path, pool),
        DITTO_WORKER_MEMORY_STORE_URL=store,
    )
    wait_until(lambda: "no/such/folder" in worker.log, what="the store is named")
    assert "Traceback" not in worker.log


def test_a_solo_worker_that_is_told_to_stop_begins_no_other_call(site: Site) -> None:
    worker = site.hire(pool="solo", concurrency=1)
    with site.runtime() as runtime:
        first = runtime.submit("NOTED.WORK", {"label": "first", "until": str(site.gate)})
        site.wait_started("first")
        others = [runtime.submit("NOTED.WORK", {"label": f"other {n}"}) for n in range(3)]
        with ThreadPoolExecutor(1) as threads:
            stopped = threads.submit(worker.stop)
            wait_until(lambda: "Warm shutdown" in worker.log, what="the worker stops")
            site.gate.touch()
            assert stopped.result() == 0

        assert first.result(5).status == "success"
        assert site.notes.started() == ["first"]
        site.hire(pool="solo", concurrency=1)
        assert all(other.result(20).status == "success" for other in others)
