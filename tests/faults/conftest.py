"""The workers of one fault test, and what can be seen of them from outside."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from ditto_tasks import Runtime
from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.keys import Keys
from tests.beat_process import Orchestra
from tests.conftest import RedisServer, StartWorker, WorkerProcess, connected, wait_until

LEASE = 2.0  # seconds; short, so that tests are
PATIENT_LEASE = 4.0  # seconds; where a busy machine must not make a worker lose it that lives
KEYS = Keys("ditto")


class Crew:
    """Workers that share a database and a file of notes; each may be killed, frozen and replaced."""

    def __init__(self, start: StartWorker, url: str, folder: Path) -> None:
        self.url = url
        self.workers: list[WorkerProcess] = []
        self.settings = ""  # more lines of the section transport
        self._start = start
        self._folder = folder
        self._notes = folder / "notes"
        self._notes.touch()

    def hire(
        self,
        *options: str,
        pool: str = "threads",
        concurrency: int = 4,
        lease: float = LEASE,
        wait: bool = True,
    ) -> WorkerProcess:
        """Start one more worker. gevent must be named on the command line, where Celery patches for it."""
        settings = self._folder / f"{pool}-{concurrency}-{lease}.yaml"
        settings.write_text(
            f"transport:\n  lease: {lease}\n{self.settings}"
            f"workers:\n  memory:\n    pool: {pool}\n    concurrency: {concurrency}\n"
        )
        worker = self._start(
            self.url,
            "--without-mingle",  # with each start and each reset, that would wait a second for neighbours
            *(("-P", "gevent") if pool == "gevent" else ()),
            *options,
            module="tests.faults.fault_app",
            wait=wait,
            DITTO_CONFIG=str(settings),
            DITTO_TEST_TRACE=str(self._notes),
        )
        self.workers.append(worker)
        return worker

    def hire_two(self, **options: Any) -> None:
        """Start two workers at once and wait for both."""
        pair = [self.hire(wait=False, **options) for _ in range(2)]
        for worker in pair:
            worker.wait_ready()

    def runtime(self) -> Runtime:
        return connected(self.url)

    def noted(self, event: str = "started") -> list[tuple[str, int, float]]:
        """List what nodes noted: execution id, process id, seconds since the epoch."""
        lines = [line.split(" ") for line in self._notes.read_text().splitlines()]
        return [(id, int(pid), float(at)) for kind, id, pid, at in lines if kind == event]

    def starts(self) -> Counter[str]:
        """Count for each execution id how often its node was started."""
        return Counter(id for id, _, _ in self.noted())

    def holder(self, id: str) -> WorkerProcess:
        """Tell which worker started the call last."""
        wait_until(lambda: self.starts()[id], what="the call has started")
        pid = [pid for noted, pid, _ in self.noted() if noted == id][-1]
        return next(worker for worker in self.workers if pid in (worker.pid, *children(worker)))

    def wait_started(self, *ids: str, times: int = 1) -> None:
        def have_started() -> bool:
            starts = self.starts()
            return all(starts[id] >= times for id in ids)

        wait_until(have_started, what="the calls have started")


def freeze(worker: WorkerProcess) -> None:
    """Suspend a worker with all its processes."""
    os.killpg(worker.pid, signal.SIGSTOP)


def thaw(worker: WorkerProcess) -> None:
    os.killpg(worker.pid, signal.SIGCONT)


def children(worker: WorkerProcess) -> list[int]:
    """List the processes of a prefork pool."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(worker.pid).children()]
    return []


def entries(client: RedisClient) -> int:
    """Count the messages in all streams, fetched ones too."""
    return sum(client.xlen(key) for key in client.scan_iter(_type="STREAM"))


def lasting_keys(client: RedisClient) -> set[str]:
    """Name the keys that would never go away by themselves and are not the streams of queues."""
    return {
        key.decode() for key in client.scan_iter() if client.ttl(key) == -1 and client.type(key) != b"stream"
    }


@pytest.fixture
def crew(worker_process: StartWorker, broker_url: str, tmp_path: Path) -> Crew:
    return Crew(worker_process, broker_url, tmp_path)


@pytest.fixture
def own_crew(worker_process: StartWorker, own_server: RedisServer, tmp_path: Path) -> Crew:
    """A crew whose server may be stopped."""
    return Crew(worker_process, own_server.url(), tmp_path)


@pytest.fixture
def client(crew: Crew) -> Iterator[redis.Redis]:
    with connect(crew.url) as client:
        yield client


class Published:
    """Hears all results that are stored, as they are told on Celery's channels."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._channel = client.pubsub(ignore_subscribe_messages=True)
        self._told: list[bytes] = []
        self._channel.psubscribe(**{KEYS.result("*"): lambda message: self._told.append(message["data"])})
        self._listener = self._channel.run_in_thread(sleep_time=0.1)

    def so_far(self) -> list[bytes]:
        """List what was told until now: what is told last is heard last."""
        self._client.publish(KEYS.result("last"), b"last")
        wait_until(lambda: b"last" in self._told, what="all that was told is heard")
        return self._told[:-1]

    def close(self) -> None:
        self._listener.stop()
        self._listener.join(10)
        self._channel.close()


@pytest.fixture
def published(client: RedisClient) -> Iterator[Published]:
    published = Published(client)
    yield published
    published.close()


@pytest.fixture
def orchestra(broker_url: str, tmp_path: Path) -> Iterator[Orchestra]:
    """Fifty schedules, each every second; no beat yet."""
    orchestra = Orchestra(broker_url, tmp_path, schedules=50)
    yield orchestra
    orchestra.close()
