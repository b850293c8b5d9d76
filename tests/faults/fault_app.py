"""The worker app of the fault tests: nodes that say when they start, one that kills its process."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from ditto_tasks import Worker, WorkerContext, load_config
from ditto_tasks.config import find_config
from workers.factory import create_worker_app

NOTES = Path(os.environ["DITTO_TEST_TRACE"])  # a file that all workers of a test append to


def _note(event: str, context: WorkerContext) -> None:
    with NOTES.open("a") as notes:
        notes.write(f"{event} {context.call.execution_id} {os.getpid()} {time.time()}\n")


def _work(input: Any, context: WorkerContext) -> Any:
    """Sleep and return the input, whatever is cancelled meanwhile; `seconds` may list those of each start."""
    _note("started", context)
    seconds = input.get("seconds", 0)
    if isinstance(seconds, list):
        seconds = seconds[NOTES.read_text().count(f"started {context.call.execution_id} ") - 1]
    time.sleep(seconds)
    _note("ended", context)
    return input


def _loop(input: Any, context: WorkerContext) -> str:
    """Work for five minutes in small steps, unless told to stop."""
    _note("started", context)
    for _ in range(30_000):
        context.call.check()
        time.sleep(0.01)
    return "done"


def _poison(input: Any, context: WorkerContext) -> None:
    _note("started", context)
    os.kill(os.getpid(), signal.SIGKILL)


def _nest(input: Any, context: WorkerContext) -> Any:
    """Call itself through the runtime, so deep as asked."""
    _note("started", context)
    if input["depth"] == 0:
        return 0
    assert context.call.runtime is not None
    inner = context.call.runtime.invoke("FAULT.NEST", {"depth": input["depth"] - 1})
    return 1 + inner.unwrap()


def _large(input: Any, context: WorkerContext) -> str:
    _note("started", context)
    return "x" * int(input["bytes"])


_NODES = {
    "FAULT.WORK": _work,
    "FAULT.READ": _work,
    "FAULT.LOOP": _loop,
    "FAULT.POISON": _poison,
    "FAULT.LARGE": _large,
}

config = load_config(find_config(os.environ))
app = create_worker_app(
    config,
    workers=[
        Worker("FAULT", _NODES, repeatable=("FAULT.READ", "FAULT.POISON")),
        Worker("NEST", {"FAULT.NEST": _nest}, concurrency=1),
    ],
)
