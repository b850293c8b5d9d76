"""A store of records with its index in one folder, and workers of the configuration that bring it up."""

import json
import random
from typing import Any

from benchmarks.faults import Scene
from ditto_tasks import Runtime
from ditto_tasks.contracts.memory import MemoryUpdateInput, MemoryWriteInput
from ditto_tasks.contracts.reindex import RECORDS_TARGET
from providers.stores import Store, open_store
from tests.conftest import WorkerProcess, connected

__all__ = ["WAIT", "Site"]

WORDS = 40  # in a record
WRITTEN = 1_000  # records a WRITE
WAIT = 7_200.0  # seconds for any run


class Site:
    """Store and index of SQLite, and a broker of their own; no worker yet.

    Args:
        page_size: records in a page.
        batch_size: texts in one request to the model.
        model_url: of the server that embeds; None: wordllama does, in the workers.

    Attributes:
        folder: of the files.
        store_url: of the store.
        runtime: calls the workers.
    """

    def __init__(
        self, scene: Scene, records: int, *, page_size: int, batch_size: int, model_url: str | None = None
    ) -> None:
        self.folder = scene.folder()
        self.store_url = f"sqlite:///{self.folder}/memory.sqlite"
        self._scene = scene
        self._broker_url = scene.server().url()
        self._environ = self._settings(page_size, batch_size, model_url)
        self._random = random.Random(4354)
        self._vocabulary = [f"word{number}" for number in range(5_000)]
        self._store: Store = open_store(self.store_url)
        self._ids = self._filled(records)
        self.runtime: Runtime = connected(self._broker_url)

    def hire(self, capability: str, *, concurrency: int, model: str | None = None) -> WorkerProcess:
        """Start a worker of one capability.

        Args:
            model: as the server calls it; None where there is none.
        """
        named = {} if model is None else {"DITTO_WORKER_RETRIEVAL_EMBEDDING_MODEL": model}
        return self._scene.start(
            self._broker_url,
            *("-c", str(concurrency)),
            module="workers.app",
            DITTO_WORKER_CAPABILITIES=capability,
            **self._environ,
            **named,
        )

    def change(self, count: int) -> None:
        """Give so many records another content."""
        patches = [
            {"id": id, "content": {"text": self._text()}} for id in self._random.sample(self._ids, count)
        ]
        self._store.update(MemoryUpdateInput.from_wire({"memories": patches}))

    def run(self, mode: str) -> Any:
        """Bring the index up, and return the report."""
        return self._called("REINDEX.RUN", mode=mode)

    def roll_back(self) -> Any:
        """Go back to the index before, and return the report."""
        return self._called("REINDEX.ROLLBACK")

    def close(self) -> None:
        self.runtime.close()
        self._store.close()

    def _called(self, node: str, **input: Any) -> Any:
        return self.runtime.submit(node, {"target": RECORDS_TARGET, **input}).result(WAIT).unwrap()

    def _settings(self, page_size: int, batch_size: int, model_url: str | None) -> dict[str, str]:
        workers = {
            "reindex": {"pageSize": page_size},
            "retrieval": {"embedding": {"model": "wordllama", "batchSize": batch_size}},
        }
        file = self.folder / "ditto.yaml"
        file.write_text(json.dumps({"workers": workers}))
        environ = {
            "DITTO_CONFIG": str(file),
            "DITTO_WORKER_MEMORY_STORE_URL": self.store_url,
            "DITTO_WORKER_RETRIEVAL_INDEX_URL": f"sqlite:///{self.folder}/index.sqlite",
        }
        if model_url is not None:
            environ["DITTO_WORKER_RETRIEVAL_EMBEDDING_BASE_URL"] = model_url
            environ["DITTO_SHARED_SANDBOX_ALLOW_NETWORK"] = model_url
        return environ

    def _filled(self, records: int) -> list[str]:
        ids: list[str] = []
        while len(ids) < records:
            count = min(WRITTEN, records - len(ids))
            drafts = [{"content": {"text": self._text()}} for _ in range(count)]
            written = self._store.write(MemoryWriteInput.from_wire({"memories": drafts}))
            ids += [record.id for record in written]  # type: ignore[union-attr]
        return ids

    def _text(self) -> str:
        return " ".join(self._random.choices(self._vocabulary, k=WORDS))
