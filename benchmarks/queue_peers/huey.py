"""Huey with its Redis storage; a caller who waits for a result looks every millisecond."""

import os

from huey import RedisHuey  # type: ignore[import-not-found]

from benchmarks.queue_peers.client import run, serve

_POLL = 0.001  # seconds

queue = RedisHuey("bench", url=os.environ["BENCH_URL"])


def _noop() -> int:
    return 0


_noop.__module__ = "benchmarks.queue_peers.huey"  # part of the task's name; the client runs as `__main__`
noop = queue.task(name="noop")(_noop)


async def _enqueue() -> object:
    return noop()


async def _round_trip() -> None:
    noop().get(blocking=True, backoff=1, max_delay=_POLL)


if __name__ == "__main__":
    run(serve(_enqueue, _round_trip, lambda sent: int(queue.result_count())))
