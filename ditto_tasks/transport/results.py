"""Reading what the result backend stored: Celery's record of a task back into a NodeResult."""

from typing import Any

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.json_value import decode_json
from ditto_tasks.contracts.node import NodeFailure, NodeResult, NodeStatus
from ditto_tasks.transport.payloads import OUTPUT_REFERENCE, PayloadMissing, Payloads

__all__ = ["read_result", "result_status"]


def result_status(stored: bytes) -> NodeStatus:
    """Read how a stored call ended, without its output."""
    meta = decode_json(stored)
    result = meta.get("result")
    if meta["status"] == "SUCCESS" and isinstance(result, dict) and "executionId" in result:
        status: NodeStatus = result["status"]
        return status
    return "cancelled" if meta["status"] == "REVOKED" else "failed"


def read_result(stored: bytes, payloads: Payloads) -> tuple[str, NodeResult]:
    """Read one stored record; returns the execution id and the result.

    Celery itself ends a task in other states when it is revoked or its process dies: results as well.
    """
    meta = decode_json(stored)
    execution_id, result = meta["task_id"], meta.get("result")
    if meta["status"] == "SUCCESS" and isinstance(result, dict) and "executionId" in result:
        return execution_id, _trusted(result, payloads)
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


def _trusted(wire: dict[str, Any], payloads: Payloads) -> NodeResult:
    """Build the result without checking it again: our own worker wrote it."""
    if OUTPUT_REFERENCE in wire:
        try:
            wire["output"] = payloads.output(wire[OUTPUT_REFERENCE])
        except PayloadMissing:
            message = "The output was too large for the result, and what was kept of it has expired"
            return NodeResult.failure(wire["executionId"], wire["node"], "PAYLOAD_EXPIRED", message)
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
    return trusted(NodeResult, fields)
