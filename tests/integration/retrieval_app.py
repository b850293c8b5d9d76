"""A worker that searches the records of a SQLite file, and a target whose provider takes its time."""

import os
import time
from pathlib import Path
from typing import Any

from ditto_tasks import load_config
from ditto_tasks.config import find_config
from ditto_tasks.contracts.memory import MemoryQueryInput
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, RetrievalCall, RetrievalSearchInput
from providers.indexes.in_memory import InMemoryIndex
from providers.retrieval.records import RecordTarget
from providers.retrieval.registry import Target, TargetRegistry
from providers.stores import open_store
from tests.doubles import Letters, found
from workers.factory import create_worker_app
from workers.retrieval import retrieval_worker

DEFAULTS = {"searchLimit": 4}


class Patient:
    """Works for five minutes in small steps unless told to stop; after the first search, answers at once.

    Notes each search in a file, a line with the process id, and then how it ended.
    """

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def search(self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL) -> Any:
        self._note(f"began {os.getpid()}")
        if self._notes.read_text().count("began") == 1:
            self._work(call)
        return found("done", target=request.target)

    def _work(self, call: RetrievalCall) -> None:
        try:
            for _ in range(30_000):
                call.check()
                time.sleep(0.01)
        finally:
            self._note(f"ended {os.getpid()}")

    def _note(self, line: str) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{line}\n")


class Opened(TargetRegistry):
    """The records of a SQLite file as the target `kb`, and the patient one; closes what it opened."""

    def __init__(self, folder: Path) -> None:
        store = open_store(f"sqlite:///{folder / 'memory.sqlite'}")
        self._records = RecordTarget("records", store, Letters(), InMemoryIndex)
        ids = tuple(record.id for record in store.query(MemoryQueryInput(limit=1000)).items)  # type: ignore[union-attr]
        self._records.bring_up(ids, NO_RETRIEVAL_CALL)
        patient = Target("slow", {"slow": Patient(folder / "notes")})
        super().__init__({"kb": self._records.target, "patient": patient})

    def close(self) -> None:
        self._records.close()


def open_targets() -> TargetRegistry:
    return Opened(Path(os.environ["DITTO_TEST_FOLDER"]))


if "DITTO_BROKER_URL" in os.environ:  # the tests import the targets only
    app = create_worker_app(
        load_config(find_config(os.environ)),
        workers=[retrieval_worker(open_targets, defaults=DEFAULTS)],
    )
