"""The MEMORY worker: the six nodes over a store."""

from functools import partial
from typing import Any

from ditto_tasks.contracts.memory import MemoryDefaults, MemorySearchProvider, MemoryStore
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.nodes.memory import MEMORY_CODES, Defaults, Memory
from ditto_tasks.worker import Worker, WorkerContext
from providers.stores import open_store

__all__ = ["memory_worker"]

_NODES = ("MEMORY.GET", "MEMORY.QUERY", "MEMORY.SEARCH", "MEMORY.WRITE", "MEMORY.UPDATE", "MEMORY.DELETE")


def memory_worker(
    store: MemoryStore | str,
    *,
    search: MemorySearchProvider | None = None,
    defaults: Defaults = None,
    concurrency: int | None = None,
) -> Worker:
    """Define a worker for the six MEMORY nodes.

    Args:
        store: a store, which stays the caller's to close, or the URL of one (see `open_store`), opened once
            a process and closed with it.
        search: finds records; None: the store, when it can.
        defaults: limits for calls that name none; before those of ditto.yaml.
        concurrency: calls that one process runs at once; None: `workers.memory.concurrency` in a Celery
            worker, no limit in-process.

    Raises:
        InvalidDefinition: a default or the concurrency is out of range.
    """
    if not isinstance(store, str):
        memory = Memory(store, search=search, defaults=defaults)
        return Worker(
            "MEMORY",
            {node: partial(_run, node) for node in _NODES},
            concurrency=concurrency,
            resources=lambda: memory,
            codes=MEMORY_CODES,
        )
    return Worker(
        "MEMORY",
        {node: partial(_run, node) for node in _NODES},
        concurrency=concurrency,
        resources=lambda: _OpenedMemory(store, search, defaults),
        dispose=lambda memory: memory.close(),
        codes=MEMORY_CODES,
    )


class _OpenedMemory(Memory):
    """A memory that opened its store itself, and so closes it."""

    def __init__(self, url: str, search: MemorySearchProvider | None, defaults: Defaults) -> None:
        store = open_store(url)
        super().__init__(store, search=search, defaults=defaults)
        self.close = store.close


def _run(node: str, input: Any, context: WorkerContext) -> NodeResult:
    limits = context.config.workers.memory
    set_limits = {
        name: limit
        for name, limit in (("queryLimit", limits.query_limit), ("searchLimit", limits.search_limit))
        if limit is not None
    }
    memory: Memory = context.resources
    return memory.run(node, input, context.call, MemoryDefaults.from_wire(set_limits))
