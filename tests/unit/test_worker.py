"""Definitions of workers, and their live copies."""

import logging
from typing import Any

import pytest

from ditto_tasks import (
    Call,
    ConfigError,
    DittoConfig,
    InvalidDefinition,
    NodeError,
    NodeResult,
    Worker,
    WorkerContext,
)
from ditto_tasks.config.model import Transport
from ditto_tasks.contracts.errors import DeadlineExceeded, InvocationCancelled
from ditto_tasks.worker import Limits, Replica
from workers.factory import create_worker_app

CALL = Call("id-1")


def echo(input: Any, context: WorkerContext) -> Any:
    return input


def run(handler: Any, input: Any = None) -> NodeResult:
    return Replica(Worker("TEST", {"TEST.IT": handler}), DittoConfig()).execute("TEST.IT", input, CALL)


def raising(error: BaseException) -> Any:
    def handler(input: Any, context: WorkerContext) -> Any:
        raise error

    return handler


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"type": "", "nodes": {"A.B": echo}}, "type cannot be blank"),
        ({"type": " \t", "nodes": {"A.B": echo}}, "type cannot be blank"),
        ({"type": "A", "nodes": {}}, "implements no node"),
        ({"type": "A", "nodes": {"undotted": echo}}, "'undotted' is not a node"),
        ({"type": "A", "nodes": {"A.B": echo}, "expose": []}, "must expose at least one"),
        ({"type": "A", "nodes": {"A.B": echo}, "expose": ["A.C"]}, r"only its own; not: \['A.C'\]"),
        *(
            ({"type": "A", "nodes": {"A.B": echo}, "concurrency": bad}, "must be a positive integer or None")
            for bad in (0, -1, 1.0, 2.5, True, "3")
        ),
    ],
)
def test_a_definition_that_cannot_work_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidDefinition, match=reason):
        Worker(**arguments)


@pytest.mark.parametrize(
    "settings",
    [
        {"broker_url": "amqp://127.0.0.1:1//", "result_url": "redis://127.0.0.1:1/0"},
        {
            "broker_url": "redis://127.0.0.1:1/0",
            "result_url": "redis://127.0.0.1:1/0",
            "transport": Transport(broker="kombu"),
        },
    ],
)
def test_a_limit_over_all_workers_that_the_broker_cannot_keep_is_refused(settings: dict[str, Any]) -> None:
    worker = Worker("TEST", {"TEST.IT": echo}, limits=Limits(concurrency=1))
    with pytest.raises(ConfigError, match=r"workers\.test has a limit over all workers, which needs"):
        create_worker_app(DittoConfig(**settings), workers=[worker])


def test_all_nodes_are_exposed_unless_said_otherwise() -> None:
    nodes = {"A.B": echo, "A.C": echo}
    assert Worker("A", nodes).capabilities == ("A.B", "A.C")
    assert Worker("A", nodes, expose=["A.C", "A.C"]).capabilities == ("A.C",)


def test_a_handler_gets_its_resources_its_call_and_the_configuration() -> None:
    config = DittoConfig()
    worker = Worker(
        "TEST",
        {
            "TEST.IT": lambda input, context: (
                context.resources,
                context.call is CALL,
                context.config is config,
            )
        },
        resources=lambda: "opened",
    )
    assert Replica(worker, config).execute("TEST.IT", {}, CALL).unwrap() == ["opened", True, True]


def test_resources_are_made_once_a_replica_and_disposed_of_once() -> None:
    disposed: list[list[int]] = []
    worker = Worker("TEST", {"TEST.IT": echo}, resources=list, dispose=disposed.append)
    first, second = Replica(worker, DittoConfig()), Replica(worker, DittoConfig())
    first.close()
    first.close()
    second.close()
    assert len(disposed) == 2
    assert disposed[0] is not disposed[1]


def test_an_output_is_copied_and_in_json_form() -> None:
    kept: list[Any] = [1]
    result = run(lambda input, context: {"kept": kept, "tuple": (1, 2)})
    kept.append(2)
    assert result.unwrap() == {"kept": [1], "tuple": [1, 2]}
    assert (result.execution_id, result.node) == ("id-1", "TEST.IT")


def test_a_result_of_the_handlers_own_passes() -> None:
    own = NodeResult.failure("id-1", "TEST.IT", "OWN", "why", "timeout")
    assert run(lambda input, context: own) is own


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NodeError("OWN_CODE", "public"), "failed", "OWN_CODE"),
        (InvocationCancelled("stopped"), "cancelled", "CANCELLED"),
        (DeadlineExceeded("late"), "timeout", "TIMEOUT"),
        (ValueError("password=secret"), "failed", "EXECUTION_FAILED"),
        (TimeoutError("password=secret"), "failed", "EXECUTION_FAILED"),
    ],
)
def test_what_a_handler_raises_becomes_a_result(
    error: Exception, status: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        result = run(raising(error))
    assert result.error is not None
    assert (result.status, result.error.code) == (status, code)
    assert "secret" not in result.error.message + caplog.text


@pytest.mark.parametrize("output", [float("nan"), {1: 2}, object(), b"x", {"a": {1}}])
def test_an_output_that_is_not_json_fails_the_call(output: object) -> None:
    result = run(lambda input, context: output)
    assert result.error is not None
    assert (result.status, result.error.code) == ("failed", "INVALID_OUTPUT")
