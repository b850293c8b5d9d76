"""The floor: two lists, redis-py, and nothing else; no promise is kept."""

import os
import sys

import redis

from benchmarks.queue_peers.client import run, serve

_server = redis.Redis.from_url(os.environ["BENCH_URL"], socket_timeout=None)


async def _enqueue() -> None:
    _server.lpush("requests", b"{}")


async def _round_trip() -> None:
    _server.lpush("requests", b"{}")
    _server.brpop(["replies"])


async def _finish(handles: list[None]) -> None:
    for _ in handles:
        _server.brpop(["replies"])


def _work() -> None:
    while True:
        _server.brpop(["requests"])
        _server.lpush("replies", b"{}")


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        _work()
    else:
        run(serve(_enqueue, _round_trip, lambda sent: 0, finish=_finish))
