"""A worker that reindexes an SQLite store with a cheap embedding, which notes what it embeds."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ditto_tasks import load_config
from ditto_tasks.config import find_config
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall
from providers.retrieval.records import RecordTarget
from providers.stores import open_store
from tests.conftest import wait_until
from tests.doubles import Letters
from workers.factory import create_worker_app
from workers.memory import memory_worker
from workers.reindex import reindex_worker

HELD = "held"  # in a text: its page takes until there is the file RELEASED beside the notes
RELEASED = "released"
REFUSED = "!"  # in a text: the embedding takes none with it
TARGET = "kb"


class Noting(Letters):
    """Notes each text in a file, a line each, once it has been embedded.

    Args:
        notes: the file, to which many processes append.
        pause: seconds of work for a batch.
        is_parallel: whether threads are to embed side by side.
    """

    def __init__(self, notes: Path, pause: float, is_parallel: bool) -> None:
        super().__init__()
        self.is_parallel = is_parallel
        self._notes = notes
        self._pause = pause

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        if any(REFUSED in text for text in contents):
            raise RetrievalError("RETRIEVAL_INVALID_INPUT", "it shouts")
        time.sleep(self._pause)
        if any(HELD in text for text in contents):
            wait_until((self._notes.parent / RELEASED).exists, what="the page is released")
        with self._notes.open("a") as notes:
            notes.write("".join(f"{text}\n" for text in contents))
        return super().embed(contents, purpose, call)


def store_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'memory.sqlite'}"


def open_target(folder: Path, pause: float = 0.0, is_parallel: bool = True) -> RecordTarget:
    """Open store and index of a folder."""
    embedding = Noting(folder / "embedded", pause, is_parallel)
    return RecordTarget.open(
        "records", open_store(store_url(folder)), f"sqlite:///{folder}/index.sqlite", embedding
    )


def open_targets() -> Mapping[str, RecordTarget]:
    folder = Path(os.environ["DITTO_TEST_FOLDER"])
    pause, is_parallel = float(os.environ["DITTO_TEST_PAUSE"]), "DITTO_TEST_SERIAL" not in os.environ
    return {TARGET: open_target(folder, pause, is_parallel)}


if "DITTO_BROKER_URL" in os.environ:  # the tests import the target only
    app = create_worker_app(
        load_config(find_config(os.environ)),
        workers=[
            reindex_worker(open_targets),
            memory_worker(store_url(Path(os.environ["DITTO_TEST_FOLDER"]))),
        ],
    )
