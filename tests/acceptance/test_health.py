"""`ditto-tasks health`: a call through the queue to each capability, and what is said when none answers."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.acceptance.conftest import Shell
from tests.conftest import LATE, StartWorker, connected, wait_until


@pytest.fixture
def caller(shell: Shell, broker_url: str) -> Shell:
    """A shell whose commands use a broker of their own."""
    shell.environ["DITTO_BROKER_URL"] = broker_url
    return shell


def settings(folder: Path, text: str) -> str:
    path = folder / "settings.yaml"
    path.write_text(text)
    return str(path)


def test_a_worker_that_lives_answers(running: Shell) -> None:
    checked = running.json("health", "--json")
    assert checked["healthy"]
    assert [row["capability"] for row in checked["capabilities"]] == ["MEMORY", "REINDEX", "RETRIEVAL"]
    for row in checked["capabilities"]:
        assert row["workers"] == 1
        assert row["worker"].startswith(f"{row['capability'].lower()}-")
        assert 0 < row["seconds"] < 5 + LATE
    assert running.json("health", "memory", "--json")["healthy"]
    assert "MEMORY" in running.run("health").stdout


def test_the_canary_is_no_node_of_the_catalogue(running: Shell) -> None:
    assert "HEALTH" not in running.run("status").stdout


@pytest.mark.parametrize("pool", ["prefork", "solo"])
@pytest.mark.parametrize("broker", ["streams", "kombu"])
def test_every_pool_and_broker_answers(
    caller: Shell, broker_url: str, worker_process: StartWorker, tmp_path: Path, pool: str, broker: str
) -> None:
    text = f"transport:\n  broker: {broker}\nworkers:\n  memory:\n    pool: {pool}\n    concurrency: 2\n"
    path = settings(tmp_path, text)
    worker = worker_process(broker_url, DITTO_CONFIG=path)
    rows = caller.json("health", "--json", "--timeout", "20", "--config", path)["capabilities"]
    assert [row["capability"] for row in rows] == ["MEMORY", "TEST"]
    assert {row["worker"] for row in rows} == {worker.name}


def test_a_worker_that_hangs_is_told_from_one_that_lives(
    caller: Shell, broker_url: str, worker_process: StartWorker
) -> None:
    worker = worker_process(broker_url)
    assert caller.run("health").returncode == 0
    os.kill(worker.pid, signal.SIGSTOP)
    unhealthy = caller.run("health", "memory", "--timeout", "1", "--json")
    assert unhealthy.returncode == 3
    assert unhealthy.stderr.startswith("ditto-tasks: no answer from MEMORY within 1 s")
    assert json.loads(unhealthy.stdout) == {
        "healthy": False,
        "capabilities": [
            {"capability": "MEMORY", "workers": 1, "healthy": False, "worker": None, "seconds": None}
        ],
    }
    os.kill(worker.pid, signal.SIGCONT)
    wait_until(lambda: caller.run("health").returncode == 0, what="it answers again")


def test_workers_that_are_all_busy_do_not_answer(
    caller: Shell, broker_url: str, worker_process: StartWorker
) -> None:
    worker = worker_process(broker_url, "--concurrency", "1")
    with connected(broker_url) as runtime:
        call = runtime.submit("TEST.LOOP", "busy")
        wait_until(lambda: "ran busy" in worker.trace)
        assert caller.run("health", "--timeout", "1").returncode == 3
        call.cancel()
    assert caller.run("health").returncode == 0


def test_without_workers_there_is_no_health(caller: Shell) -> None:
    for arguments, said in (((), "no worker lives"), (("memory",), "no answer from memory")):
        unhealthy = caller.run("health", *arguments)
        assert unhealthy.returncode == 3
        assert said in unhealthy.stderr


def test_a_broker_that_is_down_is_told(shell: Shell) -> None:
    shell.environ["DITTO_BROKER_URL"] = "redis://127.0.0.1:1/0"
    refused = shell.run("health")
    assert refused.returncode == 3
    assert refused.stderr.startswith("ditto-tasks: looking for workers failed")


def test_the_command_has_examples(shell: Shell) -> None:
    assert "Examples" in shell.run("health", "--help").stdout
