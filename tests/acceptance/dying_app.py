"""A worker app with one node, which kills its process as long as a file is there."""

import os
import signal
from pathlib import Path
from typing import Any

from ditto_tasks import Worker, WorkerContext, load_config
from ditto_tasks.config import find_config
from workers.factory import create_worker_app

__all__ = ["app"]


def _die(input: Any, context: WorkerContext) -> Any:
    if Path(input["while"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return input


config = load_config(find_config(os.environ))
app = create_worker_app(config, workers=[Worker("TEST", {"TEST.DIE": _die}, repeatable=["TEST.DIE"])])
