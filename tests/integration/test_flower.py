"""Flower over our workers: it lists them and their calls, and revokes one."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, STOP_TIMEOUT, die_with_parent, free_port, wait_until
from tests.integration.conftest import Site

STARTING = 60.0  # seconds that Flower may take


class Flower:
    """`celery flower`, in a process of its own, and its HTTP API."""

    def __init__(self, site: Site, folder: Path) -> None:
        port = free_port()
        self._address = f"http://127.0.0.1:{port}/api"
        self._log = (folder / "flower.log").open("wb")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "tests.integration.noting_app", "flower"),
                *("--address=127.0.0.1", f"--port={port}", "--inspect_timeout=1000"),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "FLOWER_UNAUTHENTICATED_API": "true",
                "DITTO_BROKER_URL": site.url,
                "DITTO_RESULT_URL": site.results,
                "DITTO_CONFIG": site.settings(),
            },
            stdout=self._log,
            stderr=self._log,
            preexec_fn=die_with_parent,
        )

    def asked(self, path: str, data: bytes | None = None) -> Any:
        """Return what it answers; nothing while it does not."""
        try:
            with urllib.request.urlopen(f"{self._address}/{path}", data=data, timeout=30) as answer:
                return json.load(answer)
        except OSError:
            return {}

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(STOP_TIMEOUT)
        self._log.close()


@pytest.fixture
def flower(site: Site, tmp_path: Path) -> Iterator[Flower]:
    flower = Flower(site, tmp_path)
    yield flower
    flower.stop()


def test_flower_shows_workers_and_calls_and_revokes_one(site: Site, flower: Flower) -> None:
    worker = site.hire("-E")
    with site.runtime() as runtime:
        wait_until(lambda: worker.name in flower.asked("workers?refresh=1"), STARTING, "it lists the worker")
        done = runtime.submit("NOTED.WORK", {"label": "shown"})
        done.result(20).unwrap()
        wait_until(
            lambda: flower.asked(f"task/info/{done.id}").get("state") == "SUCCESS", what="it shows the call"
        )
        told = flower.asked(f"task/info/{done.id}")
        assert (told["name"], told["worker"]) == ("NOTED.WORK", worker.name)

        def listed() -> set[str]:
            """Name the queues that the worker was heard to read; it may answer too late for one look."""
            told = flower.asked("workers?refresh=1").get(worker.name, {})
            return {queue["name"] for queue in told.get("active_queues", ())}

        wait_until(lambda: "ditto.noted.work" in listed(), STARTING, "it lists the queues")

        running = runtime.submit("NOTED.LOOP", {"label": "revoked"})
        site.wait_started("revoked")
        assert flower.asked(f"task/revoke/{running.id}?terminate=true", data=b"")
        assert running.result(60).status == "cancelled"
