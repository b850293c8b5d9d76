"""The examples, run as a user runs them."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, StartWorker

EXAMPLES = ROOT / "examples"


def run(script: str, *arguments: str, **environ: str) -> list[str]:
    """Run an example to its end; returns what it printed, line by line."""
    ended = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    return ended.stdout.splitlines()


def test_an_application_serves_its_own_store_and_another_process_calls_it(
    broker_url: str, worker_process: StartWorker, tmp_path: Path
) -> None:
    worker = worker_process(
        broker_url, module="own_store", cwd=EXAMPLES, OWN_STORE_URL=f"sqlite:///{tmp_path / 'own.db'}"
    )
    assert "concurrency: 16 (thread)" in worker.log
    submitted, stored, found = run("enqueue.py", DITTO_BROKER_URL=broker_url)
    assert submitted.startswith("submitted as ")
    assert stored.startswith("stored as ")
    assert found == "found: The kettle is in the kitchen."
    assert run("enqueue.py", DITTO_BROKER_URL=broker_url)[1:] == [
        stored,
        found,
    ]  # the same key: the same record
    assert worker.stop() == 0


def test_the_six_nodes_in_one_process(tmp_path: Path) -> None:
    lines = run("memory.py", str(tmp_path / "notes.db"))
    assert lines == [
        "written: tea coffee",
        "read: Tea is brewed at 95 degrees.",
        "listed: 2",
        "best hit: coffee",
        "updated: Green tea is brewed at 80 degrees.",
        "deleted: 2",
        "failed as it should: NOT_FOUND",
    ]
