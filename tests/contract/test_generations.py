"""Generations in real engines: switches under searches, pages and writes, going back, and dropping."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ditto_tasks import DittoConfig, Runtime
from ditto_tasks.config.model import Workers
from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.memory import MemoryDeleteInput, MemoryUpdateInput, MemoryWriteInput
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall
from providers.indexes import open_index
from providers.indexes.generations import GenerationsRecord
from providers.retrieval.records import RecordTarget
from providers.stores import open_store
from tests.contract.folders import quick_folder
from tests.doubles import Letters, request
from workers.reindex import reindex_worker

RECORDS = 60
SEARCHERS = 3
WITHIN = 60.0  # seconds


class Numbered(Letters):
    """One of several models: the score of any record for any query tells which one made both vectors."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.identity = f"numbered/{number}"
        self.dimensions = 2 + number
        self._score = number / 10

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        rest = [0.0] * (self.dimensions - 2)
        if purpose == "query":
            return [[1.0, 0.0, *rest] for _ in contents]
        return [[self._score, (1 - self._score**2) ** 0.5, *rest] for _ in contents]


MODELS = {model.identity: model for model in map(Numbered, range(1, 6))}


@pytest.fixture(params=["sqlite", "postgresql", "qdrant"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of an index."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres_url")
        return
    with quick_folder() as folder:
        yield f"sqlite:///{folder / 'index.sqlite'}" if request.param == "sqlite" else f"qdrant:///{folder}"


class Site:
    """A store in a file with its index in some engine, as processes see it that have one model each."""

    def __init__(self, folder: Path, url: str) -> None:
        self._url = url
        self._store_url = f"sqlite:///{folder / 'memory.sqlite'}"
        self.store: Any = open_store(self._store_url)
        self.ids = self._write(RECORDS)
        self._runtimes: list[Runtime] = []

    def opened(self, model: int) -> RecordTarget:
        store = open_store(self._store_url)
        embedding = MODELS[f"numbered/{model}"]
        return RecordTarget.open("kb", store, self._url, embedding, embedding_of=MODELS.get)

    def runtime(self, model: int) -> Runtime:
        config = DittoConfig(workers=Workers.model_validate({"reindex": {"pageSize": 8}}))
        target = self.opened(model)
        self._runtimes.append(Runtime(config, workers=[reindex_worker(lambda: {"kb": target})]))
        return self._runtimes[-1]

    def change(self, number: int) -> list[str]:
        """Change, delete and write a record each; returns their ids."""
        changed, deleted = self.ids[2 * number], self.ids[2 * number + 1]
        self.store.update(
            MemoryUpdateInput.from_wire({"memories": [{"id": changed, "content": f"new {number}"}]})
        )
        self.store.delete(MemoryDeleteInput(ids=(deleted,)))
        return [changed, deleted, *self._write(1)]

    def age(self) -> None:
        """Have what was left been left an hour ago."""
        record = GenerationsRecord(self.store, "kb")
        generations = record.read(NO_CALL)
        assert generations is not None
        before = time.time() - 3600
        leaving = tuple(left.model_copy(update={"left_at": before}) for left in generations.leaving)
        record.write(generations.model_copy(update={"leaving": leaving}), NO_CALL)

    def close(self) -> None:
        for runtime in self._runtimes:
            runtime.close()
        self.store.close()

    def _write(self, count: int) -> list[str]:
        drafts = [{"content": f"text {number}"} for number in range(count)]
        return [record.id for record in self.store.write(MemoryWriteInput.from_wire({"memories": drafts}))]


@pytest.fixture
def site(url: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, url)
    yield site
    site.close()


def reindexed(runtime: Runtime, node: str = "REINDEX.RUN", **input: Any) -> Any:
    return runtime.invoke(node, {"target": "kb", **input}).unwrap()


def scores(target: RecordTarget, limit: int = 1000) -> list[float]:
    output: Any = target.target.providers["vector"].search(
        request(query={"content": "any"}, limit=limit), NO_RETRIEVAL_CALL
    )
    return [round(candidate.score, 2) for candidate in output.candidates]


def test_searches_amid_switches_fail_never_and_see_one_generation_each(site: Site) -> None:
    """Three models one after the other, a full run of the last, and back; records change all the while."""
    runtimes = [site.runtime(model) for model in (1, 2, 3)]
    reindexed(runtimes[0])
    target = site.opened(1)
    done = threading.Event()
    seen: set[float] = set()

    def search() -> int:
        searches = 0
        while not done.is_set():
            found = scores(target)
            assert len(set(found)) == 1
            assert len(found) >= RECORDS - 5  # whole, but for what was deleted and is not written yet
            seen.update(found)
            searches += 1
        return searches

    with ThreadPoolExecutor(SEARCHERS) as searchers:
        searching = [searchers.submit(search) for _ in range(SEARCHERS)]
        try:
            for number, runtime in enumerate(runtimes[1:]):
                reindexed(runtime, "REINDEX.PAGE", ids=site.change(number))
                reindexed(runtime)
            reindexed(runtimes[2], mode="full")
            site.change(2)
            reindexed(runtimes[2], "REINDEX.ROLLBACK")
        finally:
            done.set()
        assert all(ended.result(WITHIN) > 0 for ended in searching)
    assert seen == {0.1, 0.2, 0.3}
    told = reindexed(runtimes[2], "REINDEX.CHECK")
    assert (told["generation"], told["wrongGeneration"]) == (3, 0)
    assert told["drift"] == {"missing": 0, "stale": 0, "orphaned": 0}
    target.close()


def test_what_was_left_is_dropped_and_the_rest_is_searched_on(site: Site, url: str) -> None:
    runtime = site.runtime(4)
    reindexed(runtime)
    before = site.opened(4)
    index = before.generations.active().index
    for _ in range(2):
        reindexed(runtime, mode="full")
    site.age()
    reindexed(runtime)
    with pytest.raises(RetrievalError, match="gone"):
        index.count()
    assert scores(before) == [0.4] * RECORDS
    assert reindexed(runtime, "REINDEX.ROLLBACK")["generation"] == 2
    before.close()
    with open_index(url, name="kb", manifest=index.manifest) as anew:
        assert anew.count() == 0
