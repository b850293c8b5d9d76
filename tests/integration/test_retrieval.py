"""RETRIEVAL.SEARCH on worker processes: the same as in-process, cancelled, and taken over."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ditto_tasks import NodeResult, Runtime
from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.contracts.memory import MemoryWriteInput
from providers.stores import open_store
from tests.conftest import LATE, StartWorker, WorkerProcess, connected, wait_until
from tests.integration.retrieval_app import DEFAULTS, Opened
from workers.retrieval import retrieval_worker

LEASE = 2.0  # seconds; short, so that tests are
WITHIN = 2.0  # seconds from the cancel of a running search to its end, a busy machine apart
TEXTS = ["abc", "aab", "a cab", "b", "你好 a", "über b", "c c c", ""]
PATIENT = {"query": {"content": "q"}, "target": {"name": "patient"}}


def wire(content: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"query": {"content": content}, "target": {"name": "kb"}, **fields}


CALLS: dict[str, Any] = {
    "hybrid by default": wire(),
    "words": wire("a", strategy="keyword"),
    "words of two scripts": wire("你好", strategy="keyword"),
    "nearest": wire("abca", strategy="vector", limit=3),
    "nearest to a vector": wire([0.5, 0, 1], strategy="vector"),
    "explained": wire("a b", limit=1, options={"explain": True}),
    "filtered": wire("a", filter={"kind": "even"}),
    "within a namespace": wire("a", target={"name": "kb", "namespace": "n", "metadata": {"m": 1.0}}),
    "nothing found": wire("zzz", strategy="keyword"),
    "two namespaces": wire("a", target={"name": "kb", "namespace": "n"}, filter={"namespace": "m"}),
    "an unknown filter": wire("a", filter={"x') OR 1=1 --": 1}),
    "no text": wire({"a": 1}),
    "a vector of another length": wire([1.0], strategy="vector"),
    "an unknown target": wire(target={"name": "other"}),
    "an unknown strategy": wire(strategy="bm25"),
    "rag": wire(strategy="rag"),
    "no limit": wire(limit=None),
    "no query": {"target": {"name": "kb"}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of a few records."""
    folder = tmp_path_factory.mktemp("records")
    drafts = [
        {
            "content": {"text": text},
            "key": f"k{n}",
            "metadata": {"kind": "odd" if n % 2 else "even", "namespace": "n" if n < 3 else "m"},
        }
        for n, text in enumerate(TEXTS)
    ]
    with open_store(f"sqlite:///{folder / 'memory.sqlite'}") as store:
        store.write(MemoryWriteInput.from_wire({"memories": drafts}))
    return folder


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[Runtime]:
    """A runtime that searches in this process."""
    with Runtime(workers=[retrieval_worker(lambda: Opened(folder), defaults=DEFAULTS)]) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def there(module_worker_process: StartWorker, queue_url: str, folder: Path) -> Iterator[Runtime]:
    """A runtime connected to a worker process that searches the same records."""
    hire(module_worker_process, queue_url, folder)
    with connected(queue_url) as runtime:
        yield runtime


@pytest.fixture
def own(worker_process: StartWorker, broker_url: str, tmp_path: Path) -> Iterator["Own"]:
    """Workers for one test alone, which may kill them."""
    own = Own(worker_process, broker_url, tmp_path)
    yield own
    own.runtime.close()


class Own:
    def __init__(self, start: StartWorker, url: str, folder: Path) -> None:
        self.runtime = connected(url)
        self._start, self._url, self._folder = start, url, folder

    def hire(self) -> WorkerProcess:
        return hire(self._start, self._url, self._folder)

    def noted(self, event: str) -> list[int]:
        """List the processes that noted the event, in that order."""
        path = self._folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(event)]


def hire(start: StartWorker, url: str, folder: Path) -> WorkerProcess:
    settings = folder / "ditto.yaml"
    settings.write_text(json.dumps({"transport": {"lease": LEASE}}))
    return start(
        url,
        module="tests.integration.retrieval_app",
        DITTO_CONFIG=str(settings),
        DITTO_TEST_FOLDER=str(folder),
    )


def comparable(result: NodeResult) -> bytes:
    sent = result.to_wire()
    assert sent.pop("executionId")
    return encode_json(sent)


@pytest.mark.parametrize("input", CALLS.values(), ids=CALLS)
def test_the_queue_gives_the_same_bytes_as_this_process(here: Runtime, there: Runtime, input: Any) -> None:
    queued = there.invoke("RETRIEVAL.SEARCH", input)
    assert comparable(queued) == comparable(here.invoke("RETRIEVAL.SEARCH", input))


def test_the_calls_are_of_all_kinds(here: Runtime) -> None:
    results = {name: here.invoke("RETRIEVAL.SEARCH", input) for name, input in CALLS.items()}
    found = {name for name, result in results.items() if result.output and result.output["candidates"]}
    assert list(results)[:8] == [name for name in results if name in found]
    codes = [result.error.code for result in results.values() if result.error]
    assert codes == [
        *["RETRIEVAL_INVALID_INPUT"] * 3,
        "RETRIEVAL_INVALID_EMBEDDING",
        "RETRIEVAL_TARGET_NOT_FOUND",
        *["RETRIEVAL_STRATEGY_UNSUPPORTED"] * 2,
        *["RETRIEVAL_INVALID_INPUT"] * 2,
    ]


def test_a_running_search_ends_soon_after_its_cancel(own: Own) -> None:
    worker = own.hire()
    search = own.runtime.submit("RETRIEVAL.SEARCH", PATIENT)
    wait_until(lambda: own.noted("began"), what="the search has begun")
    cancelled_at = time.monotonic()
    search.cancel("not wanted")
    result = search.result()
    assert time.monotonic() - cancelled_at < WITHIN + LATE
    assert result.error is not None
    assert (result.status, result.error.code) == ("cancelled", "RETRIEVAL_CANCELLED")
    assert result.error.message == "not wanted"
    assert own.noted("ended") == own.noted("began")
    assert own.runtime.invoke("RETRIEVAL.SEARCH", PATIENT).status == "success"
    assert "Traceback" not in worker.log


def test_a_search_out_of_time_is_a_timeout_of_retrieval(own: Own) -> None:
    own.hire()
    result = own.runtime.submit("RETRIEVAL.SEARCH", PATIENT, timeout=1.0).result(30)
    assert result.error is not None
    assert (result.status, result.error.code) == ("timeout", "RETRIEVAL_TIMEOUT")


def test_the_search_of_a_killed_worker_runs_elsewhere(own: Own) -> None:
    first = own.hire()
    search = own.runtime.submit("RETRIEVAL.SEARCH", PATIENT)
    wait_until(lambda: own.noted("began"), what="the search has begun")
    first.kill()
    second = own.hire()
    output = search.result(60).unwrap()
    assert output == {
        "candidates": [{"id": "done", "content": "done"}],
        "target": {"name": "patient"},
        "strategy": "slow",
    }
    assert own.noted("began") == [first.pid, second.pid]
    assert own.noted("ended") == []
