"""What reindexing asks of a model server at once, and in a second, under the limits of ditto.yaml."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ditto_tasks.contracts.memory import MemoryWriteInput
from ditto_tasks.contracts.reindex import RECORDS_TARGET
from providers.stores import open_store
from tests.conftest import StartWorker, WorkerProcess, connected
from tests.peer import Exchange, Peer, serving

WITHIN = 60.0  # seconds for any run
LATENCY = 0.03  # seconds of a request
BATCH = 4  # texts in a request
SLOTS = 3  # of each worker
RATE = 4.0  # pages a second


class Counter:
    """Answers as a model server does, and counts how many requests it has at once."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        self._never = threading.Event()

    def __call__(self, exchange: Exchange) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._never.wait(LATENCY)
        texts = exchange.json["input"]
        with self._lock:  # before the answer, which may bring the next request
            self._now -= 1
        data = [{"index": place, "embedding": [1.0, float(place)]} for place, _ in enumerate(texts)]
        exchange.answer(json.dumps({"data": data}).encode())


class Site:
    """A store of records, a model server, and workers of one configuration that reindex."""

    def __init__(self, start: StartWorker, url: str, folder: Path, peer: Peer, counter: Counter) -> None:
        self.peer = peer
        self.counter = counter
        self.workers: list[WorkerProcess] = []
        self._start = start
        self._url = url
        self._folder = folder
        self._store_url = f"sqlite:///{folder}/memory.sqlite"

    def write(self, count: int) -> None:
        drafts = [{"content": f"text {number}"} for number in range(count)]
        with closing(open_store(self._store_url)) as store:
            store.write(MemoryWriteInput.from_wire({"memories": drafts}))

    def hire(self, count: int, *, page_size: int, concurrency: int = SLOTS, **limits: Any) -> None:
        """Start workers with so many threads each."""
        settings = self._folder / "ditto.yaml"
        reindex = {"pageSize": page_size, "concurrency": concurrency, **limits}
        embedding = {"batchSize": BATCH, "dimensions": 2}
        settings.write_text(
            json.dumps({"workers": {"reindex": reindex, "retrieval": {"embedding": embedding}}})
        )
        for _ in range(count):
            worker = self._start(
                self._url,
                "--without-mingle",
                module="workers.app",
                wait=False,
                DITTO_CONFIG=str(settings),
                DITTO_WORKER_CAPABILITIES="reindex",
                DITTO_WORKER_MEMORY_STORE_URL=self._store_url,
                DITTO_WORKER_RETRIEVAL_INDEX_URL=f"sqlite:///{self._folder}/index.sqlite",
                DITTO_WORKER_RETRIEVAL_EMBEDDING_BASE_URL=self.peer.url,
                DITTO_WORKER_RETRIEVAL_EMBEDDING_MODEL="any",
                DITTO_SHARED_SANDBOX_ALLOW_NETWORK=self.peer.url,
            )
            self.workers.append(worker)
        for worker in self.workers:
            worker.wait_ready()

    def run(self) -> Any:
        with connected(self._url) as runtime:
            called = runtime.submit("REINDEX.RUN", {"target": RECORDS_TARGET, "mode": "full"})
            return called.result(WITHIN).unwrap()


@pytest.fixture
def site(worker_process: StartWorker, broker_url: str, tmp_path: Path) -> Iterator[Site]:
    counter = Counter()
    with serving(counter) as peer:
        yield Site(worker_process, broker_url, tmp_path, peer, counter)


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_requests_are_made_at_once_than_calls_may_run(site: Site, limit: int) -> None:
    site.write(400)
    site.hire(2, page_size=2 * BATCH, globalConcurrency=limit)
    assert site.run()["embedded"] == 400
    assert site.counter.most == limit


def test_without_a_limit_each_slot_makes_one(site: Site) -> None:
    site.write(800)
    site.hire(2, page_size=2 * BATCH)
    assert site.run()["embedded"] == 800
    assert 3 < site.counter.most <= 2 * SLOTS


@pytest.mark.parametrize(("workers", "slots"), [(1, 1), (2, SLOTS)])
def test_no_more_pages_begin_in_a_second_than_calls_may(site: Site, workers: int, slots: int) -> None:
    """Whoever does them, the run itself included; the run's own call is one more."""
    site.write(16 * BATCH)
    site.hire(workers, page_size=BATCH, concurrency=slots, ratePerSecond=RATE)
    called_at = time.monotonic()
    assert site.run()["embedded"] == 16 * BATCH
    assert len(site.peer.times) >= 16
    for begun, at in enumerate(site.peer.times, start=2):
        assert begun <= RATE + RATE * (at - called_at)
