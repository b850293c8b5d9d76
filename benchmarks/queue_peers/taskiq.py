"""Taskiq over Redis lists with results in Redis; a caller who waits for one looks every millisecond."""

import os

import redis
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend  # type: ignore[import-not-found]

from benchmarks.queue_peers.client import run, serve

_URL = os.environ["BENCH_URL"]
_POLL = 0.001  # seconds

# Without a time limit of the socket: its worker waits longer for a message than redis-py for an answer.
broker = ListQueueBroker(_URL, socket_timeout=None).with_result_backend(RedisAsyncResultBackend(_URL))


async def _noop() -> None:
    return None


noop = broker.task(task_name="noop")(_noop)


async def _enqueue() -> object:
    return await noop.kiq()


async def _round_trip() -> None:
    await (await noop.kiq()).wait_result(check_interval=_POLL)


async def _client() -> None:
    server = redis.Redis.from_url(_URL)
    await broker.startup()
    await serve(_enqueue, _round_trip, lambda sent: int(server.dbsize() - server.exists("taskiq")))


if __name__ == "__main__":
    run(_client())
