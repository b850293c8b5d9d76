"""Workers: what an application says it can run, and the live copy of it that runs.

A `Worker` is a definition and may be registered any number of times; each registration makes a `Replica` with
resources of its own. Celery workers and in-process runtimes both run nodes through `Replica.execute`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.json_value import NotJson, strict_json
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.nodes.boundary import NODE_CODES, ErrorCodes, InvalidOutput, execute
from ditto_tasks.queues import check_node_name

if TYPE_CHECKING:
    from ditto_tasks.config import DittoConfig

__all__ = ["Handler", "Limits", "Replica", "Worker", "WorkerContext"]


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What a handler gets beside its input.

    Attributes:
        resources: what the worker's `resources` factory made for this replica; None without one.
        call: the present call: execution id, cancel token, time left, and a runtime to call other nodes with.
        config: the configuration of the process.
    """

    resources: Any
    call: Call
    config: "DittoConfig"


Handler = Callable[[Any, WorkerContext], Any]
"""Runs one node: takes its JSON input, returns its JSON output or a NodeResult of its own."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for all calls of a worker's nodes together, over all processes that run it.

    Attributes:
        concurrency: calls at once; None: no limit.
        per_key: calls at once with the same `concurrency_key`, a tenant's, say; None: no limit.
        per_second: calls begun a second, in bursts of at most one second's; None: no limit.

    Raises:
        InvalidDefinition: a limit is not positive, or one of calls at once is no integer.
    """

    concurrency: int | None = None
    per_key: int | None = None
    per_second: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("concurrency", self.concurrency), ("per_key", self.per_key)):
            if value is not None and (type(value) is not int or value < 1):
                raise InvalidDefinition(
                    f"the limit {name} is {value!r}: it must be a positive integer or None"
                )
        rate = self.per_second
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if rate is not None and not (is_number and 0 < rate < float("inf")):
            raise InvalidDefinition(f"the limit per_second is {rate!r}: it must be a positive number or None")


@dataclass(frozen=True)
class Worker:
    """A group of nodes that run together.

    Args:
        type: what kind of worker this is; need not be the nodes' namespace.
        nodes: node name to handler.
        concurrency: how many entry calls one replica runs at once; None: no limit.
        expose: the nodes that callers may ask for; None: all of them.
        repeatable: the nodes that may safely be run again when the process that ran them died; a call of
            any other ends as OUTCOME_UNKNOWN then. For nodes of the catalogue, the catalogue decides.
        limits: what holds for its calls over all workers; for our own capabilities, ditto.yaml says it, too.
        resources: called once a replica, in the process that runs it; handlers find its value in `resources`.
        dispose: given that value when the replica closes.
        codes: what the failures of its nodes are called.

    Raises:
        InvalidDefinition: a blank type, no node, a name that is none, an unknown exposed node, or a
            concurrency that is not a positive integer.
    """

    type: str
    nodes: Mapping[str, Handler]
    concurrency: int | None = None
    expose: Sequence[str] | None = None
    repeatable: Collection[str] = ()
    limits: Limits = Limits()
    resources: Callable[[], Any] | None = None
    dispose: Callable[[Any], None] | None = None
    codes: ErrorCodes = NODE_CODES
    capabilities: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type.strip():
            raise InvalidDefinition("a worker's type cannot be blank")
        if not self.nodes:
            raise InvalidDefinition(f"the worker {self.type!r} implements no node: give it at least one")
        for node in self.nodes:
            check_node_name(node)
        concurrency = self.concurrency
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise InvalidDefinition(f"concurrency is {concurrency!r}: it must be a positive integer or None")
        unknown = [node for node in self.repeatable if node not in self.nodes]
        if unknown:
            raise InvalidDefinition(f"{unknown[0]!r} is repeatable, but no node of the worker {self.type!r}")
        object.__setattr__(self, "capabilities", self._exposed())

    def _exposed(self) -> tuple[str, ...]:
        exposed = tuple(dict.fromkeys(self.nodes if self.expose is None else self.expose))
        unknown = [node for node in exposed if node not in self.nodes]
        if unknown or not exposed:
            raise InvalidDefinition(
                f"the worker {self.type!r} must expose at least one node, and only its own; not: {unknown}"
            )
        return exposed


class Replica:
    """A worker that runs: its resources are open, `close` disposes of them.

    Raises:
        Exception: whatever the worker's `resources` factory raises.
    """

    def __init__(self, worker: Worker, config: "DittoConfig") -> None:
        self.worker = worker
        self._config = config
        self._resources = worker.resources() if worker.resources else None
        self._is_open = True

    def execute(self, node: str, input: Any, call: Call) -> NodeResult:
        """Run one of the worker's nodes, exposed or not; never raises what a handler raises."""
        handler = self.worker.nodes[node]
        context = WorkerContext(self._resources, call, self._config)
        return execute(node, self.worker.codes, call, lambda: _json(handler(input, context)))

    def close(self) -> None:
        """Dispose of the resources, once."""
        if self._is_open:
            self._is_open = False
            if self.worker.dispose:
                self.worker.dispose(self._resources)


def _json(output: Any) -> Any:
    if isinstance(output, NodeResult):
        return output
    try:
        return strict_json(output)
    except NotJson as error:
        raise InvalidOutput(str(error)) from None
