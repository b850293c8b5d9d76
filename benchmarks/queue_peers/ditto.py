"""Ours: a no-op node of an application's worker with every setting at its default; and MEMORY over SQLite."""

import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.queue_peers.client import celery_url, run, serve
from ditto_tasks import NodeResult, Runtime, Worker, WorkerContext, load_config
from workers.factory import create_worker_app
from workers.memory import memory_worker

_NODE = "BENCH.NOOP"
_MEMORY = os.environ.get("BENCH_MEMORY")  # the URL of a store; unset: no MEMORY worker
_TIMEOUT = 300.0  # seconds


def _noop(input: Any, context: WorkerContext) -> None:
    return None


def _workers() -> list[Worker]:
    return [Worker("BENCH", {_NODE: _noop}), *([memory_worker(_MEMORY)] if _MEMORY else [])]


_ENVIRON = {**os.environ, "DITTO_BROKER_URL": celery_url(os.environ["BENCH_URL"])}

config = load_config(None, _ENVIRON)
app = create_worker_app(config, workers=_workers())


async def _serve(runtime: Runtime) -> None:
    written: list[str] = []
    mapped: list[Iterator[NodeResult]] = []

    async def enqueue() -> object:
        return runtime.submit(_NODE, None)

    async def round_trip() -> None:
        runtime.submit(_NODE, None).result().unwrap()

    async def finish(handles: list[Any]) -> None:
        for handle in handles:
            handle.result(_TIMEOUT).unwrap()

    async def map_all(count: int) -> float:
        inputs = [None] * count
        start = time.perf_counter()
        mapped.append(runtime.map(_NODE, inputs, timeout=_TIMEOUT))
        return time.perf_counter() - start

    async def finish_map(count: int) -> None:
        assert sum(1 for results in mapped for result in results if result.status == "success") == count
        mapped.clear()

    async def gets(count: int) -> list[float]:
        if not written:
            memories = [{"content": {"text": "a record to be read back"}}]
            records = runtime.submit("MEMORY.WRITE", {"memories": memories}).result().unwrap()
            written.append(records[0]["id"])
        return [_seconds_of_get(runtime, written) for _ in range(count)]

    more = {"map": map_all, "finishmap": finish_map, "gets": gets}
    await serve(enqueue, round_trip, lambda sent: 0, finish=finish, more=more)


def _seconds_of_get(runtime: Runtime, ids: list[str]) -> float:
    start = time.perf_counter()
    runtime.submit("MEMORY.GET", {"ids": ids}).result().unwrap()
    return time.perf_counter() - start


if __name__ == "__main__":
    with Runtime.from_config(None, _ENVIRON) as runtime:
        run(_serve(runtime))
