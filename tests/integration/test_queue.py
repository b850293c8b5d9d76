"""Calls over a real broker to a real worker process."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery
from celery.result import AsyncResult

from ditto_tasks import (
    InvalidDefinition,
    InvalidPayload,
    NodeResult,
    NoWorkerAvailable,
    Runtime,
    RuntimeClosed,
    Worker,
    WorkerContext,
)
from ditto_tasks.contracts.memory import MemoryDraft, MemoryWriteInput
from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.keys import stream_name
from tests.conftest import ROOT, WorkerProcess, connected, wait_until

KEYS = itertools.count()


def draft(content: object = "a note") -> dict[str, object]:
    """Make a draft under a key that no other test uses."""
    return {"key": f"k{next(KEYS)}", "content": content}


@pytest.fixture(scope="module")
def foreign(worker: WorkerProcess, queue_url: str) -> Iterator[Celery]:
    """A Celery app that knows nothing of ditto-tasks: plain JSON, Celery's own result backend."""
    app = Celery("foreign", broker=queue_url, backend=queue_url, set_as_current=False)
    yield app
    app.backend.result_consumer.stop()
    app.backend.client.close()
    app.close()


def test_a_written_record_is_read_back(runtime: Runtime) -> None:
    written = runtime.invoke("MEMORY.WRITE", {"memories": [draft({"text": "hällo 你好 \u0000"})]})
    [item] = written.unwrap()
    read = runtime.invoke("MEMORY.GET", {"ids": [item["id"]]})
    assert read.unwrap() == [item]
    assert (written.node, read.node) == ("MEMORY.WRITE", "MEMORY.GET")
    assert written.execution_id != read.execution_id


def test_typed_inputs_are_sent_in_wire_form(runtime: Runtime) -> None:
    note = MemoryDraft(key=f"k{next(KEYS)}", content={"n": 1.0})
    [item] = runtime.invoke("MEMORY.WRITE", MemoryWriteInput(memories=(note,))).unwrap()
    assert item["content"] == {"n": 1}


def test_the_execution_id_is_the_one_that_the_node_sees(runtime: Runtime) -> None:
    invocation = runtime.submit("TEST.WHERE", {})
    result = invocation.result()
    assert result.execution_id == invocation.id == result.unwrap()["executionId"]


def test_an_input_that_breaks_the_contract_fails_without_being_sent(broker_url: str) -> None:
    with connected(broker_url) as runtime, redis.Redis.from_url(broker_url) as client:
        result = runtime.submit("MEMORY.GET", {}).result()
        assert client.dbsize() == 0
    assert (result.status, result.error and result.error.code) == ("failed", "INVALID_INPUT")


def test_an_input_without_a_json_form_is_refused_before_it_is_sent(runtime: Runtime) -> None:
    with pytest.raises(InvalidPayload, match=r"a\[1\] is nan"):
        runtime.invoke("TEST.ECHO", {"a": [1, float("nan")]})


def test_a_name_that_is_none_is_refused(runtime: Runtime) -> None:
    with pytest.raises(InvalidDefinition):
        runtime.submit("memory", {})


def test_what_a_node_hides_stays_in_the_worker(runtime: Runtime, worker: WorkerProcess) -> None:
    result = runtime.invoke("TEST.FAIL", {})
    assert result.error is not None
    assert result.error.code == "EXECUTION_FAILED"
    assert "secret" not in result.model_dump_json()
    wait_until(lambda: result.execution_id in worker.log, what="the failure is logged")
    assert "password=secret" not in worker.log


def test_an_output_that_is_not_json_fails_the_call(runtime: Runtime) -> None:
    result = runtime.invoke("TEST.NOT_JSON", {})
    assert (result.status, result.error and result.error.code) == ("failed", "INVALID_OUTPUT")


def test_a_node_calls_a_node_of_its_own_process(runtime: Runtime) -> None:
    [item] = runtime.invoke("MEMORY.WRITE", {"memories": [draft()]}).unwrap()
    nested = runtime.invoke("TEST.NESTED", {"node": "MEMORY.GET", "input": {"ids": [item["id"]]}})
    assert nested.unwrap() == [item]


def test_a_private_node_is_not_routable(runtime: Runtime) -> None:
    with pytest.raises(NoWorkerAvailable):
        runtime.invoke("TEST.PRIVATE", {})


def test_many_asynchronous_calls_run_at_once(runtime: Runtime) -> None:
    async def all_of_them() -> list[NodeResult]:
        return await asyncio.gather(*(runtime.ainvoke("TEST.ECHO", {"n": n}) for n in range(100)))

    results = asyncio.run(all_of_them())
    assert [result.unwrap()["n"] for result in results] == list(range(100))
    assert len({result.execution_id for result in results}) == 100


def test_asynchronous_calls_wait_without_a_thread_each(runtime: Runtime, queue_url: str) -> None:
    """Sending takes the few threads of asyncio's own pool; waiting takes none."""
    calls = 150

    def waiting(client: RedisClient) -> bool:
        return bool(client.xlen("ditto.test.loop:normal") == calls)

    async def threads_meanwhile() -> int:
        before = threading.active_count()
        tasks = [asyncio.create_task(runtime.ainvoke("TEST.LOOP", f"many {n}")) for n in range(calls)]
        with connect(queue_url) as client:
            await asyncio.to_thread(wait_until, lambda: waiting(client), what="all wait for their results")
        threads = threading.active_count() - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return threads

    assert asyncio.run(threads_meanwhile()) < calls / 3


def test_cancelling_the_asyncio_task_cancels_the_call(runtime: Runtime, worker: WorkerProcess) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(runtime.ainvoke("TEST.LOOP", "abandoned"))
        await asyncio.to_thread(wait_until, lambda: "ran abandoned" in worker.trace)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    wait_until(lambda: "ended abandoned" in worker.trace)


def test_cancelling_it_while_the_call_is_being_sent_cancels_the_call(
    runtime: Runtime, worker: WorkerProcess
) -> None:
    async def give_up_at_once() -> None:
        task = asyncio.create_task(runtime.ainvoke("TEST.LOOP", "unsent"))
        await asyncio.sleep(0)  # the task has begun, its thread has not sent yet
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up_at_once())
    assert runtime.submit("TEST.LOOP", "behind it", timeout=0.3).result(30).status == "timeout"
    wait_until(lambda: worker.trace.count("ran unsent") == worker.trace.count("ended unsent"))


def test_an_invocation_can_be_awaited(runtime: Runtime) -> None:
    async def both() -> list[NodeResult]:
        invocation = runtime.submit("TEST.ECHO", "hello")
        return [await invocation, await invocation]

    first, second = asyncio.run(both())
    assert first == second
    assert first.unwrap() == "hello"


def test_a_map_keeps_the_order_of_its_inputs_bad_ones_between(runtime: Runtime) -> None:
    inputs = [{"memories": [draft(n)]} if n % 3 else {"memories": n} for n in range(30)]
    results = list(runtime.map("MEMORY.WRITE", inputs))
    assert [result.status for result in results] == ["success" if n % 3 else "failed" for n in range(30)]
    contents = [result.unwrap()[0]["content"] for result in results if result.status == "success"]
    assert contents == [n for n in range(30) if n % 3]


def test_a_map_of_nothing_is_empty(runtime: Runtime) -> None:
    assert list(runtime.map("MEMORY.GET", [])) == []


def test_the_status_of_a_call_follows_it(runtime: Runtime, tmp_path: Path) -> None:
    invocation = runtime.submit("TEST.HELD", {"until": str(tmp_path / "gate")})
    wait_until(lambda: invocation.status() == "running", what="the call runs")
    (tmp_path / "gate").touch()
    assert invocation.result().unwrap() == "done"
    assert invocation.status() == "success"


def test_a_call_that_was_never_sent_has_its_status_too(runtime: Runtime) -> None:
    invocation = runtime.submit("MEMORY.GET", {"ids": "no list"})
    assert invocation.status() == "failed"
    assert invocation.result().status == "failed"


def test_a_result_can_be_read_twice(runtime: Runtime) -> None:
    invocation = runtime.submit("TEST.ECHO", 1)
    assert invocation.result() == invocation.result()


def test_another_runtime_finds_a_call_by_its_id(runtime: Runtime, queue_url: str) -> None:
    done, running = runtime.submit("TEST.ECHO", 1), runtime.submit("TEST.STUBBORN", {"seconds": 0.5})
    done.result()
    with connected(queue_url) as other:
        assert other.invocation(done.id).result() == done.result()
        assert other.invocation(running.id).result() == running.result()


def test_closing_the_runtime_ends_those_who_wait(runtime: Runtime, queue_url: str, tmp_path: Path) -> None:
    other = connected(queue_url)
    invocation = other.submit("TEST.HELD", {"until": str(tmp_path / "gate")})
    other.close()
    with pytest.raises(RuntimeClosed):
        invocation.result()
    with pytest.raises(RuntimeClosed):
        other.invoke("TEST.ECHO", 1)
    (tmp_path / "gate").touch()
    assert runtime.invocation(invocation.id).result().unwrap() == "done"


def test_a_full_worker_of_the_process_lets_calls_spill_to_the_queue(runtime: Runtime, queue_url: str) -> None:
    def spill(input: object, context: WorkerContext) -> object:
        assert context.call.runtime is not None
        return context.call.runtime.invoke("TEST.ECHO", [input]).unwrap()

    with connected(queue_url) as mixed:
        mixed.register(Worker("TEST", {"TEST.ECHO": spill}, concurrency=1))
        assert mixed.invoke("TEST.ECHO", "outer").unwrap() == ["outer"]


def test_a_foreign_client_sends_by_name_and_reads_the_result(foreign: Celery, runtime: Runtime) -> None:
    sent = foreign.send_task("MEMORY.WRITE", [{"memories": [draft("from afar")]}], queue="ditto.memory.write")
    result = sent.get(timeout=30)
    assert result["executionId"] == sent.id
    assert result["status"] == "success"
    assert runtime.invocation(sent.id).result() == NodeResult.from_wire(result)


def test_a_foreign_client_reads_the_result_of_our_call(foreign: Celery, runtime: Runtime) -> None:
    invocation = runtime.submit("TEST.ECHO", {"ü": [1, None]})
    result = AsyncResult(invocation.id, app=foreign).get(timeout=30)
    assert result == invocation.result().to_wire()


def test_a_foreign_clients_bad_input_is_a_failed_result(foreign: Celery) -> None:
    result = foreign.send_task("MEMORY.GET", [{"ids": []}, 2], queue="ditto.memory.get")
    bad = foreign.send_task("MEMORY.GET", [None], queue="ditto.memory.get").get(timeout=30)
    assert (bad["status"], bad["error"]["code"]) == ("failed", "INVALID_INPUT")
    with pytest.raises(TypeError):
        result.get(timeout=30)


def test_nothing_that_a_call_carries_is_logged(runtime: Runtime, worker: WorkerProcess) -> None:
    result = runtime.invoke("TEST.ECHO", {"text": "confidential-words"})
    wait_until(lambda: f"{result.execution_id} TEST.ECHO success" in worker.log, what="the call is logged")
    assert "confidential-words" not in worker.log


def test_the_stored_result_is_one_string_of_json_that_expires(runtime: Runtime, queue_url: str) -> None:
    result = runtime.invoke("TEST.ECHO", [1])
    with redis.Redis.from_url(queue_url) as client:
        key = f"celery-task-meta-{result.execution_id}"
        stored = json.loads(client.get(key) or b"")
        assert 0 < client.ttl(key) <= 86_400
    assert stored["result"] == result.to_wire()
    assert stored["status"] == "SUCCESS"


def test_a_call_names_the_celery_task_that_sent_it_as_its_parent(runtime: Runtime, queue_url: str) -> None:
    client = connect(queue_url)
    app = Celery("parents", set_as_current=False)

    @app.task  # type: ignore[untyped-decorator]
    def send() -> str:
        return runtime.submit("NOBODY.SERVES", None).id

    sent = send.apply(task_id="the task").get()
    alone = runtime.submit("NOBODY.SERVES", None).id

    entries = client.xrange(stream_name("ditto.nobody.serves", "normal"))
    headers = [json.loads(fields[b"m"])["headers"] for _, fields in entries]
    assert [(one["id"], one["parent_id"], one["root_id"]) for one in headers] == [
        (sent, "the task", "the task"),
        (alone, None, alone),
    ]
    client.close()


def test_calls_are_sent_with_the_other_kind_of_celerys_stacks(queue_url: str) -> None:
    sending = "connected(sys.argv[1]).submit('NOBODY.SERVES', 1)"
    code = f"import sys; from tests.conftest import connected; {sending}"
    environ = os.environ | {"USE_FAST_LOCALS": "1"}
    subprocess.run([sys.executable, "-c", code, queue_url], cwd=ROOT, env=environ, check=True, timeout=60)
