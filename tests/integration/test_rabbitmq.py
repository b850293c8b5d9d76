"""RabbitMQ carries the calls, Redis keeps the results: the same promises hold."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import amqp
import psutil
import pytest

from ditto_tasks import Invocation, NodeResult, NoWorkerAvailable, QueueFull, Runtime
from ditto_tasks.transport.app import create_app
from ditto_tasks.transport.client import CeleryTransport
from tests.conftest import LATE, StartWorker, WorkerProcess, wait_until
from tests.debian import install_missing
from tests.integration.conftest import LEASE, Site

ADDRESS = "127.0.0.1:5672"
NODES = ("work", "read", "other", "loop", "exit")


@pytest.fixture(scope="module")
def rabbitmq_url() -> Iterator[str]:
    """The server that answers here, else one that is started, once it is installed."""
    started = None
    if not _answers():
        install_missing("rabbitmq-server", "rabbitmq-server")
        if not _answers():  # Debian's package starts its service where there is something to start it
            started = subprocess.Popen(["rabbitmq-server"], stdout=subprocess.DEVNULL)
        wait_until(_answers, 60, "RabbitMQ answers")
    yield f"amqp://guest:guest@{ADDRESS}//"
    if started is not None:
        started.terminate()
        started.wait(30)


def _answers() -> bool:
    try:
        with amqp.Connection(ADDRESS, userid="guest", password="guest", connect_timeout=2):
            return True
    except (OSError, amqp.AMQPError):
        return False


def _new_site(start: StartWorker, url: str, folder: Path, results: str) -> Site:
    """Make a site whose queues have names that nobody else on the server uses."""
    site = Site(start, url, folder, results=results)
    site.transport["prefix"] = f"ditto-{uuid.uuid4().hex[:12]}"
    return site


def _remove(site: Site) -> None:
    with amqp.Connection(ADDRESS, userid="guest", password="guest") as connection:
        for node in NODES:
            connection.channel().queue_delete(f"{site.keys.prefix}.noted.{node}")
    site.close()


@pytest.fixture(scope="module")
def shared_site(
    module_worker_process: StartWorker,
    rabbitmq_url: str,
    queue_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Site]:
    site = _new_site(module_worker_process, rabbitmq_url, tmp_path_factory.mktemp("site"), queue_url)
    yield site
    _remove(site)


@pytest.fixture
def site(worker_process: StartWorker, rabbitmq_url: str, broker_url: str, tmp_path: Path) -> Iterator[Site]:
    site = _new_site(worker_process, rabbitmq_url, tmp_path, broker_url)
    yield site
    _remove(site)


@pytest.fixture(scope="module")
def workers(shared_site: Site) -> list[WorkerProcess]:
    return shared_site.hire_many(2)


@pytest.fixture
def runtime(shared_site: Site, workers: list[WorkerProcess]) -> Iterator[Runtime]:
    with shared_site.runtime() as runtime:
        yield runtime


def code(result: NodeResult) -> str:
    return "" if result.error is None else result.error.code


def holder(site: Site, workers: list[WorkerProcess], label: str) -> WorkerProcess:
    site.wait_started(label)
    pid = site.notes.of("started", label)[-1].pid
    return next(worker for worker in workers if worker.pid == pid)


def test_calls_go_there_and_results_come_back(runtime: Runtime) -> None:
    sent = {"label": "there", "text": "hällo 你好"}
    assert runtime.invoke("NOTED.WORK", sent).unwrap() == sent
    assert runtime.submit("NOTED.READ", sent).result(30).unwrap() == sent
    labels = [{"label": f"map {n}"} for n in range(30)]
    assert [result.unwrap() for result in runtime.map("NOTED.WORK", labels)] == labels


def test_a_node_that_nobody_serves_fails_at_once(runtime: Runtime) -> None:
    began = time.monotonic()
    with pytest.raises(NoWorkerAvailable):
        runtime.invoke("NOBODY.SERVES", {})
    assert time.monotonic() - began < 1 + LATE


def test_every_priority_is_accepted(runtime: Runtime) -> None:
    calls = [
        runtime.submit("NOTED.WORK", {"label": priority}, priority=priority)
        for priority in ("low", "normal", "high")
    ]
    assert {call.result(30).status for call in calls} == {"success"}


def test_a_running_call_ends_soon_after_its_cancel(shared_site: Site, runtime: Runtime) -> None:
    call = runtime.submit("NOTED.LOOP", {"label": "loop"})
    shared_site.wait_started("loop")
    cancelled_at = time.monotonic()
    call.cancel("enough")
    result = call.result(30)
    assert time.monotonic() - cancelled_at < 1 + LATE
    assert (result.status, result.error and result.error.message) == ("cancelled", "enough")


def test_a_call_that_was_cancelled_before_a_worker_came_never_runs(site: Site) -> None:
    with site.runtime() as runtime:
        cancelled = runtime.submit("NOTED.WORK", {"label": "cancelled"})
        cancelled.cancel("not wanted")
        wanted = runtime.submit("NOTED.WORK", {"label": "wanted"})
        late = runtime.submit("NOTED.WORK", {"label": "late"}, timeout=0.05)
        site.hire()
        assert [call.result(60).status for call in (cancelled, wanted, late)] == [
            "cancelled",
            "success",
            "timeout",
        ]
    assert site.notes.started() == ["wanted"]


def test_the_same_key_from_many_threads_at_once_is_one_execution(shared_site: Site, runtime: Runtime) -> None:
    def submit(n: int) -> Invocation:
        return runtime.submit("NOTED.WORK", {"label": "one key"}, idempotency_key="k")

    with ThreadPoolExecutor(8) as threads:
        calls = list(threads.map(submit, range(8)))
    assert len({call.result(30).execution_id for call in calls}) == 1
    other = runtime.submit("NOTED.READ", {"label": "another node"}, idempotency_key="k")
    assert other.result(30).execution_id != calls[0].id
    assert shared_site.notes.started("one key") == ["one key"]


def test_a_full_queue_refuses(site: Site) -> None:
    site.transport["maxPending"] = 3
    with site.runtime() as runtime:
        calls = [runtime.submit("NOTED.WORK", {"label": "a"}) for _ in range(2)]
        with pytest.raises(QueueFull):
            runtime.map("NOTED.WORK", [{"label": "b"}] * 2)
        calls.append(runtime.submit("NOTED.WORK", {"label": "a"}))
        with pytest.raises(QueueFull):
            runtime.submit("NOTED.WORK", {"label": "b"})
        transport = runtime._transport
        assert isinstance(transport, CeleryTransport)
        queues = transport.queues(["NOTED.NEVER", "NOTED.NONE", "NOTED.WORK"])
        assert [queue.waiting for queue in queues] == [0, 0, 3]
        site.hire()
        assert {call.result(60).status for call in calls} == {"success"}
    assert site.notes.started() == ["a"] * 3


def test_what_a_killed_worker_ran_runs_elsewhere_if_that_is_safe(site: Site) -> None:
    workers = site.hire_many(2)
    with site.runtime() as runtime:
        safe = runtime.submit("NOTED.READ", {"label": "safe", "seconds": [60, 0]})
        victim = holder(site, workers, "safe")
        unsafe: list[Invocation] = []
        while not any(note.pid == victim.pid for note in site.notes.of("started", "unsafe")):
            unsafe.append(runtime.submit("NOTED.WORK", {"label": f"unsafe {len(unsafe)}", "seconds": 120}))
            site.wait_started(f"unsafe {len(unsafe) - 1}")
        victim.kill()
        killed_at = time.monotonic()
        assert code(unsafe[-1].result(30)) == "OUTCOME_UNKNOWN"
        assert safe.result(30).status == "success"
        assert time.monotonic() - killed_at < LEASE + 2 + LATE
    assert site.notes.started("safe") == ["safe"] * 2
    assert len(site.notes.started("unsafe")) == len(unsafe)


def test_a_child_that_was_killed_gives_its_call_to_another(site: Site) -> None:
    worker = site.hire(pool="prefork", concurrency=2)
    with site.runtime() as runtime:
        safe = runtime.submit("NOTED.READ", {"label": "safe", "seconds": [60, 0]})
        unsafe = runtime.submit("NOTED.WORK", {"label": "unsafe", "seconds": 120})
        site.wait_started("safe", "unsafe")
        for note in site.notes.of("started"):
            os.kill(note.pid, signal.SIGKILL)
        assert safe.result(30).status == "success"
        assert code(unsafe.result(30)) == "OUTCOME_UNKNOWN"
    assert psutil.pid_exists(worker.pid)
    assert sorted(site.notes.started()) == ["safe", "safe", "unsafe"]


@pytest.mark.parametrize(("pool", "count"), [("threads", 1), ("threads", 2), ("prefork", 1)])
def test_a_call_that_is_delivered_again_while_it_runs_is_not_run_twice(
    site: Site, pool: str, count: int
) -> None:
    """As RabbitMQ does with a message that was not acknowledged for half an hour; it outlasts a lease."""
    site.transport["lease"] = lease = 3
    site.hire_many(count, pool=pool, concurrency=4 // count)
    nodes = ("NOTED.WORK", "NOTED.READ")
    with site.runtime() as runtime:
        calls = [runtime.invocation(str(uuid.uuid4())) for _ in nodes]
        app = create_app(runtime.config)
        with app.connection_for_write() as connection:
            for node, call in zip(nodes * 2, calls * 2, strict=True):
                sent = {"label": node, "seconds": 1.5 * lease}
                app.send_task(node, [sent], task_id=call.id, connection=connection)
        app.close()
        assert {call.result(60).status for call in calls} == {"success"}
        assert runtime.invoke("NOTED.OTHER", {"label": "next"}).status == "success"
    assert [worker.stop() for worker in site.workers] == [0] * count
    assert [waiting(site, node) for node in nodes] == [0, 0]
    assert sorted(site.notes.started("NOTED")) == sorted(nodes)


def waiting(site: Site, node: str) -> int:
    """Count a queue's messages; without workers, those that were not acknowledged are back in it."""
    with amqp.Connection(ADDRESS, userid="guest", password="guest") as connection:
        queue = f"{site.keys.prefix}.{node.lower()}"
        return int(connection.channel().queue_declare(queue, passive=True).message_count)
