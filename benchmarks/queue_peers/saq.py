"""SAQ with its Redis queue, ten calls at once; a caller who waits for a result looks every millisecond."""

import os
from contextlib import suppress
from typing import Any

import redis
from redis import asyncio as redis_asyncio
from saq.queue.base import JobError  # type: ignore[import-not-found]
from saq.queue.redis import RedisQueue  # type: ignore[import-not-found]

from benchmarks.queue_peers.client import run, serve

_URL = os.environ["BENCH_URL"]
_POLL = 0.001  # seconds

queue = RedisQueue(redis_asyncio.Redis.from_url(_URL), name="bench")


async def noop(context: Any) -> None:
    return None


settings = {"queue": queue, "functions": [noop], "concurrency": 10}


async def _enqueue() -> object:
    return await queue.enqueue("noop")


async def _round_trip() -> None:
    await queue.apply("noop", poll_interval=_POLL)


async def _client() -> None:
    server = redis.Redis.from_url(_URL)
    await queue.connect()
    with suppress(JobError):  # a worker that starts may sweep away what it finds
        await _round_trip()
    await serve(_enqueue, _round_trip, lambda sent: sent - int(server.zcard("saq:bench:incomplete")))


if __name__ == "__main__":
    run(_client())
