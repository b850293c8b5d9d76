"""A worker app whose nodes note in Redis what they do: limited ones, and ones without limits."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ditto_tasks import Call, Worker, WorkerContext, load_config
from ditto_tasks.config import find_config
from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.memory import MemoryGetInput, MemoryItem
from ditto_tasks.transport.app import uses_streams
from ditto_tasks.worker import Limits
from providers.stores.in_memory import InMemoryStore
from tests.integration.gate import wait_at
from tests.integration.notes import Note, Notes
from workers.factory import create_worker_app
from workers.memory import memory_worker

config = load_config(find_config(os.environ))
assert config.result_url is not None
notes = Notes(config.result_url)


@contextmanager
def _noted(label: str) -> Iterator[None]:
    notes.add(Note("started", label, os.getpid(), time.time()))
    try:
        yield
    finally:
        notes.add(Note("ended", label, os.getpid(), time.time()))


def _work(input: Any, context: WorkerContext) -> Any:
    """Sleep, or wait for a file, and return the input, whatever is cancelled meanwhile.

    `seconds` may list those of each start of a label.
    """
    label, seconds = input["label"], input.get("seconds", 0)
    with _noted(label):
        if isinstance(seconds, list):
            seconds = seconds[[note.label for note in notes.of("started")].count(label) - 1]
        time.sleep(seconds)
        if "until" in input:
            wait_at(input["until"])
    return input


def _loop(input: Any, context: WorkerContext) -> str:
    """Work for five minutes in small steps, unless told to stop."""
    with _noted(input["label"]):
        for _ in range(30_000):
            context.call.check()
            time.sleep(0.01)
    return "done"


def _exit(input: Any, context: WorkerContext) -> None:
    with _noted(input["label"]):
        sys.exit(3)


class SlowStore(InMemoryStore):
    """Takes a moment for each read; notes the first key that was asked for."""

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        with _noted((request.keys or [""])[0]):
            time.sleep(0.15)
            return super().get(request, call)


def _streams_only(limits: Limits) -> Limits:
    return limits if uses_streams(config) else Limits()


app = create_worker_app(
    config,
    workers=[
        memory_worker(SlowStore()),
        Worker(
            "NOTED",
            {
                "NOTED.WORK": _work,
                "NOTED.READ": _work,
                "NOTED.OTHER": _work,
                "NOTED.LOOP": _loop,
                "NOTED.EXIT": _exit,
            },
            repeatable=("NOTED.READ",),
        ),
        Worker(
            "LIMITED",
            {"LIMITED.READ": _work},
            repeatable=("LIMITED.READ",),
            limits=_streams_only(Limits(concurrency=2)),
        ),
        Worker("KEYED", {"KEYED.WORK": _work, "KEYED.LOOP": _loop}, limits=_streams_only(Limits(per_key=1))),
        Worker("RATED", {"RATED.WORK": _work}, limits=_streams_only(Limits(per_second=10))),
    ],
)
