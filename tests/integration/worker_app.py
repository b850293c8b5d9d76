"""The worker app of the tests: the MEMORY worker of the configuration, and nodes that misbehave."""

import gc
import logging
import os
import time
from pathlib import Path
from typing import Any

from ditto_tasks import Worker, WorkerContext, load_config
from ditto_tasks.config import find_config
from tests.integration.gate import wait_at
from workers.factory import configured_workers, create_worker_app

TRACE = Path(os.environ["DITTO_TEST_TRACE"])  # a file in which runs and resources leave their lines


def _note(event: str, what: object) -> None:
    with TRACE.open("a") as trace:
        trace.write(f"{event} {what}\n")


def _echo(input: Any, context: WorkerContext) -> Any:
    _note("ran", input)
    return input


def _loop(input: Any, context: WorkerContext) -> str:
    """Work for five minutes in small steps, unless told to stop."""
    _note("ran", input)
    try:
        for _ in range(30_000):
            context.call.check()
            time.sleep(0.01)
    finally:
        _note("ended", input)
    return "done"


def _stubborn(input: Any, context: WorkerContext) -> str:
    _note("ran", input)
    time.sleep(input["seconds"])
    return "done"


def _held(input: Any, context: WorkerContext) -> str:
    """Wait for a file, whatever is cancelled meanwhile."""
    wait_at(input["until"])
    return "done"


def _large(input: Any, context: WorkerContext) -> str:
    _note("ran", input)
    return "x" * int(input["bytes"])


def _fail(input: Any, context: WorkerContext) -> None:
    raise RuntimeError("password=secret")


def _not_json(input: Any, context: WorkerContext) -> object:
    return {"secret": {1, 2}}


def _where(input: Any, context: WorkerContext) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "opened": context.resources,
        "executionId": context.call.execution_id,
        "spared": gc.get_freeze_count(),
    }


def _nested(input: Any, context: WorkerContext) -> Any:
    assert context.call.runtime is not None
    return context.call.runtime.invoke(input["node"], input["input"]).unwrap()


def _open() -> int:
    _note("opened", os.getpid())
    return os.getpid()


def _close(opened: int) -> None:
    _note("closed", opened)


_NODES = {
    "TEST.ECHO": _echo,
    "TEST.LOOP": _loop,
    "TEST.STUBBORN": _stubborn,
    "TEST.HELD": _held,
    "TEST.LARGE": _large,
    "TEST.FAIL": _fail,
    "TEST.NOT_JSON": _not_json,
    "TEST.WHERE": _where,
    "TEST.NESTED": _nested,
    "TEST.PRIVATE": _echo,
}
_EXPOSED = [node for node in _NODES if node != "TEST.PRIVATE"]

logging.getLogger("ditto_tasks").setLevel(logging.INFO)

config = load_config(find_config(os.environ))
app = create_worker_app(
    config,
    workers=[
        *configured_workers(config, ["memory"]),
        Worker("TEST", _NODES, expose=_EXPOSED, resources=_open, dispose=_close),
    ],
)
