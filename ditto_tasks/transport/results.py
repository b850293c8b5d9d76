"""Reading what the result backend stored: Celery's record of a task back into a NodeResult."""

from typing import Any

from ditto_tasks.contracts.json_value import decode_json
from ditto_tasks.contracts.node import NodeFailure, NodeResult

__all__ = ["read_result"]


def read_result(stored: bytes) -> tuple[str, NodeResult]:
    """Read one stored record; returns the execution id and the result.

    Celery itself ends a task in other states when it is revoked or its process dies: results as well.
    """
    meta = decode_json(stored)
    execution_id, result = meta["task_id"], meta.get("result")
    if meta["status"] == "SUCCESS" and isinstance(result, dict) and "executionId" in result:
        return execution_id, _trusted(result)
    if meta["status"] == "REVOKED":
        return execution_id, NodeResult.failure(
            execution_id, "", "CANCELLED", "The call was revoked", "cancelled"
        )
    kind = result.get("exc_type", "unknown") if isinstance(result, dict) else "unknown"
    if kind in ("WorkerLostError", "Terminated"):
        return execution_id, NodeResult.failure(
            execution_id, "", "WORKER_LOST", "The process that ran the call died"
        )
    return execution_id, NodeResult.failure(
        execution_id, "", "EXECUTION_FAILED", f"The worker could not run the call ({kind})"
    )


def _trusted(wire: dict[str, Any]) -> NodeResult:
    """Build the result without checking it again: our own worker wrote it."""
    error = wire.get("error")
    fields: dict[str, Any] = {
        "execution_id": wire["executionId"],
        "node": wire["node"],
        "status": wire["status"],
    }
    if "output" in wire:
        fields["output"] = wire["output"]
    if error is not None:
        fields["error"] = NodeFailure(code=error["code"], message=error["message"])
    return NodeResult.model_construct(set(fields), **fields)
