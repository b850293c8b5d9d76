"""The systems that `benchmarks/queue.py` measures: one file each, with its worker and its client.

A file runs under the Python that has its library: that of a virtual environment of its own for most of them,
for their pins exclude each other. It finds the server in the variable `BENCH_URL`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FLOOR", "OURS", "PEERS", "PLAIN", "QUICK", "System", "celery_pool"]

_HERE = __name__
_HIREDIS = "hiredis==3.5.0"  # all have it, as we do

Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class System:
    """One queue with one kind of worker.

    Attributes:
        name: for the tables.
        module: its file in this package; `python -m` of it is the client.
        one: what starts one worker process, each a list of words after `python -m`.
        two: what starts two of them.
        requirements: what pip installs for it; empty: it runs under our own Python.
    """

    name: str
    module: str
    one: Sequence[Command]
    two: Sequence[Command]
    requirements: Sequence[str] = ()


def celery_pool(module: str, pool: str) -> tuple[Sequence[Command], Sequence[Command]]:
    """Return the commands for one and for two Celery workers; threads have eight slots each."""
    app, slots = f"{_HERE}.{module}", () if pool == "solo" else ("-c", "8")
    workers = [("celery", "-A", app, "worker", "-P", pool, *slots, "-n", f"{pool}{n}@%h") for n in (1, 2)]
    return workers[:1], workers


OURS = {pool: System(f"ditto {pool}", "ditto", *celery_pool("ditto", pool)) for pool in ("solo", "threads")}
PLAIN = {
    pool: System(f"celery {pool}", "celery", *celery_pool("celery", pool)) for pool in ("solo", "threads")
}
FLOOR = System("raw redis", "raw", [(f"{_HERE}.raw", "worker")], [(f"{_HERE}.raw", "worker")] * 2)

_DRAMATIQ = ("dramatiq", f"{_HERE}.dramatiq", "-t", "8")
_HUEY = ("huey.bin.huey_consumer", f"{_HERE}.huey.queue", "-n", "-q", "-d", "0.001")
_SAQ = ("saq", f"{_HERE}.saq.settings", "--quiet")
_ARQ = ("arq", f"{_HERE}.arq.WorkerSettings")
_TASKIQ = ("taskiq", "worker", f"{_HERE}.taskiq:broker", "--log-level", "WARNING")
_RQ = (f"{_HERE}.rq", "worker")

PEERS = (
    System(
        "dramatiq",
        "dramatiq",
        [(*_DRAMATIQ, "-p", "1")],
        [(*_DRAMATIQ, "-p", "2")],
        ("dramatiq[redis]==2.2.1", _HIREDIS),
    ),
    System(
        "huey",
        "huey",
        [(*_HUEY, "-k", "thread", "-w", "8")],
        [(*_HUEY, "-k", "process", "-w", "2")],
        ("huey==3.5.4", "redis==8.1.0", _HIREDIS),
    ),
    System(
        "saq",
        "saq",
        [_SAQ],
        [(*_SAQ, "--workers", "2")],
        ("saq[redis]==0.26.4", "typing-extensions", _HIREDIS),
    ),
    System("arq", "arq", [_ARQ], [_ARQ, _ARQ], ("arq==0.28.0", _HIREDIS)),
    System(
        "taskiq",
        "taskiq",
        [(*_TASKIQ, "-w", "1")],
        [(*_TASKIQ, "-w", "2")],
        ("taskiq==0.13.0", "taskiq-redis==1.2.4", _HIREDIS),
    ),
    System("rq", "rq", [_RQ], [_RQ, _RQ], ("rq==3.0.0", _HIREDIS)),
)
QUICK = ("dramatiq", "huey")  # the fastest two: in finished calls, and in enqueues and round trips
