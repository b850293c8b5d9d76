"""Child processes: started apart from the terminal's signals, watched, restarted, and stopped for good."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from ditto_tasks.embedded.errors import ProcessDied

__all__ = ["Child", "Program"]

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # prctl(2)
_KILL_TIME = 5.0  # seconds until a killed process must be gone
_SETTLED = 60.0  # seconds of life after which earlier deaths are forgotten
_MOST_DEATHS = 3  # without settling in between
_FIRST_PAUSE = 0.5  # seconds before the first restart; doubled with each further one


@dataclass(frozen=True, slots=True)
class Program:
    """What a child runs.

    Attributes:
        name: for messages.
        command: the program and its arguments.
        environ: its whole environment; None: ours.
        output: takes what it prints; None: our own standard error.
        kept_open: descriptors of open files that it inherits.
        orphan_signal: what Linux sends it when this process is gone.
    """

    name: str
    command: Sequence[str]
    environ: Mapping[str, str] | None = None
    output: IO[Any] | None = None
    kept_open: Sequence[int] = ()
    orphan_signal: signal.Signals = signal.SIGKILL


class Child:
    """One program that is kept running; starts it at once.

    Start it from the thread that lives as long as the process: on Linux a child ends with the thread that
    started it.
    """

    def __init__(self, program: Program) -> None:
        self.name = program.name
        self._program = program
        self._deaths = 0
        self._restart_at: float | None = None
        self._start()

    @property
    def pid(self) -> int:
        """The id of the process that runs now, or ran last."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """Return None while it runs, else its exit status; negative: the signal that ended it."""
        return self._process.poll()

    def keep_alive(self) -> None:
        """Restart the program if it died, after a pause that grows; call this every moment.

        Raises:
            ProcessDied: it died for the third time, never having lived for a minute.
        """
        if self._restart_at is not None:
            if time.monotonic() >= self._restart_at:
                self._start()
            return
        status = self.exit_status()
        if status is None:
            return
        self._deaths = 1 if time.monotonic() - self._started_at > _SETTLED else self._deaths + 1
        if self._deaths >= _MOST_DEATHS:
            raise ProcessDied(
                f"{self.name} died {self._deaths} times ({how_it_ended(status)}): see what it printed"
            )
        pause = _FIRST_PAUSE * 2 ** (self._deaths - 1)
        logger.warning("%s died (%s): starting it again in %g s", self.name, how_it_ended(status), pause)
        self._end_group()
        self._restart_at = time.monotonic() + pause

    def ask_to_stop(self) -> None:
        """Send SIGTERM; returns at once."""
        self._restart_at = None
        if self.exit_status() is None:
            self._process.terminate()

    def stop(self, grace: float, is_impatient: Callable[[], bool] = lambda: False) -> None:
        """Ask it to stop, wait, then kill whatever is left of it and of its own children.

        Args:
            grace: seconds to wait.
            is_impatient: asked every moment; true ends the waiting.
        """
        self.ask_to_stop()
        deadline = time.monotonic() + grace
        while self.exit_status() is None and time.monotonic() < deadline and not is_impatient():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.1)
        if self.exit_status() is None:
            logger.warning("%s did not stop in time: killing it", self.name)
        self._end_group()

    def _start(self) -> None:
        program = self._program
        self._restart_at = None
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            program.command,
            env=program.environ,
            stdin=subprocess.DEVNULL,
            stdout=program.output if program.output is not None else sys.stderr.fileno(),
            stderr=subprocess.STDOUT,
            pass_fds=program.kept_open,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops all in order
            preexec_fn=_ending_with_parent(program.orphan_signal),
        )

    def _end_group(self) -> None:
        """Kill what is left of its session, and reap it; a process that ended long ago is no error."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_TIME)


def how_it_ended(status: int) -> str:
    """Say what an exit status means."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def _ending_with_parent(orphan_signal: signal.Signals) -> Callable[[], None] | None:
    """Make what the child runs first, so that it does not outlive us; None where there is no prctl."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(orphan_signal), 0, 0, 0)
        if os.getppid() != parent:  # it was gone before it could be named
            os._exit(1)

    return end_with_parent
