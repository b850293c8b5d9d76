"""arq; workers, and a caller who waits for a result, look every millisecond."""

import logging
import os
from typing import Any

import redis
from arq import create_pool  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]

from benchmarks.queue_peers.client import run, serve

_URL = os.environ["BENCH_URL"]
_PATH, _, _DATABASE = _URL.removeprefix("unix://").partition("?db=")
_SETTINGS = RedisSettings(unix_socket_path=_PATH, database=int(_DATABASE))
_POLL = 0.001  # seconds

logging.disable(logging.INFO)  # it would write two lines a call


async def noop(context: Any) -> None:
    return None


class WorkerSettings:
    """What `arq` runs."""

    functions = (noop,)
    redis_settings = _SETTINGS
    poll_delay = _POLL


async def _client() -> None:
    server = redis.Redis.from_url(_URL)
    pool = await create_pool(_SETTINGS)

    async def enqueue() -> object:
        return await pool.enqueue_job("noop")

    async def round_trip() -> None:
        job = await pool.enqueue_job("noop")
        await job.result(poll_delay=_POLL)

    await serve(enqueue, round_trip, lambda sent: sent - int(server.zcard("arq:queue")))


if __name__ == "__main__":
    run(_client())
