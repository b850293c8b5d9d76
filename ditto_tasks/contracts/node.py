"""Nodes: their names, what the catalogue says of each, and the one envelope in which they answer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ditto_tasks.contracts.base import Contract, trusted
from ditto_tasks.contracts.errors import NodeFailed
from ditto_tasks.contracts.json_value import JsonValue

__all__ = ["NODE_NAME", "NodeFailure", "NodeResult", "NodeSpec", "NodeStatus"]

NODE_NAME = re.compile(r"[^.\s]+(\.[^.\s]+)+\Z")  # two or more dotted segments, no white space

NodeStatus = Literal["success", "failed", "cancelled", "timeout"]


class NodeFailure(Contract):
    """Why a node did not succeed: a code for programs, a public message for people."""

    code: str
    message: str


class NodeResult(Contract):
    """How one execution of a node ended; the same for a direct, an in-process and a queued call.

    `output` is plain JSON in wire form (camelCase keys); it is absent unless the node gave one.
    """

    execution_id: str
    node: str
    status: NodeStatus
    output: JsonValue = None
    error: NodeFailure | None = None

    @classmethod
    def success(cls, execution_id: str, node: str, output: Any) -> "NodeResult":
        """Make the result of a success; `output` is taken as it is: it must be JSON already."""
        return trusted(
            cls, {"execution_id": execution_id, "node": node, "status": "success", "output": output}
        )

    @classmethod
    def failure(
        cls, execution_id: str, node: str, code: str, message: str, status: NodeStatus = "failed"
    ) -> "NodeResult":
        """Make a result without an output."""
        return cls(
            execution_id=execution_id, node=node, status=status, error=NodeFailure(code=code, message=message)
        )

    def unwrap(self) -> Any:
        """Return the output.

        Raises:
            NodeFailed: the status is not success.
        """
        if self.status == "success":
            return self.output
        error = self.error or NodeFailure(code="EXECUTION_FAILED", message="the node gave no reason")
        raise NodeFailed(error.code, self.status, error.message)


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What the catalogue says of one node.

    Attributes:
        name: fully qualified, in upper case.
        capability: the group that one kind of worker offers, in lower case.
        input: the contract of its input.
        is_repeatable: whether running this input a second time, after its worker died, does no harm.
        summary: one line for help texts and docs.
        invalid_input: the code of a result whose input breaks the contract.
    """

    name: str
    capability: str
    input: type[Contract]
    is_repeatable: Callable[[Any], bool]
    summary: str
    invalid_input: str = "INVALID_INPUT"
