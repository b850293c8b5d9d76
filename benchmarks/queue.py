"""The queue beside plain Celery and six other queues, all on one server of its own.

`python -m benchmarks.queue [--quick] [--json FILE]`; all of it takes about ten minutes, and installs each
other queue into a virtual environment under `.ditto-benchmarks/` the first time.

Ours is a no-op node of an ordinary worker, every setting at its default: leases, fencing, tombstones and
kept results are on. All tasks do nothing and store their results. The systems take turns, round after round,
their workers frozen while others have theirs; a figure is the median of the rounds. The server is a Valkey on
a unix socket with neither snapshots nor an append-only file, for all of them.

- Enqueueing is one client sending calls one at a time while no worker runs.
- A round trip is one call in flight: sent, run by one worker process, its result in the caller's hands.
- Finished per second is two worker processes thawed in front of calls that wait, until the last result: ours
  in the caller's hands, of the others in the server, so that fetching them is not counted against them.
"""

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from benchmarks.queue_peers import FLOOR, OURS, PEERS, PLAIN, QUICK, Command, System
from benchmarks.queue_peers.depth import Depth, measure_depth
from benchmarks.queue_peers.processes import Failed, Server, Started, python_of
from benchmarks.report import Row, finish

ENQUEUE_OVER_CELERY = 4.0
MAP_OVER_ENQUEUE = 3.0
ROUND_TRIP_OVER_FLOOR = 2.2
ROUND_TRIP_OVER_CELERY = 1.15
IDLE_CPU = 1.0  # % of a core
IDLE_COMMANDS = 5.0  # a second
DEPTH_RATE = 0.9  # of that of an empty queue
DEPTH_MEMORY = 1_000.0  # bytes a call

MAPPED = 1_000  # calls
CONTENDERS = 3  # peers that are measured with the larger number waiting; the others take minutes for it


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    round_trips: int  # in a turn
    waiting: int
    many_waiting: int  # 0: not measured
    deep: int  # calls in the deep queue
    settling: float  # seconds until an idle worker has done what it does at its start, its last read included
    idle: float  # seconds that it is watched then


FULL = Size(
    rounds=5, round_trips=300, waiting=2_000, many_waiting=20_000, deep=1_000_000, settling=8.0, idle=20.0
)
SHORT = Size(rounds=3, round_trips=100, waiting=500, many_waiting=0, deep=20_000, settling=6.0, idle=6.0)


@dataclass
class Figures:
    """What was measured of one system, a number a round."""

    enqueue: list[float] = field(default_factory=list)  # calls per second
    p50: list[float] = field(default_factory=list)  # ms
    p99: list[float] = field(default_factory=list)
    finished: dict[int, list[float]] = field(default_factory=dict)  # calls per second, by calls waiting
    map: list[float] = field(default_factory=list)  # calls per second
    get: list[float] = field(default_factory=list)  # ms, p50 of MEMORY.GET


@dataclass
class Bench:
    """One run: the server, what was found, and which systems could not be measured and why."""

    server: Server
    folder: Path
    size: Size
    pythons: dict[str, Path] = field(default_factory=dict)
    figures: dict[str, Figures] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def of(self, system: System) -> Figures:
        return self.figures.setdefault(system.name, Figures())

    def note(self, system: System, error: Failed) -> None:
        """Leave a peer out from now on; without ours, plain Celery or the floor there is nothing to show."""
        if system not in PEERS:
            raise SystemExit(str(error))
        self.failed[system.name] = str(error)
        print(error, file=sys.stderr)

    @contextmanager
    def started(
        self, wanted: Iterable[tuple[System, Sequence[Command]]], environ: Mapping[str, str] = {}
    ) -> Iterator[list[Started]]:
        """Start the systems that can be, all at once, and freeze their workers."""
        with ExitStack() as stack:
            starting = []
            for system, commands in wanted:
                if system.name not in self.failed:
                    python, url = self.pythons[system.name], self.server.fresh_url()
                    one = Started(system, python, url, commands, self.folder, **environ)
                    stack.callback(one.kill)
                    starting.append(one)
            yield [one for one in starting if self.tried(one, one.wait_ready)]

    def tried(self, running: Started, act: Callable[[], None]) -> bool:
        """Do something with a system unless it has failed; tells whether that went well."""
        if running.system.name in self.failed:
            return False
        try:
            act()
        except Failed as error:
            self.note(running.system, error)
            return False
        return True

    def rounds(self, systems: Sequence[Started], act: Callable[[Started], None]) -> None:
        """Let the systems take turns, the first of a round another one each time."""
        for number in range(self.size.rounds):
            for place in range(len(systems)):
                running = systems[(place + number) % len(systems)]
                self.tried(running, lambda running=running: act(running))  # type: ignore[misc]


def measure(bench: Bench, peers: Sequence[System]) -> list[Row]:
    """Measure everything, stage by stage."""
    all_of_them = [*OURS.values(), *PLAIN.values(), FLOOR, *peers]
    _tell("an idle worker")
    idle = _idle(bench)
    _tell("round trips")
    _round_trips(bench, all_of_them)
    _memory_gets(bench)
    _tell(f"{bench.size.waiting:,} waiting")
    _throughput(bench, all_of_them, bench.size.waiting)
    if bench.size.many_waiting:
        _tell(f"{bench.size.many_waiting:,} waiting")
        _throughput(bench, _contenders(bench, peers), bench.size.many_waiting)
    _tell(f"{bench.size.deep:,} waiting")
    depth = measure_depth(bench.server, bench.size.deep, bench.size.rounds + 4)
    return list(_rows(bench, peers, idle, depth))


def _tell(stage: str) -> None:
    print(f"measuring: {stage}", file=sys.stderr, flush=True)


def _idle(bench: Bench) -> tuple[float, float]:
    """Return the share of a core, in %, and the commands per second of a worker that has nothing to do."""
    system = OURS["threads"]
    with bench.started([(system, system.one)]) as (running,), running.turn():
        time.sleep(bench.size.settling)
        worker = psutil.Process(running.workers[0].pid)
        commands, seconds, start = bench.server.commands(), _cpu(worker), time.perf_counter()
        time.sleep(bench.size.idle)
        taken = time.perf_counter() - start
        cpu = (_cpu(worker) - seconds) / taken * 100
        return cpu, (bench.server.commands() - commands - 1) / taken


def _cpu(process: psutil.Process) -> float:
    """Return the seconds of a processor that a process and its children have used."""
    return sum(sum(member.cpu_times()[:2]) for member in (process, *process.children(recursive=True)))


def _round_trips(bench: Bench, systems: Sequence[System]) -> None:
    def act(running: Started) -> None:
        with running.turn():
            running.ask("roundtrips", 20)
            taken = running.ask("roundtrips", bench.size.round_trips)
        figures = bench.of(running.system)
        figures.p50.append(statistics.median(taken) * 1e3)
        figures.p99.append(statistics.quantiles(taken, n=100)[98] * 1e3)

    with bench.started((system, system.one) for system in systems) as running:
        bench.rounds(running, act)


def _memory_gets(bench: Bench) -> None:
    """Measure MEMORY.GET over SQLite beside our no-op and plain Celery's, in the solo pool."""

    def act(running: Started) -> None:
        with running.turn():
            running.ask("gets", 20)
            taken = running.ask("gets", bench.size.round_trips)
        bench.of(running.system).get.append(statistics.median(taken) * 1e3)

    environ = {"BENCH_MEMORY": f"sqlite:///{bench.folder / 'memory.sqlite'}"}
    with bench.started([(OURS["solo"], OURS["solo"].one)], environ) as running:
        bench.rounds(running, act)


def _throughput(bench: Bench, systems: Sequence[System], waiting: int) -> None:
    def act(running: Started) -> None:
        figures = bench.of(running.system)
        taken = running.ask("enqueue", waiting)
        with running.turn():
            start = time.perf_counter()
            running.ask("finish", waiting)
            figures.finished.setdefault(waiting, []).append(waiting / (time.perf_counter() - start))
        running.ask("forget", waiting)
        if waiting == bench.size.waiting:
            figures.enqueue.append(waiting / taken)
            if running.system is OURS["solo"]:
                figures.map.append(MAPPED / running.ask("map", MAPPED))
                with running.turn():
                    running.ask("finishmap", MAPPED)

    with bench.started((system, system.two) for system in systems) as running:
        bench.rounds(running, act)


def _contenders(bench: Bench, peers: Sequence[System]) -> list[System]:
    """Choose who is measured with many waiting: ours and the fastest peers."""
    able = [peer for peer in peers if peer.name not in bench.failed]
    able.sort(key=lambda peer: statistics.median(bench.of(peer).finished[bench.size.waiting]), reverse=True)
    return [*OURS.values(), *able[:CONTENDERS]]


def _rows(bench: Bench, peers: Sequence[System], idle: tuple[float, float], depth: Depth) -> Iterator[Row]:
    able = [peer for peer in peers if peer.name not in bench.failed]
    median = statistics.median
    ours, plain = bench.of(OURS["solo"]), bench.of(PLAIN["solo"])

    enqueue = median(ours.enqueue)
    for peer in able:
        yield Row(
            f"enqueue, beside {peer.name}", enqueue, median(bench.of(peer).enqueue), 1.0, "/s", "higher"
        )
    celery = max(median(bench.of(system).enqueue) for system in PLAIN.values())
    yield Row("enqueue, beside raw redis", enqueue, median(bench.of(FLOOR).enqueue), None, "/s", "higher")
    yield Row("enqueue, beside plain Celery", enqueue, celery, ENQUEUE_OVER_CELERY, "/s", "higher")
    yield Row(
        f"map of {MAPPED:,}, beside enqueue", median(ours.map), enqueue, MAP_OVER_ENQUEUE, "/s", "higher"
    )

    for peer in able:
        yield Row(
            f"round trip p50, solo, beside {peer.name}",
            median(ours.p50),
            median(bench.of(peer).p50),
            1.0,
            "ms",
        )
    floor = median(bench.of(FLOOR).p50)
    yield Row("round trip p50, solo, beside raw redis", median(ours.p50), floor, ROUND_TRIP_OVER_FLOOR, "ms")
    for pool, system in OURS.items():
        figures, other = bench.of(system), bench.of(PLAIN[pool])
        names = f"round trip p50, {pool}, beside plain Celery", f"round trip p99, {pool}, beside plain Celery"
        yield Row(names[0], median(figures.p50), median(other.p50), ROUND_TRIP_OVER_CELERY, "ms")
        yield Row(names[1], median(figures.p99), median(other.p99), None, "ms")
    for peer in able:
        figures = bench.of(peer)
        yield Row(
            f"round trip p99, solo, beside {peer.name}", median(ours.p99), median(figures.p99), None, "ms"
        )
    yield Row("MEMORY.GET p50, solo, beside our no-op", median(ours.get), median(ours.p50), None, "ms")
    yield Row(
        "MEMORY.GET p50, solo, beside plain Celery's no-op", median(ours.get), median(plain.p50), None, "ms"
    )

    for waiting in (bench.size.waiting, bench.size.many_waiting):
        yield from _finished_rows(bench, able, waiting)
    yield from _alone(bench, idle, depth)


def _finished_rows(bench: Bench, peers: Sequence[System], waiting: int) -> Iterator[Row]:
    """Hold the better of our pools against each other system that was measured."""
    rates = {
        name: statistics.median(figures.finished[waiting])
        for name, figures in bench.figures.items()
        if waiting in figures.finished
    }
    if not rates:
        return
    best = max(OURS, key=lambda pool: rates[OURS[pool].name])
    ours = rates[OURS[best].name]
    for peer in [*peers, *PLAIN.values()]:
        if peer.name in rates:
            name = f"finished, {waiting:,} waiting, 2 × {best}, beside {peer.name}"
            yield Row(name, ours, rates[peer.name], 1.0, "/s", "higher")
    if FLOOR.name in rates:
        name = f"finished, {waiting:,} waiting, 2 × {best}, beside {FLOOR.name}"
        yield Row(name, ours, rates[FLOOR.name], None, "/s", "higher")
    for pool, system in OURS.items():
        if pool != best:
            name = f"finished, {waiting:,} waiting, 2 × {pool}, beside our {best}"
            yield Row(name, rates[system.name], ours, None, "/s", "higher")


def _alone(bench: Bench, idle: tuple[float, float], depth: Depth) -> Iterator[Row]:
    cpu, commands = idle
    deep = f"{bench.size.deep:,} waiting"
    yield Row("idle worker, share of a core", cpu, None, IDLE_CPU, "%", measure="value")
    yield Row("idle worker, Redis commands", commands, None, IDLE_COMMANDS, "/s", measure="value")
    yield Row(f"enqueue, {deep}, beside none", *depth.enqueue, DEPTH_RATE, "/s", "higher")
    yield Row(f"fetch, {deep}, beside none", *depth.fetch, DEPTH_RATE, "/s", "higher")
    yield Row(f"memory of a call, {deep}", depth.memory, None, DEPTH_MEMORY, "bytes", measure="value")
    for name, why in bench.failed.items():
        yield Row(f"{name} not measured: {why}"[:120], 0.0, None, 1.0, "-", "higher", "value")


def _chosen(bench: Bench, *, is_quick: bool) -> list[System]:
    """Return the peers that are measured, each under its own Python; notes those that cannot be installed."""
    chosen = []
    for peer in PEERS:
        if is_quick and peer.name not in QUICK:
            continue
        try:
            python = python_of(peer, may_install=not is_quick)
        except Failed as error:
            bench.note(peer, error)
            continue
        if python is None:
            print(f"{peer.name} is not installed: run once without --quick", file=sys.stderr)
            continue
        bench.pythons[peer.name] = python
        chosen.append(peer)
    for system in (*OURS.values(), *PLAIN.values(), FLOOR):
        bench.pythons[system.name] = Path(sys.executable)
    return chosen


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(description="our queue beside plain Celery and other queues")
    parser.add_argument("--quick", action="store_true", help="fewer calls, rounds and peers; under a minute")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        try:
            server.wait_ready()
            bench = Bench(server, Path(name), SHORT if options.quick else FULL)
            rows = measure(bench, _chosen(bench, is_quick=options.quick))
        finally:
            server.close()
    return finish(rows, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
