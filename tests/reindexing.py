"""Workers that reindex one store, and what a test does to that store meanwhile."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ditto_tasks import Runtime
from ditto_tasks.contracts.memory import MemoryDeleteInput, MemoryUpdateInput, MemoryWriteInput
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL
from ditto_tasks.invocation import Invocation
from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.runs import RedisRuns
from tests.conftest import StartWorker, WorkerProcess, connected, wait_until
from tests.reindex_app import TARGET, open_target

LEASE = 2.0  # seconds; short, so that tests are
WITHIN = 60.0  # seconds for any run of the tests


class Library:
    """A store with its index in one folder, and workers that bring it up.

    Args:
        page_size: records in a page.
        pause: seconds that the embedding of a page takes.
        is_parallel: whether threads embed side by side.
    """

    def __init__(
        self,
        start: StartWorker,
        url: str,
        folder: Path,
        *,
        page_size: int = 20,
        pause: float = 0.0,
        is_parallel: bool = True,
    ) -> None:
        self.url = url
        self.target = open_target(folder)
        self.runtime: Runtime = connected(url)
        self.workers: list[WorkerProcess] = []
        self._redis = connect(url)
        self._runs = RedisRuns(self._redis, Keys("ditto"), kept=60)
        self._start = start
        self._folder = folder
        self._page_size = page_size
        self._pause = pause
        self._serial = {} if is_parallel else {"DITTO_TEST_SERIAL": "1"}

    def hire(self, *, concurrency: int = 3, wait: bool = True, pool: str = "threads") -> WorkerProcess:
        settings = self._folder / f"{pool}-{concurrency}.yaml"
        workers = {"reindex": {"pageSize": self._page_size, "concurrency": concurrency, "pool": pool}}
        workers["memory"] = {"concurrency": concurrency}
        settings.write_text(
            json.dumps({"transport": {"lease": LEASE, "maxDeliveries": 20}, "workers": workers})
        )
        worker = self._start(
            self.url,
            "--without-mingle",
            module="tests.reindex_app",
            wait=wait,
            DITTO_CONFIG=str(settings),
            DITTO_TEST_FOLDER=str(self._folder),
            DITTO_TEST_PAUSE=str(self._pause),
            **self._serial,
        )
        self.workers.append(worker)
        return worker

    def write(self, *contents: Any) -> list[str]:
        drafts = [{"content": content} for content in contents]
        written = self.target.store.write(MemoryWriteInput.from_wire({"memories": drafts}))
        return [record.id for record in written]  # type: ignore[union-attr]

    def update(self, id: str, content: Any) -> None:
        patch = {"id": id, "content": content}
        self.target.store.update(MemoryUpdateInput.from_wire({"memories": [patch]}))

    def delete(self, *ids: str) -> None:
        self.target.store.delete(MemoryDeleteInput(ids=ids))

    def submit(self, **input: Any) -> Invocation:
        return self.runtime.submit("REINDEX.RUN", {"target": TARGET, **input})

    def run(self, **input: Any) -> Any:
        return self.submit(**input).result(WITHIN).unwrap()

    def progress(self) -> Any:
        """Return what the run told last; nothing before it told anything."""
        return self._runs.progress(TARGET) or {}

    def wait_embedded(self, count: int) -> None:
        wait_until(lambda: sum(self.embedded().values()) >= count, WITHIN, f"{count} are embedded")

    def embedded(self) -> Counter[str]:
        """Count how often each text was embedded, by anybody."""
        notes = self._folder / "embedded"
        return Counter(notes.read_text().splitlines() if notes.exists() else ())

    def forget_embedded(self) -> None:
        (self._folder / "embedded").unlink(missing_ok=True)

    def difference(self) -> Sequence[int]:
        """Count what the index lacks, has in a former state, and has although it is gone."""
        drift = self.target.compare(NO_RETRIEVAL_CALL).drift()
        return (drift.missing, drift.stale, drift.orphaned)

    def close(self) -> None:
        self.runtime.close()
        self.target.close()
        self._redis.close()
