"""Dramatiq with its Redis broker, and results stored in Redis (by default it keeps none)."""

import os

import dramatiq  # type: ignore[import-not-found]
import redis
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]
from dramatiq.results import Results  # type: ignore[import-not-found]
from dramatiq.results.backends import RedisBackend  # type: ignore[import-not-found]

from benchmarks.queue_peers.client import run, serve

_URL = os.environ["BENCH_URL"]
_RESULT_TTL = 3_600_000  # milliseconds

broker = RedisBroker(url=_URL)
broker.add_middleware(Results(backend=RedisBackend(url=_URL), store_results=True, result_ttl=_RESULT_TTL))
dramatiq.set_broker(broker)


def _noop() -> int:
    return 0


noop = dramatiq.actor(_noop, actor_name="noop")


async def _enqueue() -> object:
    return noop.send()


async def _round_trip() -> None:
    noop.send().get_result(block=True)


if __name__ == "__main__":
    server = redis.Redis.from_url(_URL)
    run(serve(_enqueue, _round_trip, lambda sent: sent - int(server.hlen("dramatiq:default.msgs"))))
