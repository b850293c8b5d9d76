"""RQ with its SimpleWorker, which runs jobs in its own process instead of forking for each."""

import os
import sys

import redis
from rq import Queue, SimpleWorker  # type: ignore[import-not-found]

from benchmarks.queue_peers.client import run, serve

_RESULT_TTL = 3600  # seconds
_TIMEOUT = 60  # seconds

_server = redis.Redis.from_url(os.environ["BENCH_URL"])
_queue = Queue("bench", connection=_server)


def noop() -> int:
    return 0


_NAME = "benchmarks.queue_peers.rq.noop"


async def _enqueue() -> object:
    return _queue.enqueue(_NAME, result_ttl=_RESULT_TTL)


async def _round_trip() -> None:
    _queue.enqueue(_NAME, result_ttl=_RESULT_TTL).latest_result(timeout=_TIMEOUT)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        SimpleWorker([_queue], connection=_server).work(logging_level="WARNING")
    else:
        run(serve(_enqueue, _round_trip, lambda sent: int(_server.zcard("rq:finished:bench"))))
