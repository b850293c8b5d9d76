"""The resources of one worker process: opened once in it, after any fork, and closed when it ends."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from celery import Celery

from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.runtime import Runtime
from ditto_tasks.transport.client import CeleryTransport
from ditto_tasks.transport.process import own_pid
from ditto_tasks.worker import Worker

__all__ = ["ProcessResources"]


class ProcessResources:
    """Holds the runtime in which this process runs its nodes; a forked child opens one of its own."""

    def __init__(self, app: Celery, config: DittoConfig, workers: Sequence[Worker]) -> None:
        self._app = app
        self._config = config
        self._workers = workers
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._pid = 0

    def open(self) -> Runtime:
        """Return the runtime of this process, opened if need be.

        Raises:
            StoreUnavailable: a store cannot be opened; other errors of an application's own factories.
        """
        with self._lock:
            if self._runtime is None or self._pid != own_pid():
                transport = CeleryTransport(self._config, self._app)
                # The pool's slots bound the calls; a nested call has its caller's and waits for no other.
                workers = [replace(worker, concurrency=None) for worker in self._workers]
                self._runtime = Runtime(self._config, workers=workers, transport=transport)
                self._pid = own_pid()
            return self._runtime

    def run(self, node: str, input: object, call: Call) -> NodeResult:
        """Run a node in this process."""
        runtime = self._runtime if self._pid == own_pid() else None
        return (runtime or self.open()).execute(node, input, call)

    def close(self) -> None:
        """Close the runtime if this process opened it: waits for running calls, disposes of resources."""
        with self._lock:
            runtime, self._runtime = self._runtime, None
            if runtime is not None and self._pid == own_pid():
                runtime.close()
