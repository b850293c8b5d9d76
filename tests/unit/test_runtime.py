"""Calls within the process: who takes them, how they end, and how the runtime closes."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ditto_tasks import (
    Cancellation,
    InvalidDefinition,
    InvalidPayload,
    InvocationCancelled,
    NodeResult,
    NoWorkerAvailable,
    Runtime,
    RuntimeClosed,
    Worker,
    WorkerContext,
)
from providers.stores.in_memory import InMemoryStore
from workers.memory import memory_worker

PATIENCE = 10.0  # seconds; only a broken test waits so long

Handler = Callable[[Any, WorkerContext], Any]


def named(name: str, node: str = "TEST.WHO", **options: Any) -> Worker:
    """Make a worker that answers with its name."""
    return Worker("TEST", {node: lambda input, context: name}, **options)


def answering(handler: Handler, **options: Any) -> Worker:
    return Worker("TEST", {"TEST.IT": handler}, **options)


class Held:
    """A handler that runs until it is let go, or its token is set."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.released = threading.Event()

    def __call__(self, input: Any, context: WorkerContext) -> str:
        self.started.release()
        self.released.wait(PATIENCE)
        return "held"


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime() as runtime:
        yield runtime


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.released.set()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def who(runtime: Runtime, times: int = 1, **options: Any) -> str:
    return "".join(runtime.invoke("TEST.WHO", {}, **options).unwrap() for _ in range(times))


class TestRouting:
    def test_workers_take_turns_in_the_order_of_registration(self, runtime: Runtime) -> None:
        for name in "abc":
            runtime.register(named(name), name)
        assert who(runtime, 7) == "abcabca"
        assert [worker.id for worker in runtime.workers()] == ["a", "b", "c"]

    def test_each_node_has_a_turn_of_its_own(self, runtime: Runtime) -> None:
        for name in "ab":
            answers = named(name).nodes["TEST.WHO"]
            runtime.register(Worker("TEST", {"TEST.WHO": answers, "TEST.OTHER": answers}))
        assert who(runtime) == "a"
        assert runtime.invoke("TEST.OTHER", {}).unwrap() == "a"
        assert who(runtime) == "b"

    def test_a_pinned_call_goes_to_its_worker_and_nowhere_else(self, runtime: Runtime) -> None:
        first = runtime.register(named("a"), "a")
        runtime.register(named("b"), "b")
        assert who(runtime, 3, worker_id="b") == "bbb"
        assert who(runtime, 3, worker_id="a") == "aaa"
        first.set_available(False)
        with pytest.raises(NoWorkerAvailable, match="'a' cannot take"):
            who(runtime, worker_id="a")
        with pytest.raises(NoWorkerAvailable):
            who(runtime, worker_id="nobody")
        assert who(runtime, 2) == "bb"
        first.set_available(True)
        assert set(who(runtime, 2)) == {"a", "b"}

    def test_a_node_that_nobody_serves(self, runtime: Runtime) -> None:
        runtime.register(named("a"))
        with pytest.raises(NoWorkerAvailable, match=r"TEST\.NOBODY"):
            runtime.invoke("TEST.NOBODY", {})

    @pytest.mark.parametrize("node", ["", "TEST", "TEST.", None])
    def test_a_name_that_is_none(self, runtime: Runtime, node: Any) -> None:
        with pytest.raises(InvalidDefinition):
            runtime.invoke(node, {})

    def test_a_private_node_is_not_routable(self, runtime: Runtime) -> None:
        runtime.register(
            Worker(
                "TEST", {"TEST.WHO": lambda i, c: "a", "TEST.PRIVATE": lambda i, c: 1}, expose=["TEST.WHO"]
            )
        )
        assert who(runtime) == "a"
        with pytest.raises(NoWorkerAvailable):
            runtime.invoke("TEST.PRIVATE", {})
        assert runtime.workers()[0].nodes == ("TEST.WHO",)

    def test_an_id_is_taken_once_and_free_again_when_its_worker_is_gone(self, runtime: Runtime) -> None:
        old = runtime.register(named("old"), "x")
        for id in ("x", ""):
            with pytest.raises(InvalidDefinition, match="blank or taken"):
                runtime.register(named("new"), id)
        assert old.unregister() is True
        new = runtime.register(named("new"), "x")
        assert old.unregister() is False
        old.close()
        assert who(runtime) == "new"
        assert new.id == "x"

    def test_resources_are_opened_once_a_registration(self) -> None:
        opened: list[object] = []

        def open_one() -> int:
            opened.append(object())
            return len(opened)

        worker = answering(lambda input, context: context.resources, resources=open_one)
        with Runtime(workers=[worker, worker]) as runtime:
            assert [runtime.invoke("TEST.IT", {}).unwrap() for _ in range(4)] == [1, 2, 1, 2]
        assert len(opened) == 2


class TestCapacity:
    def test_a_full_worker_is_passed_over_and_a_full_process_refuses(
        self, runtime: Runtime, held: Held, threads: ThreadPoolExecutor
    ) -> None:
        for id in "ab":
            runtime.register(answering(held, concurrency=1), id)
        running = [threads.submit(runtime.invoke, "TEST.IT", {}) for _ in range(2)]
        for _ in running:
            assert held.started.acquire(timeout=PATIENCE)
        assert [worker.active for worker in runtime.workers()] == [1, 1]
        with pytest.raises(NoWorkerAvailable, match="no broker"):
            runtime.invoke("TEST.IT", {})
        held.released.set()
        assert [call.result().unwrap() for call in running] == ["held", "held"]
        assert [worker.active for worker in runtime.workers()] == [0, 0]
        assert runtime.invoke("TEST.IT", {}).unwrap() == "held"

    def test_a_slot_is_given_back_whatever_happens(self, runtime: Runtime) -> None:
        runtime.register(answering(lambda input, context: 1 / input, concurrency=1))
        assert [runtime.invoke("TEST.IT", n).status for n in (0, 0, 1)] == ["failed", "failed", "success"]

    def test_a_nested_call_to_its_own_full_worker_fails_instead_of_hanging(self, runtime: Runtime) -> None:
        def nest(input: Any, context: WorkerContext) -> str:
            assert context.call.runtime is not None
            with pytest.raises(NoWorkerAvailable):
                context.call.runtime.invoke("TEST.IT", {})
            return "told"

        runtime.register(answering(nest, concurrency=1))
        assert runtime.invoke("TEST.IT", {}).unwrap() == "told"

    @pytest.mark.parametrize("queued", [Runtime.submit, Runtime.map])
    def test_without_a_broker_nothing_is_queued(
        self, runtime: Runtime, queued: Callable[[Runtime, str, Any], Any]
    ) -> None:
        runtime.register(named("a"))
        with pytest.raises(NoWorkerAvailable, match="no broker"):
            queued(runtime, "TEST.WHO", [])
        with pytest.raises(NoWorkerAvailable, match="no broker"):
            runtime.invocation("some-id")


class TestInput:
    def test_a_handler_gets_a_copy_as_the_queue_would_give_it(self, runtime: Runtime) -> None:
        seen: list[Any] = []
        runtime.register(answering(lambda input, context: seen.append(input)))
        input = {"tags": ("a",), "n": [1]}
        runtime.invoke("TEST.IT", input)
        assert seen == [{"tags": ["a"], "n": [1]}]
        assert seen[0]["n"] is not input["n"]

    def test_an_input_that_is_not_json_is_refused(self, runtime: Runtime) -> None:
        runtime.register(answering(lambda input, context: input))
        with pytest.raises(InvalidPayload, match="a is nan"):
            runtime.invoke("TEST.IT", {"a": float("nan")})

    def test_a_memory_input_that_is_not_json_is_a_failed_result(self, runtime: Runtime) -> None:
        runtime.register(memory_worker(InMemoryStore()))
        result = runtime.invoke("MEMORY.WRITE", {"memories": [{"content": float("nan")}]})
        assert result.error is not None
        assert (result.status, result.error.code) == ("failed", "INVALID_INPUT")


class TestCancel:
    def test_no_token_is_none(self, runtime: Runtime) -> None:
        runtime.register(named("a"))
        assert who(runtime, cancel=None) == "a"
        assert asyncio.run(runtime.ainvoke("TEST.WHO", {}, cancel=None)).unwrap() == "a"

    def test_a_token_that_is_set_already_starts_nothing(self, runtime: Runtime) -> None:
        ran, token = [], Cancellation()
        token.cancel("too late")
        runtime.register(answering(lambda input, context: ran.append(1)))
        with pytest.raises(InvocationCancelled, match="too late"):
            runtime.invoke("TEST.IT", {}, cancel=token)
        assert ran == []

    def test_a_finished_result_does_not_count_once_the_token_is_set(self, runtime: Runtime) -> None:
        token = Cancellation()

        def finish_anyway(input: Any, context: WorkerContext) -> str:
            token.cancel("not wanted")
            return "finished"

        runtime.register(answering(finish_anyway))
        with pytest.raises(InvocationCancelled, match="not wanted"):
            runtime.invoke("TEST.IT", {}, cancel=token)

    def test_the_handler_sees_the_callers_token(self, runtime: Runtime) -> None:
        token = Cancellation()

        def stop(input: Any, context: WorkerContext) -> None:
            token.cancel("stop")
            context.call.check()
            raise AssertionError("it went on")

        runtime.register(answering(stop))
        with pytest.raises(InvocationCancelled, match="stop"):
            runtime.invoke("TEST.IT", {}, cancel=token)

    def test_a_nested_call_cannot_escape_its_callers_cancel(self, runtime: Runtime) -> None:
        token, own = Cancellation(), Cancellation()
        seen: list[str] = []

        def outer(input: Any, context: WorkerContext) -> Any:
            assert context.call.runtime is not None
            return context.call.runtime.invoke("TEST.INNER", {}, cancel=own).unwrap()

        def inner(input: Any, context: WorkerContext) -> None:
            token.cancel("from above")
            seen.append(context.call.cancel.reason)

        runtime.register(Worker("TEST", {"TEST.OUTER": outer, "TEST.INNER": inner}))
        with pytest.raises(InvocationCancelled, match="from above"):
            runtime.invoke("TEST.OUTER", {}, cancel=token)
        assert seen == ["from above"]

    def test_cancelling_the_asyncio_task_reaches_the_handler(self, runtime: Runtime) -> None:
        started, stopped = threading.Event(), threading.Event()

        def work(input: Any, context: WorkerContext) -> None:
            started.set()
            if context.call.cancel.wait(PATIENCE):
                stopped.set()

        async def give_up() -> None:
            task = asyncio.create_task(runtime.ainvoke("TEST.IT", {}))
            await asyncio.to_thread(started.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        runtime.register(answering(work))
        asyncio.run(give_up())
        assert stopped.wait(PATIENCE)


class TestDeadline:
    @pytest.mark.parametrize("timeout", [0, -1, True, "3", float("nan"), float("inf"), 1e300])
    def test_a_timeout_that_is_no_time(self, runtime: Runtime, timeout: Any) -> None:
        runtime.register(named("a"))
        with pytest.raises(InvalidDefinition, match="timeout is"):
            runtime.invoke("TEST.WHO", {}, timeout=timeout)
        with pytest.raises(InvalidDefinition, match="timeout is"):
            asyncio.run(runtime.ainvoke("TEST.WHO", {}, timeout=timeout))

    def test_a_handler_knows_what_time_is_left(self, runtime: Runtime) -> None:
        runtime.register(answering(lambda input, context: context.call.remaining()))
        assert 5 < runtime.invoke("TEST.IT", {}, timeout=10).unwrap() <= 10
        assert 25 < runtime.invoke("TEST.IT", {}).unwrap() <= 30

    def test_a_handler_that_notices_it_ends_as_a_timeout(self, runtime: Runtime) -> None:
        def work(input: Any, context: WorkerContext) -> None:
            while True:
                context.call.check()

        runtime.register(answering(work))
        result = runtime.invoke("TEST.IT", {}, timeout=0.05)
        assert result.error is not None
        assert (result.status, result.error.code) == ("timeout", "TIMEOUT")

    def test_a_nested_call_has_no_more_time_than_its_caller(self, runtime: Runtime) -> None:
        def outer(input: Any, context: WorkerContext) -> list[Any]:
            invoker = context.call.runtime
            assert invoker is not None
            return [invoker.invoke("TEST.LEFT", {}, timeout=t).unwrap() for t in (None, 10, 100)]

        runtime.register(
            Worker(
                "TEST",
                {"TEST.OUTER": outer, "TEST.LEFT": lambda input, context: context.call.remaining()},
            )
        )
        own, less, more = runtime.invoke("TEST.OUTER", {}, timeout=20).unwrap()
        assert 15 < own <= 20
        assert 5 < less <= 10
        assert 15 < more <= 20


class TestNested:
    def test_a_node_calls_another_and_each_has_its_id(self, runtime: Runtime) -> None:
        def outer(input: Any, context: WorkerContext) -> list[str]:
            assert context.call.runtime is not None
            inner = context.call.runtime.invoke("MEMORY.QUERY", {})
            return [context.call.execution_id, inner.execution_id, inner.status]

        runtime.register(answering(outer))
        runtime.register(memory_worker(InMemoryStore()))
        result = runtime.invoke("TEST.IT", {})
        own, inner, status = result.unwrap()
        assert own == result.execution_id != inner
        assert status == "success"

    def test_accepted_calls_still_reach_other_nodes_while_the_runtime_closes(
        self, held: Held, threads: ThreadPoolExecutor
    ) -> None:
        runtime = Runtime()

        def outer(input: Any, context: WorkerContext) -> Any:
            held(input, context)
            assert context.call.runtime is not None
            return context.call.runtime.invoke("TEST.WHO", {}).unwrap()

        runtime.register(answering(outer))
        runtime.register(named("inner"))
        call = threads.submit(runtime.invoke, "TEST.IT", {})
        assert held.started.acquire(timeout=PATIENCE)
        closing = threads.submit(runtime.close)
        while True:
            try:
                runtime.invoke("TEST.WHO", {})
            except RuntimeClosed:
                break
        assert not closing.done()
        held.released.set()
        assert call.result().unwrap() == "inner"
        closing.result(PATIENCE)


class TestClose:
    def test_a_closed_runtime_takes_no_call(self) -> None:
        runtime = Runtime(workers=[named("a")])
        runtime.close()
        runtime.close()
        with pytest.raises(RuntimeClosed):
            who(runtime)
        with pytest.raises(RuntimeClosed):
            asyncio.run(runtime.ainvoke("TEST.WHO", {}))
        with pytest.raises(RuntimeClosed):
            runtime.register(named("b"))

    def test_it_waits_for_running_calls_then_disposes_once(
        self, held: Held, threads: ThreadPoolExecutor
    ) -> None:
        disposed: list[int] = []
        runtime = Runtime(workers=[answering(held, resources=lambda: 7, dispose=disposed.append)])
        call = threads.submit(runtime.invoke, "TEST.IT", {})
        assert held.started.acquire(timeout=PATIENCE)
        closings = [threads.submit(runtime.close) for _ in range(3)]
        assert disposed == []
        assert not any(closing.done() for closing in closings)
        held.released.set()
        for closing in closings:
            closing.result(PATIENCE)
        assert call.result().unwrap() == "held"
        assert disposed == [7]

    def test_closing_one_worker_waits_for_its_calls_only(
        self, runtime: Runtime, held: Held, threads: ThreadPoolExecutor
    ) -> None:
        disposed: list[str] = []
        handle = runtime.register(answering(held, resources=lambda: "x", dispose=disposed.append))
        runtime.register(named("other"))
        threads.submit(runtime.invoke, "TEST.IT", {})
        assert held.started.acquire(timeout=PATIENCE)
        closing = threads.submit(handle.close)
        assert who(runtime) == "other"
        held.released.set()
        closing.result(PATIENCE)
        handle.close()
        assert disposed == ["x"]
        with pytest.raises(NoWorkerAvailable):
            runtime.invoke("TEST.IT", {})

    def test_one_dispose_that_fails_keeps_no_other_from_running(self) -> None:
        disposed: list[str] = []

        def fail(_: Any) -> None:
            raise OSError("cannot close")

        runtime = Runtime(
            workers=[
                named("a", dispose=fail),
                named("b", dispose=lambda _: disposed.append("b")),
                named("c", dispose=fail),
            ]
        )
        with pytest.raises(ExceptionGroup, match="worker cleanup failed") as failed:
            runtime.close()
        assert [str(error) for error in failed.value.exceptions] == ["cannot close"] * 2
        assert disposed == ["b"]
        runtime.close()

    def test_a_worker_that_cannot_open_lets_the_others_be_disposed_of(self) -> None:
        disposed: list[str] = []

        def fail() -> None:
            raise OSError("cannot open")

        with pytest.raises(OSError, match="cannot open"):
            Runtime(workers=[named("a", dispose=lambda _: disposed.append("a")), named("b", resources=fail)])
        assert disposed == ["a"]

    def test_a_store_of_the_application_stays_open_and_one_by_url_is_closed(self) -> None:
        with InMemoryStore() as store:
            with Runtime(workers=[memory_worker(store)]) as runtime:
                runtime.invoke("MEMORY.WRITE", {"memories": [{"content": 1}]}).unwrap()
            with Runtime(workers=[memory_worker(store)]) as again:
                assert len(again.invoke("MEMORY.QUERY", {}).unwrap()["items"]) == 1


def test_asynchronous_calls_give_the_same_results(runtime: Runtime) -> None:
    async def both() -> list[NodeResult]:
        return await asyncio.gather(*(runtime.ainvoke("TEST.IT", n) for n in range(20)))

    runtime.register(answering(lambda input, context: input))
    assert [result.unwrap() for result in asyncio.run(both())] == list(range(20))
