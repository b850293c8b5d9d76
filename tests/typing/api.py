"""Calls of the public API that only mypy reads: this file is checked and never run."""

from typing import Any, assert_type

from ditto_tasks import (
    NEVER_CANCELLED,
    Call,
    Cancellation,
    CancelToken,
    DittoConfig,
    Invocation,
    InvocationTimeout,
    NodeError,
    NodeResult,
    Runtime,
    Worker,
    WorkerContext,
    load_config,
)
from ditto_tasks.contracts.memory import (
    MemoryDraft,
    MemoryGetInput,
    MemorySearchProvider,
    MemoryStore,
    MemoryWriteInput,
)
from ditto_tasks.nodes import Memory
from providers.stores import open_store
from providers.stores.in_memory import InMemoryStore
from providers.stores.sqlite import SqliteStore
from workers.memory import memory_worker


def calling(runtime: Runtime, cancel: CancelToken) -> None:
    assert_type(runtime.invoke("MEMORY.GET", {"ids": ["a"]}), NodeResult)
    assert_type(
        runtime.invoke("MEMORY.GET", MemoryGetInput(ids=("a",)), timeout=1, cancel=cancel), NodeResult
    )
    assert_type(runtime.invoke("MEMORY.GET", {}).unwrap(), Any)
    invocation = runtime.submit("MEMORY.WRITE", MemoryWriteInput(memories=(MemoryDraft(content=None),)))
    assert_type(invocation, Invocation)
    assert_type(invocation.result(1.5), NodeResult)
    assert_type(invocation.id, str)
    assert_type([result.status == "success" for result in runtime.map("A.B", [1, "x", None])], list[bool])
    runtime.submit("A.B", {}, timeout="1")  # type: ignore[arg-type]
    runtime.invoke("A.B")  # type: ignore[call-arg]


async def calling_asynchronously(runtime: Runtime, invocation: Invocation) -> None:
    assert_type(await runtime.ainvoke("A.B", {}, timeout=2), NodeResult)
    assert_type(await invocation, NodeResult)


def handler(input: Any, context: WorkerContext) -> Any:
    assert_type(context.call, Call)
    assert_type(context.config, DittoConfig)
    assert_type(context.call.remaining(), float | None)
    if context.call.runtime is not None:
        assert_type(context.call.runtime.invoke("A.B", input), NodeResult)
    raise NodeError("CODE", "message")


def serving() -> None:
    worker = Worker("A", {"A.B": handler}, concurrency=2, expose=["A.B"], resources=list, dispose=print)
    with Runtime(DittoConfig(), workers=[worker, memory_worker("memory://")]) as runtime:
        assert_type(runtime.register(worker, "x").unregister(), bool)
    with Runtime.from_config("ditto.yaml", {"DITTO_BROKER_URL": "redis://localhost"}) as connected:
        assert_type(connected, Runtime)
    assert_type(load_config(None), DittoConfig)


def direct(path: str) -> None:
    stores: list[MemoryStore] = [InMemoryStore(), SqliteStore(path), open_store("memory://")]
    searches: list[MemorySearchProvider] = [InMemoryStore(), SqliteStore(path)]
    memory = Memory(stores[0], search=searches[0], defaults={"queryLimit": 5})
    assert_type(memory.get({"ids": ["a"]}, cancel=NEVER_CANCELLED), NodeResult)
    memory.execute("MEMORY.GET", {}, runtime=Runtime())
    Memory("memory://")  # type: ignore[arg-type]


def cancelling() -> None:
    token = Cancellation()
    token.cancel("why")
    seen: CancelToken = token
    seen.cancel()  # type: ignore[attr-defined]
    assert_type(InvocationTimeout("late").started, bool | None)
