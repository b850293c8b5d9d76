"""Plain Celery: its own Redis transport and result backend, all settings as they come."""

import os

import redis
from celery import Celery

from benchmarks.queue_peers.client import celery_url, run, serve

_URL = os.environ["BENCH_URL"]
_COMING_AND_GOING = ("celery", "unacked", "unacked_index", "unacked_mutex")  # all other keys: results

app = Celery("bench", broker=celery_url(_URL), backend=celery_url(_URL))


def _noop() -> None:
    return None


noop = app.task(_noop, name="noop")


async def _enqueue() -> object:
    return noop.delay()


async def _round_trip() -> None:
    noop.delay().get()


if __name__ == "__main__":
    server = redis.Redis.from_url(_URL)
    run(serve(_enqueue, _round_trip, lambda sent: int(server.dbsize() - server.exists(*_COMING_AND_GOING))))
