"""What is lost, run twice or left behind when workers, connections and the server fail.

`python -m benchmarks.faults [--quick] [--only SCENARIO ...] [--json FILE]`; about a quarter of an hour, with
`--quick` a minute. Real workers over real servers, all of them this script's own. The reference is plain
Celery with late acknowledgement, in the same run.
"""

import argparse
import math
import os
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from celery import Celery

from benchmarks.report import Row, finish
from ditto_tasks import BrokerUnavailable, Invocation, InvocationTimeout, Runtime
from ditto_tasks.transport.connection import connect
from tests.conftest import RedisServer, WorkerProcess, wait_until
from tests.faults.conftest import KEYS, Crew, lasting_keys

LONG_CALL = 12.0  # seconds
LEASE = 3.0  # seconds, everywhere here
TAKEN_OVER = LEASE + 2  # seconds from SIGKILL to the call running elsewhere
CANCELLED = 0.5  # seconds from the cancel of a running call to its result
GOING_ON = 10.0  # seconds from the server's return until workers run calls
POOLS = ("threads", "prefork", "solo", "gevent")
WAIT = 120.0  # seconds after which a call without a result counts as lost
EXPIRES = 5  # seconds that results are kept in the soak
SLOPE = 0.3  # MB a minute; the allocator's noise over ten minutes
POOLED = 3  # connections that clients open when they are busier than before; each kill may not leave one
KOMBUS_OWN = "_kombu.binding"  # what kombu notes of its exchanges, once an app


@dataclass(frozen=True)
class Scale:
    """How much of everything is done."""

    calls: int
    kills: int
    take_overs: int
    cancels: int
    soak: float  # seconds
    kill_every: float  # seconds
    lanes: int  # scenarios at once


FULL = Scale(30_000, 25, 10, 40, 600, 10, 1)
QUICK = Scale(600, 3, 2, 8, 20, 7, 2)


class Scene:
    """A folder with servers and workers that end with the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: list[WorkerProcess] = []
        self._servers: list[RedisServer] = []

    def folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._folder))

    def server(self) -> RedisServer:
        server = RedisServer(self.folder())
        server.start()
        self._servers.append(server)
        return server

    def crew(self, url: str) -> Crew:
        return Crew(self.start, url, self.folder())

    def start(self, url: str, *options: str, module: str, wait: bool = True, **environ: str) -> WorkerProcess:
        folder = self.folder()
        environ = {"DITTO_RUNTIME_WORKSPACE": str(folder), "DITTO_BROKER_URL": url, **environ}
        worker = WorkerProcess(module, folder, environ, *options)
        self._workers.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    def end(self) -> None:
        for worker in self._workers:
            worker.kill()
        for server in self._servers:
            server.kill()


@contextmanager
def scene() -> Iterator[Scene]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        opened = Scene(Path(folder))
        try:
            yield opened
        finally:
            opened.end()


def random_kills(scene: Scene, scale: Scale) -> list[Row]:
    """Kill workers at random moments, one at a time, while calls go through."""
    crew = scene.crew(scene.server().url())
    at_work = [crew.hire(concurrency=8, lease=LEASE, wait=False) for _ in range(3)]
    for worker in at_work:
        worker.wait_ready()
    chance = random.Random(4354)
    calls: dict[str, list[Invocation]] = {"FAULT.READ": [], "FAULT.WORK": []}
    with crew.runtime() as runtime, results_told(crew) as told:
        share = scale.calls // scale.kills // 2
        for _ in range(scale.kills):
            for node, sent in calls.items():
                sent += [runtime.submit(node, {"seconds": 0.02}) for _ in range(share)]
            time.sleep(chance.uniform(0, 1))
            at_work.pop(chance.randrange(len(at_work))).kill()
            at_work.append(crew.hire(concurrency=8, lease=LEASE))
        waiting = [call for sent in calls.values() for call in sent]
        lost = sum(_is_lost(call) for call in waiting)
    starts = crew.starts()
    twice = sum(starts[call.id] > 1 for call in calls["FAULT.WORK"])
    unknown = sum(_code(call) == "OUTCOME_UNKNOWN" for call in calls["FAULT.WORK"])
    what = f"{len(waiting):,} calls, {scale.kills} SIGKILLs"
    return [
        _bounded(f"{what}: lost", lost, 0, "calls"),
        _bounded(f"{what}: two different results", _differing(told), 0, "calls"),
        _bounded(f"{what}: unsafe started twice", twice, 0, "calls"),
        Row(f"{what}: unsafe told as OUTCOME_UNKNOWN", unknown, None, None, "calls"),
    ]


def long_call(scene: Scene, scale: Scale) -> list[Row]:
    """Let one call run for longer than the lease, with two workers."""
    server = scene.server()
    crew = scene.crew(server.url(1))
    crew.hire_two(lease=LEASE)
    plain = Plain(scene, server.url(2))
    plain.start()
    plain.start()
    with crew.runtime() as runtime:
        call = runtime.submit("FAULT.READ", {"seconds": LONG_CALL})
        plain.send(LONG_CALL)
        call.result(LONG_CALL + WAIT)
    name = f"a {LONG_CALL:g} s call, lease {LEASE:g} s, two workers: executions"
    executions = crew.starts()[call.id]
    return [Row(name, executions, len(plain.started()), 1, "runs", measure="value")]


def take_overs(scene: Scene, scale: Scale) -> list[Row]:
    """Kill workers that run calls, and see how long it takes until those run elsewhere."""
    crew = scene.crew(scene.server().url())
    crew.hire(lease=LEASE)
    seconds: list[float] = []
    with crew.runtime() as runtime:
        for _ in range(scale.take_overs):
            crew.hire(lease=LEASE)
            calls = [runtime.submit("FAULT.READ", {"seconds": 1}) for _ in range(4)]
            victim = crew.holder(calls[0].id)
            killed_at = time.time()
            victim.kill()
            for call in calls:
                call.result(WAIT)
            ids = {call.id for call in calls}
            seconds += [at - killed_at for id, _, at in crew.noted() if id in ids and at > killed_at]
    return [_bounded("SIGKILL to running elsewhere, p95", _p95(seconds), TAKEN_OVER, "s")]


def cancels(scene: Scene, scale: Scale) -> list[Row]:
    """Cancel calls that run, in every pool."""
    server = scene.server()
    return [_cancels_of(scene.crew(server.url(place)), pool, scale) for place, pool in enumerate(POOLS)]


def _cancels_of(crew: Crew, pool: str, scale: Scale) -> Row:
    worker = crew.hire(pool=pool, lease=LEASE)
    seconds: list[float] = []
    with crew.runtime() as runtime:
        for _ in range(scale.cancels):
            call = runtime.submit("FAULT.LOOP", {})
            crew.wait_started(call.id)
            began = time.monotonic()
            call.cancel()
            if call.result(WAIT).status != "cancelled":
                seconds.append(math.inf)
            seconds.append(time.monotonic() - began)
    if "Traceback" in worker.log:
        seconds = [math.inf]
    return _bounded(f"cancel of a running call, {pool}, p95", _p95(seconds), CANCELLED, "s")


def cancel_before_a_worker(scene: Scene, scale: Scale) -> list[Row]:
    """Cancel a call while no worker is up; then start one."""
    server = scene.server()
    crew, plain = scene.crew(server.url(1)), Plain(scene, server.url(2))
    with crew.runtime() as runtime:
        cancelled = runtime.submit("FAULT.WORK", {})
        cancelled.cancel()
        plain.revoke(plain.send(0))
        crew.hire(lease=LEASE)
        plain.start()
        cancelled.result(WAIT)
        runtime.submit("FAULT.WORK", {}).result(WAIT)
        plain.result(plain.send(0))
    ours, theirs = crew.starts()[cancelled.id], len(plain.started()) - 1
    return [Row("cancel sent while no worker is up: runs", ours, theirs, 0, "runs", measure="value")]


def server_restart(scene: Scene, scale: Scale) -> list[Row]:
    """Restart the server, which keeps an append-only file, while calls go through."""
    server = scene.server()
    crew = scene.crew(server.url())
    crew.hire_two(lease=LEASE)
    accepted: list[Invocation] = []
    with crew.runtime() as runtime:
        stopping = threading.Event()
        submitting = threading.Thread(target=_submit_all_the_time, args=(runtime, accepted, stopping))
        submitting.start()
        wait_until(lambda: len(accepted) > 100)
        server.stop()
        time.sleep(2)
        server.start()
        back_at = time.time()
        wait_until(lambda: any(at > back_at for _, _, at in crew.noted()))
        enough = len(accepted) + 100
        wait_until(lambda: len(accepted) > enough)
        stopping.set()
        submitting.join(60)
        lost = sum(_is_lost(call) for call in accepted)
    goes_on = min(at for _, _, at in crew.noted() if at > back_at) - back_at
    return [
        _bounded(f"server restarted (AOF), {len(accepted):,} calls: lost", lost, 0, "calls"),
        _bounded("server restarted (AOF): workers go on after", goes_on, GOING_ON, "s"),
    ]


def soak(scene: Scene, scale: Scale) -> list[Row]:
    """Mix calls for a long time; one worker stays, another is killed and replaced again and again."""
    server = scene.server()
    crew = scene.crew(server.url())
    crew.settings = f"  resultExpires: {EXPIRES}\n"
    steady = psutil.Process(crew.hire(lease=LEASE).pid)
    victim = crew.hire(lease=LEASE)
    with connect(crew.url) as client:
        nothing = lasting_keys(client)
        with crew.runtime() as runtime:
            mix = Mix(runtime)
            memory: list[tuple[float, float]] = []
            connections: list[int] = []
            ends_at, killed_at = time.monotonic() + scale.soak, time.monotonic()
            while time.monotonic() < ends_at:
                mix.go(0.5)
                memory.append((time.monotonic() / 60, steady.memory_info().rss / 2**20))
                if time.monotonic() - killed_at > scale.kill_every:
                    connections.append(client.info("clients")["connected_clients"])
                    victim.kill()
                    victim, killed_at = crew.hire(lease=LEASE), time.monotonic()
            lost = mix.finish()
        wait_until(lambda: not client.keys("celery-task-meta-*"), EXPIRES + 10)
        left = {key for key in lasting_keys(client) - nothing if not key.startswith(KOMBUS_OWN)}
        left |= {key.decode() for key in client.scan_iter(f"{KEYS.prefix}:call:*")}
        dead = client.zcard(KEYS.leases) + client.hlen(KEYS.consumers) - 4
    later = memory[len(memory) // 3 :]
    growth = max(connections[len(connections) // 2 :]) - max(connections[: len(connections) // 2])
    slope = statistics.linear_regression(*zip(*later, strict=True)).slope
    what = f"soak of {scale.soak:g} s, {mix.count:,} calls"
    return [
        _bounded(f"{what}: lost", lost, 0, "calls"),
        _bounded(f"{what}: keys left after expiry", len(left) + dead, 0, "keys"),
        _bounded(f"{what}: connections more than at first", growth, POOLED, "connections"),
        Row(
            f"{what}: memory of the steady worker",
            slope,
            None,
            SLOPE if scale is FULL else None,
            "MB/min",
            measure="value",
        ),
    ]


class Mix:
    """Calls of several kinds; forgets those that have ended."""

    def __init__(self, runtime: Runtime) -> None:
        self.count = 0
        self._runtime = runtime
        self._open: list[Invocation] = []
        self._lost = 0

    def go(self, seconds: float) -> None:
        """Keep up to a hundred calls open for so long."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            self._open = [call for call in self._open if not call.future.done()]
            if len(self._open) > 100:
                time.sleep(0.01)
                continue
            for node, input in (("FAULT.READ", {"seconds": 0.01}), ("FAULT.WORK", {"text": "x" * 2000})):
                self._open += [self._runtime.submit(node, input) for _ in range(5)]
            cancelled = self._runtime.submit("FAULT.LOOP", {})
            cancelled.cancel()
            self._open.append(cancelled)
            self.count += 11

    def finish(self) -> int:
        """Wait for what is open; returns how many were lost."""
        return sum(_is_lost(call) for call in self._open)


class Plain:
    """Plain Celery workers with a client; their visibility timeout is our lease."""

    def __init__(self, scene: Scene, url: str) -> None:
        self._scene = scene
        self._url = url
        self._notes = scene.folder() / "notes"
        self._notes.touch()
        self._app = Celery("client", broker=url, backend=url, set_as_current=False)

    def start(self) -> None:
        worker = self._scene.start(
            self._url,
            *("--pool", "threads", "-c", "4"),
            module="tests.faults.plain_app",
            wait=False,
            DITTO_TEST_TRACE=str(self._notes),
            PLAIN_VISIBILITY_TIMEOUT=str(LEASE),
        )
        wait_until(lambda: f"{worker.name} ready" in worker.log)

    def send(self, seconds: float) -> Any:
        return self._app.send_task("work", [seconds])

    def revoke(self, sent: Any) -> None:
        self._app.control.revoke(sent.id)

    def result(self, sent: Any) -> Any:
        return sent.get(timeout=WAIT)

    def started(self) -> list[str]:
        return self._notes.read_text().splitlines()


@contextmanager
def results_told(crew: Crew) -> Iterator[dict[str, set[bytes]]]:
    """Collect all results that are stored in the block, by the key of the call's result."""
    told: dict[str, set[bytes]] = defaultdict(set)

    def note(message: dict[str, Any]) -> None:
        told[message["channel"].decode()].add(message["data"])

    with connect(crew.url) as client, client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.psubscribe(**{KEYS.result("*"): note})
        listener = channel.run_in_thread(sleep_time=0.1)
        try:
            yield told
        finally:
            listener.stop()
            listener.join(10)


def _submit_all_the_time(runtime: Runtime, accepted: list[Invocation], stopping: threading.Event) -> None:
    while not stopping.wait(0.005):
        try:
            accepted.append(runtime.submit("FAULT.READ", {"seconds": 0.01}))
        except BrokerUnavailable:
            stopping.wait(0.1)


def _is_lost(call: Invocation) -> bool:
    try:
        call.result(WAIT)
    except InvocationTimeout:
        return True
    return False


def _code(call: Invocation) -> str | None:
    error = call.result(0).error if call.future.done() else None
    return error and error.code


def _differing(told: dict[str, set[bytes]]) -> int:
    return sum(len(results) > 1 for results in told.values())


def _p95(seconds: list[float]) -> float:
    return sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1]


def _bounded(name: str, ours: float, goal: float, unit: str) -> Row:
    return Row(name, ours, None, goal, unit, measure="value")


SCENARIOS: tuple[Callable[[Scene, Scale], list[Row]], ...] = (
    soak,
    random_kills,
    long_call,
    take_overs,
    cancels,
    cancel_before_a_worker,
    server_restart,
)


def measure(scale: Scale, names: list[str]) -> list[Row]:
    """Run the scenarios, each with servers and workers of its own."""

    def run(scenario: Callable[[Scene, Scale], list[Row]]) -> list[Row]:
        with scene() as opened:
            return scenario(opened, scale)

    chosen = [scenario for scenario in SCENARIOS if not names or scenario.__name__ in names]
    with ThreadPoolExecutor(scale.lanes) as lanes:
        return [row for rows in lanes.map(run, chosen) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description="what failures cost")
    parser.add_argument("--quick", action="store_true", help="fewer calls and kills, a short soak")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    parser.add_argument("--only", nargs="+", default=[], choices=[one.__name__ for one in SCENARIOS])
    options = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of the workers: Celery warns with each reconnect
    return finish(measure(QUICK if options.quick else FULL, options.only), options.json)


if __name__ == "__main__":
    raise SystemExit(main())
