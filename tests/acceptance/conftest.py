"""The command as a user runs it: a process in a folder of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT, STOP_TIMEOUT, die_with_parent, wait_until

COMMAND_TIME = 120.0  # seconds that any command may take
DITTO = (sys.executable, "-P", "-m", "ditto_tasks")


class Shell:
    """Runs `ditto-tasks` in one folder, with nothing of the tests' own environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("DITTO_", "CELERY_", "PYTHON"))
        } | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        self._ups: list[Up] = []

    def run(
        self, *arguments: str, input: str | None = None, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*DITTO, *arguments],
            cwd=self.folder,
            env={**self.environ, **(environ or {})},
            input=input,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIME,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *arguments: str, **options: Any) -> Any:
        done = self.run(*arguments, **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def up(self, *arguments: str) -> "Up":
        """Start `ditto-tasks up`, and return when it is ready."""
        up = self.start_up(*arguments)
        up.wait_ready()
        return up

    def start_up(self, *arguments: str) -> "Up":
        """Start `ditto-tasks up`."""
        up = Up(self, arguments)
        self._ups.append(up)
        return up

    def close(self) -> None:
        for up in self._ups:
            up.close()


class Up:
    """A running `ditto-tasks up`."""

    def __init__(self, shell: Shell, arguments: tuple[str, ...]) -> None:
        self._output = (shell.folder / "up.out").open("w+")
        self._errors = (shell.folder / "up.err").open("w+")
        self._process = subprocess.Popen(
            [*DITTO, "up", *arguments],
            cwd=shell.folder,
            env=shell.environ,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            preexec_fn=die_with_parent,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        return Path(self._output.name).read_text()

    @property
    def errors(self) -> str:
        return Path(self._errors.name).read_text()

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            if self._process.poll() is not None:
                pytest.fail(f"up ended with {self._process.returncode}:\n{self.errors}")
            return "ready:" in self.output

        wait_until(is_ready, COMMAND_TIME, "up is ready")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """List the children that are no broker; one that ends while it is looked at is none."""
        found = []
        for child in self.children():
            with suppress(psutil.NoSuchProcess):
                if "valkey" not in child.name():
                    found.append(child)
        return found

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.send(number)
        return self.wait()

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        return self._process.wait(STOP_TIMEOUT)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(STOP_TIMEOUT)
        self._output.close()
        self._errors.close()


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(map(_lives, processes))


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # it may end between two looks
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in an empty folder."""
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell in a folder where `up` runs; shared by the tests of a module."""
    shell = Shell(tmp_path_factory.mktemp("running"))
    shell.up()
    yield shell
    shell.close()
