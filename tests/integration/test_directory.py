"""Who serves what: the directory of live workers as callers see it."""

import time

import pytest

from ditto_tasks import NoWorkerAvailable
from ditto_tasks.transport.directory import EXPIRY
from tests.conftest import LATE, StartWorker, announced, connected, wait_until


def test_a_call_that_nobody_serves_fails_at_once(broker_url: str) -> None:
    with connected(broker_url) as runtime:
        began = time.monotonic()
        with pytest.raises(NoWorkerAvailable, match="no live worker serves"):
            runtime.invoke("MEMORY.GET", {"ids": ["a"]})
        assert time.monotonic() - began < 1 + LATE


def test_a_worker_is_listed_with_what_it_serves(broker_url: str, worker_process: StartWorker) -> None:
    worker = worker_process(broker_url, "-c", "3", "-Q", "ditto.memory.get,ditto.test.echo")
    with connected(broker_url) as runtime:
        [info] = runtime.workers()
        with pytest.raises(NoWorkerAvailable):
            runtime.invoke("MEMORY.QUERY", {})
    assert info.id.startswith(worker.name)
    assert (info.nodes, info.concurrency, info.is_local) == (("MEMORY.GET", "TEST.ECHO"), 3, False)


def test_a_worker_that_stops_takes_its_announcement_back(
    broker_url: str, worker_process: StartWorker
) -> None:
    worker = worker_process(broker_url)
    assert len(announced(broker_url)) == 1
    assert worker.stop() == 0
    assert announced(broker_url) == []
    assert "Traceback" not in worker.log


def test_a_worker_that_was_killed_counts_as_dead_soon(broker_url: str, worker_process: StartWorker) -> None:
    worker = worker_process(broker_url)
    with connected(broker_url) as runtime:
        assert runtime.invoke("TEST.ECHO", 1).unwrap() == 1
        worker.kill()
        wait_until(lambda: not announced(broker_url), timeout=EXPIRY + 2 + LATE)
        with pytest.raises(NoWorkerAvailable):
            runtime.invoke("TEST.ECHO", 1, timeout=20)


def test_one_of_two_workers_is_enough(broker_url: str, worker_process: StartWorker) -> None:
    first = worker_process(broker_url, wait=False)
    worker_process(broker_url)
    first.wait_ready()
    assert len(announced(broker_url)) == 2
    first.stop()
    with connected(broker_url) as runtime:
        assert len(runtime.workers()) == 1
        assert runtime.invoke("TEST.ECHO", 1).unwrap() == 1
