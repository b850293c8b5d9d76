"""The client's side of each system: does what it is told on standard input, a line a command.

`enqueue N`, `finish` (wait for what was enqueued), `roundtrips N`, and what a system adds; each is answered
with a line of JSON. Seconds are taken here, around the library's own calls.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

__all__ = ["celery_url", "run", "serve"]

_POLL = 0.003  # seconds between two looks at the number of results

Act = Callable[[], Awaitable[Any]]


async def serve(
    enqueue: Act,
    round_trip: Act,
    results: Callable[[int], int],
    *,
    finish: Callable[[list[Any]], Awaitable[None]] | None = None,
    more: Mapping[str, Callable[[int], Awaitable[Any]]] | None = None,
) -> None:
    """Answer commands until the input ends.

    Args:
        enqueue: sends one call and returns its handle.
        round_trip: sends one call and waits for its result.
        results: tells how many results the server holds, or any number that grows by one with each; it is
            given how many calls were sent so far.
        finish: waits until the results of these handles are in the caller's hands; None: until the server
            holds them, so that what fetching costs is not counted.
        more: further commands.
    """
    handles: list[Any] = []
    sent = before = 0

    async def enqueue_many(count: int) -> float:
        nonlocal sent, before
        before = results(sent)
        sent += count

        async def all_of_them() -> None:
            for _ in range(count):
                handles.append(await enqueue())  # noqa: PERF401

        return await _timed(all_of_them)

    async def finish_all(count: int) -> None:
        if finish is not None:
            await finish(handles)
        else:
            while results(sent) - before < count:
                time.sleep(_POLL)

    async def round_trips(count: int) -> list[float]:
        nonlocal sent
        sent += count
        return [await _timed(round_trip) for _ in range(count)]

    async def forget(count: int) -> None:
        handles.clear()

    commands = {
        "enqueue": enqueue_many,
        "finish": finish_all,
        "forget": forget,
        "roundtrips": round_trips,
        **(more or {}),
    }
    for line in sys.stdin:
        command, count = line.split()
        print(json.dumps(await commands[command](int(count))), flush=True)


def celery_url(url: str) -> str:
    """Write the URL of a socket as Celery does."""
    return url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=", 1)


def run(client: Coroutine[Any, Any, None]) -> None:
    """Serve commands with an event loop of its own."""
    asyncio.run(client)


async def _timed(act: Act) -> float:
    start = time.perf_counter()
    await act()
    return time.perf_counter() - start
