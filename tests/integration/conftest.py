"""One broker with the workers, the callers and the notes of a test, under settings of its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ditto_tasks import Runtime
from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.directory import Directory
from ditto_tasks.transport.keys import Keys
from tests.conftest import StartWorker, WorkerProcess, wait_until
from tests.integration.notes import Notes

LEASE = 2.0  # seconds; short, so that tests are


class Site:
    """Workers and callers that share a broker, a server for results, and settings.

    Attributes:
        transport: the section of that name in ditto.yaml; to be changed before workers and callers come.
        memory: the section workers.memory, likewise.
        workers: those that were hired.
        gate: a file that is not there yet, for which nodes may wait.
    """

    def __init__(self, start: StartWorker, url: str, folder: Path, *, results: str = "") -> None:
        self.url = url
        self.results = results or url
        self.transport: dict[str, Any] = {"lease": LEASE}
        self.memory: dict[str, Any] = {}
        self.notes = Notes(self.results)
        self.workers: list[WorkerProcess] = []
        self.client: RedisClient = connect(self.results)
        self.gate = folder / "gate"
        self._start = start
        self._folder = folder

    @property
    def keys(self) -> Keys:
        return Keys(self.transport.get("prefix", "ditto"))

    def hire(
        self,
        *options: str,
        pool: str = "threads",
        concurrency: int = 4,
        wait: bool = True,
        module: str = "tests.integration.noting_app",
    ) -> WorkerProcess:
        """Start one more worker. gevent must be named on the command line, where Celery patches for it."""
        worker = self._start(
            self.url,
            *(("-P", "gevent") if pool == "gevent" else ()),
            *options,
            module=module,
            wait=False,
            DITTO_RESULT_URL=self.results,
            DITTO_CONFIG=self.settings(pool=pool, concurrency=concurrency),
        )
        self.workers.append(worker)
        if wait:
            self.wait_ready(worker)
        return worker

    def hire_many(self, count: int, **options: Any) -> list[WorkerProcess]:
        """Start some workers at once and wait for all."""
        workers = [self.hire(wait=False, **options) for _ in range(count)]
        for worker in workers:
            self.wait_ready(worker)
        return workers

    def wait_ready(self, worker: WorkerProcess) -> None:
        def is_announced() -> bool:
            live = Directory(self.client, self.keys).list()
            return any(info.id.startswith(f"{worker.name}:") for info in live)

        wait_until(is_announced, what=f"{worker.name} announces itself")

    def wait_started(self, *labels: str) -> None:
        wait_until(lambda: set(labels) <= set(self.notes.started()), what=f"{labels} have started")

    def runtime(self) -> Runtime:
        environ = {"DITTO_BROKER_URL": self.url, "DITTO_RESULT_URL": self.results}
        return Runtime.from_config(self.settings(), environ)

    def settings(self, **memory: Any) -> str:
        """Write a ditto.yaml and return its path; JSON is YAML, too."""
        text = json.dumps({"transport": self.transport, "workers": {"memory": {**self.memory, **memory}}})
        path = self._folder / f"{len(list(self._folder.glob('*.yaml')))}.yaml"
        path.write_text(text)
        return str(path)

    def stream(self, node: str, priority: str = "normal") -> str:
        return f"{self.keys.prefix}.{node.lower()}:{priority}"

    def entries(self) -> int:
        """Count the messages in all streams of calls, fetched ones too."""
        names = [name for name in self.client.scan_iter(_type="STREAM") if b":bell:" not in name]
        return sum(self.client.xlen(name) for name in names)

    def close(self) -> None:
        self.notes.close()
        self.client.close()


@pytest.fixture
def site(worker_process: StartWorker, broker_url: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(worker_process, broker_url, tmp_path)
    yield site
    site.close()


@pytest.fixture(scope="module")
def shared_site(
    module_worker_process: StartWorker, queue_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    """A site whose workers the tests of a module share."""
    site = Site(module_worker_process, queue_url, tmp_path_factory.mktemp("site"))
    yield site
    site.close()
