"""What a caller may say of a call, and a worker of its limits: what cannot be meant is refused."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ditto_tasks import InvalidDefinition, NoWorkerAvailable, Runtime, Worker, WorkerContext
from ditto_tasks.transport.limits import Limit
from ditto_tasks.worker import Limits


def echo(input: Any, context: WorkerContext) -> Any:
    return input


CALLS: dict[str, Callable[..., object]] = {
    "invoke": lambda runtime, **options: runtime.invoke("TEST.ECHO", 1, **options),
    "ainvoke": lambda runtime, **options: asyncio.run(runtime.ainvoke("TEST.ECHO", 1, **options)),
    "submit": lambda runtime, **options: runtime.submit("TEST.ECHO", 1, **options),
}
MAP: dict[str, Callable[..., object]] = {
    "map": lambda runtime, **options: runtime.map("TEST.ECHO", [1], **options)
}
EVERY_WAY = {**CALLS, **MAP}

PRIORITIES = ["urgent", "HIGH", "", 0, 9, None, True, ["high"]]
NO_KEYS = ["", "x" * 257, b"bytes", 7, 0, True, ["k"], "\ud800"]


@pytest.mark.parametrize("call", EVERY_WAY.values(), ids=EVERY_WAY)
@pytest.mark.parametrize("priority", PRIORITIES, ids=repr)
def test_a_priority_that_is_none_is_refused(call: Callable[..., object], priority: Any) -> None:
    with (
        Runtime(workers=[Worker("TEST", {"TEST.ECHO": echo})]) as runtime,
        pytest.raises(InvalidDefinition, match="use one of high, normal, low"),
    ):
        call(runtime, priority=priority)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("key", NO_KEYS, ids=lambda key: f"{key!r:.12}")
def test_an_idempotency_key_that_is_none_is_refused(call: Callable[..., object], key: Any) -> None:
    with Runtime() as runtime, pytest.raises(InvalidDefinition, match="idempotency_key is"):
        call(runtime, idempotency_key=key)


@pytest.mark.parametrize("call", EVERY_WAY.values(), ids=EVERY_WAY)
@pytest.mark.parametrize("key", NO_KEYS, ids=lambda key: f"{key!r:.12}")
def test_a_concurrency_key_that_is_none_is_refused(call: Callable[..., object], key: Any) -> None:
    with Runtime() as runtime, pytest.raises(InvalidDefinition, match="concurrency_key is"):
        call(runtime, concurrency_key=key)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_idempotency_key_needs_a_broker_that_remembers_it(call: Callable[..., object]) -> None:
    with (
        Runtime(workers=[Worker("TEST", {"TEST.ECHO": echo})]) as runtime,
        pytest.raises(NoWorkerAvailable, match="no broker"),
    ):
        call(runtime, idempotency_key="k")


def test_priority_and_concurrency_key_do_no_harm_in_process() -> None:
    with Runtime(workers=[Worker("TEST", {"TEST.ECHO": echo})]) as runtime:
        assert runtime.invoke("TEST.ECHO", 1, priority="low", concurrency_key="k" * 256).unwrap() == 1


@pytest.mark.parametrize("name", ["concurrency", "per_key"])
@pytest.mark.parametrize("bad", [0, -1, 1.5, 2.0, True, "3", float("inf"), float("nan")], ids=repr)
def test_a_limit_of_calls_at_once_is_a_positive_integer(name: str, bad: Any) -> None:
    with pytest.raises(InvalidDefinition, match=f"{name} is"):
        Limits(**{name: bad})


@pytest.mark.parametrize("bad", [0, -0.1, True, "3", float("inf"), float("nan")], ids=repr)
def test_a_limit_of_calls_a_second_is_a_positive_number(bad: Any) -> None:
    with pytest.raises(InvalidDefinition, match="per_second is"):
        Limits(per_second=bad)


def test_no_limit_is_the_default() -> None:
    assert Worker("TEST", {"TEST.ECHO": echo}).limits == Limits() == Limits(None, None, None)


def test_what_does_not_limit_is_not_told_to_the_scripts() -> None:
    assert Limit("test").to_json() == {"name": "test"}
    assert Limit("test", 2, None, 0.5).to_json() == {"name": "test", "concurrency": 2, "perSecond": 0.5}


def test_only_a_worker_s_own_nodes_are_repeatable() -> None:
    with pytest.raises(InvalidDefinition, match=r"'TEST.OTHER' is repeatable"):
        Worker("TEST", {"TEST.ECHO": echo}, repeatable=["TEST.OTHER"])
