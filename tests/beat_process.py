"""`celery -A beat.app beat` in processes of their own, and what they sent, as the streams hold it."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from redis import BlockingConnectionPool, Redis

from ditto_tasks.transport.connection import RedisClient
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.slots import Slot
from tests.conftest import ROOT, STOP_TIMEOUT, die_with_parent, wait_until

KEYS = Keys("ditto")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BeatProcess:
    def __init__(self, log_file: Path, environ: dict[str, str]) -> None:
        self._log_file = log_file
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "beat.app", "beat", "-l", "INFO"],
                cwd=log_file.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> int:
        """Ask it to end; returns its exit status."""
        self.send(signal.SIGTERM)
        return self._process.wait(STOP_TIMEOUT)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT)


class Orchestra:
    """Beats over one broker with the same schedules, each calling MEMORY.QUERY every so often.

    Attributes:
        beats: those that run.
        client: of the broker; what closes all connections but its own leaves it alone, in every thread.
    """

    def __init__(self, url: str, folder: Path, *, schedules: int, every: float = 1) -> None:
        pool = BlockingConnectionPool.from_url(url, max_connections=1)
        self.client: RedisClient = Redis.from_pool(pool)
        self.beats: list[BeatProcess] = []
        self._folder = folder
        self._names = [f"s{number}" for number in range(schedules)]
        self._every = timedelta(seconds=every)
        self._begun = self._now()
        self._started = 0
        settings: list[dict[str, Any]] = [
            {"name": name, "task": "MEMORY.QUERY", "every": every} for name in self._names
        ]
        file = folder / "ditto.yaml"
        file.write_text(json.dumps({"schedules": settings}))  # JSON is YAML, too
        self.environ = {"DITTO_CONFIG": str(file), "DITTO_BROKER_URL": url}

    def start(self) -> BeatProcess:
        self._started += 1
        beat = BeatProcess(self._folder / f"beat-{self._started}.log", self.environ)
        self.beats.append(beat)
        return beat

    def holder(self) -> int:
        """Tell the process id of the beat that sends; 0: none does now."""
        name = self.client.hget(KEYS.beat, "holder")
        return int(name.split(b":")[1]) if name else 0

    def sender(self) -> BeatProcess:
        """Wait for a running beat that sends."""
        wait_until(lambda: self.holder() in {beat.pid for beat in self.beats}, what="a beat sends")
        return next(beat for beat in self.beats if beat.pid == self.holder())

    def replace(self, beat: BeatProcess) -> None:
        """Kill a beat and start another."""
        beat.kill()
        self.beats.remove(beat)
        self.start()

    def sent(self) -> int:
        """Count the calls that were sent."""
        return int(self.client.xlen("ditto.memory.query:normal"))

    def wait_sent(self, count: int) -> None:
        wait_until(lambda: self.sent() >= count, what=f"{count} calls were sent")

    def stop(self) -> None:
        for beat in self.beats:
            if not beat.has_ended():
                assert beat.stop() == 0
        self.beats.clear()

    def close(self) -> None:
        for beat in self.beats:
            beat.kill()
        self.client.close()

    def assert_each_slot_was_sent_once(self) -> None:
        """Compare what the stream holds with the slots from each schedule's first to its last."""
        assert self.not_sent_once() == []

    def not_sent_once(self) -> list[Slot]:
        """List the slots that were not sent, or twice: from the first of all to the last of each schedule."""
        slots = self._slots()
        sent = Counter(slots[id] for id in self._ids())
        first = min(slot.instant for slot in sent)
        due: list[Slot] = []
        for name in self._names:
            last = max((slot.instant for slot in sent if slot.name == name), default=first)
            steps = range((last - first) // self._every + 1)
            due += [Slot(name, first + step * self._every) for step in steps]
        return [slot for slot in due if sent[slot] != 1]

    def _ids(self) -> list[str]:
        return [fields[b"i"].decode() for _, fields in self.client.xrange("ditto.memory.query:normal")]

    def _slots(self) -> dict[str, Slot]:
        """Name all slots since the beginning by their execution ids."""
        first = (self._begun - EPOCH) // self._every
        last = (self._now() - EPOCH) // self._every
        slots = [
            Slot(name, EPOCH + count * self._every)
            for name in self._names
            for count in range(first, last + 1)
        ]
        return {slot.execution_id("ditto"): slot for slot in slots}

    def _now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.client.time()[0])
