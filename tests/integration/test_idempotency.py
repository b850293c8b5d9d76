"""Same key, same execution: however often it is sent, from wherever, and whoever carries it."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ditto_tasks import Invocation, QueueFull, Runtime, Worker, WorkerContext
from tests.conftest import ROOT, wait_until
from tests.integration.conftest import Site

AT_ONCE = 8

_CALLER = """
import sys
from ditto_tasks import Runtime
with Runtime.from_config(sys.argv[1]) as runtime:
    runtime.workers()
    print("ready", flush=True)
    sys.stdin.readline()
    result = runtime.invoke("NOTED.WORK", {"label": "processes"}, idempotency_key="p")
    print(result.model_dump_json(), flush=True)
"""


@pytest.fixture(scope="module", params=["streams", "kombu"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def configured(site: Site, way: str) -> Site:
    """A site whose calls wait in streams, or in kombu's lists."""
    site.transport["broker"] = way
    return site


@pytest.fixture
def runtime(configured: Site) -> Iterator[Runtime]:
    with configured.runtime() as runtime:
        yield runtime


def submit_at_once(runtimes: list[Runtime], label: str) -> list[Invocation]:
    """Send the same call from many threads in the same moment."""
    together = threading.Barrier(len(runtimes))

    def submit(runtime: Runtime) -> Invocation:
        together.wait(60)
        return runtime.submit("NOTED.WORK", {"label": label, "seconds": 0.1}, idempotency_key=label)

    with ThreadPoolExecutor(len(runtimes)) as threads:
        return list(threads.map(submit, runtimes))


def test_a_key_is_one_execution_while_it_waits_runs_and_is_done(configured: Site, runtime: Runtime) -> None:
    with configured.runtime() as other:
        waiting = submit_at_once([runtime, other] * (AT_ONCE // 2), "k")
        another_node = runtime.submit("NOTED.READ", {"label": "read"}, idempotency_key="k")
        another_key = runtime.submit("NOTED.WORK", {"label": "k2"}, idempotency_key="k2")
        assert len({call.id for call in waiting}) == 1
        configured.hire()
        results = [call.result(60) for call in waiting]
        done = other.submit("NOTED.WORK", {"label": "k"}, idempotency_key="k")
        invoked = runtime.invoke("NOTED.WORK", {"label": "k"}, idempotency_key="k")
        awaited = asyncio.run(other.ainvoke("NOTED.WORK", {"label": "k"}, idempotency_key="k"))
        assert [*results, done.result(30), invoked, awaited] == [results[0]] * (AT_ONCE + 3)
        running = submit_at_once([runtime, other] * (AT_ONCE // 2), "while a worker is up")
        assert len({call.result(30).execution_id for call in running}) == 1
        assert len({results[0].execution_id, another_node.id, another_key.id}) == 3
        assert {another_node.result(30).status, another_key.result(30).status} == {"success"}
    assert sorted(configured.notes.started()) == ["k", "k2", "read", "while a worker is up"]


def test_two_processes_that_send_it_at_once_have_one_result(configured: Site) -> None:
    configured.hire()
    callers = [
        subprocess.Popen(
            [sys.executable, "-c", _CALLER, configured.settings()],
            env={"PYTHONPATH": str(ROOT), "DITTO_BROKER_URL": configured.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for caller in callers:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "ready\n"
    for caller in callers:
        assert caller.stdin is not None
        caller.stdin.write("\n")
        caller.stdin.flush()
    first, second = (json.loads(caller.communicate(timeout=60)[0]) for caller in callers)
    assert first == second
    assert first["status"] == "success"
    assert configured.notes.started() == ["processes"]


def test_a_key_is_forgotten_after_a_while(site: Site, way: str) -> None:
    site.transport |= {"broker": way, "idempotencyExpires": 4}
    with site.runtime() as runtime:
        first = runtime.submit("NOTED.WORK", {"label": "a"}, idempotency_key="k")
        assert runtime.submit("NOTED.WORK", {"label": "a"}, idempotency_key="k").id == first.id
        wait_until(lambda: not list(site.client.scan_iter("ditto:key:*")), what="the key expires")
        assert runtime.submit("NOTED.WORK", {"label": "b"}, idempotency_key="k").id != first.id


def test_the_key_itself_is_not_kept(runtime: Runtime, configured: Site) -> None:
    runtime.submit("NOTED.WORK", {"label": "a"}, idempotency_key="confidential-words")
    assert not any(b"confidential" in name for name in configured.client.scan_iter())
    [known] = configured.client.scan_iter("ditto:key:*")
    assert 86_000 < configured.client.ttl(known) <= 86_400


def test_a_call_that_was_refused_since_its_queue_was_full_does_not_use_its_key_up(
    site: Site, way: str
) -> None:
    site.transport |= {"broker": way, "maxPending": 1}
    with site.runtime() as runtime:
        known = runtime.submit("NOTED.WORK", {"label": "known"}, idempotency_key="known")
        with pytest.raises(QueueFull):
            runtime.submit("NOTED.WORK", {"label": "refused"}, idempotency_key="refused")
        assert runtime.submit("NOTED.WORK", {"label": "known"}, idempotency_key="known").id == known.id
        site.hire()
        assert known.result(60).status == "success"
        again = runtime.submit("NOTED.WORK", {"label": "refused"}, idempotency_key="refused")
        assert again.result(30).status == "success"
    assert site.notes.started() == ["known", "refused"]


def test_a_call_with_a_key_is_queued_although_a_worker_of_the_process_serves_it(site: Site) -> None:
    def local(input: object, context: WorkerContext) -> str:
        return "local"

    site.hire()
    with site.runtime() as runtime:
        runtime.register(Worker("NOTED", {"NOTED.WORK": local}))
        assert runtime.invoke("NOTED.WORK", {"label": "queued"}).unwrap() == "local"
        queued = {"label": "queued"}
        assert runtime.invoke("NOTED.WORK", queued, idempotency_key="k").unwrap() == queued
    assert site.notes.started() == ["queued"]


def test_a_cancelled_execution_is_cancelled_for_all_who_sent_it(site: Site) -> None:
    with site.runtime() as runtime, site.runtime() as other:
        first = runtime.submit("NOTED.WORK", {"label": "k"}, idempotency_key="k")
        second = other.submit("NOTED.WORK", {"label": "k"}, idempotency_key="k")
        second.cancel("not wanted")
        site.hire()
        assert [first.result(60).status, second.result(30).status] == ["cancelled"] * 2
    assert site.notes.started() == []
