"""One call into one NodeResult: the only place where errors become results.

A family of nodes says with `ErrorCodes` what its failures are called; what its handlers raise on purpose
(NodeError) keeps its code and message, everything else is logged and hidden.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import (
    DeadlineExceeded,
    DittoError,
    InvocationCancelled,
    InvocationTimeout,
    NodeError,
)
from ditto_tasks.contracts.node import NodeResult, NodeStatus

__all__ = ["NODE_CODES", "ErrorCodes", "InvalidOutput", "execute", "new_execution_id"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ErrorCodes:
    """What a family of nodes calls its failures; the two sentences are public.

    Attributes:
        own: the errors whose code and message a caller sees; those of other families are hidden like any.
    """

    invalid_output: str
    backend_error: str
    cancelled: str
    timeout: str
    invalid_output_message: str
    backend_error_message: str
    own: type[NodeError] = NodeError

    def status_of(self, code: str) -> NodeStatus:
        """Tell the status of a failure that a provider gave a code."""
        return "timeout" if code == self.timeout else "cancelled" if code == self.cancelled else "failed"


NODE_CODES = ErrorCodes(
    invalid_output="INVALID_OUTPUT",
    backend_error="EXECUTION_FAILED",
    cancelled="CANCELLED",
    timeout="TIMEOUT",
    invalid_output_message="The node returned an output that is not JSON",
    backend_error_message="Node execution failed",
)
"""For nodes that an application brings along."""


class InvalidOutput(Exception):
    """A provider returned something that breaks its contract; the text is for the log only."""


def new_execution_id() -> str:
    """Make the id of an execution that no queue has named yet: a random UUID, in a third of `uuid`'s time."""
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) % 4]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def execute(node: str, codes: ErrorCodes, call: Call, run: Callable[[], Any]) -> NodeResult:
    """Run one node and put what comes of it into a NodeResult.

    `run` returns the output as JSON, or a NodeResult, which is passed on as it is.

    A call that was cancelled before or while it ran ends as cancelled, whatever it returned or raised; one
    that finished after its deadline still ends as what it is.
    """
    result = _outcome(node, codes, call, run)
    if call.cancel.is_cancelled and result.status != "cancelled":
        return _failure(node, call, codes.cancelled, call.cancel.reason, "cancelled")
    return result


def _outcome(node: str, codes: ErrorCodes, call: Call, run: Callable[[], Any]) -> NodeResult:
    try:
        call.check()
        output = run()
        return (
            output if isinstance(output, NodeResult) else NodeResult.success(call.execution_id, node, output)
        )
    except InvocationCancelled as cancelled:
        return _failure(node, call, codes.cancelled, str(cancelled), "cancelled")
    except DeadlineExceeded:
        return _failure(node, call, codes.timeout, "The call's time was used up", "timeout")
    except codes.own as error:
        return _failure(node, call, error.code, error.message, codes.status_of(error.code))
    except InvocationTimeout as error:
        return _failure(node, call, codes.timeout, str(error), "timeout")
    except DittoError as error:  # of a nested call that never ran
        return _failure(node, call, error.code, str(error))
    except InvalidOutput as error:
        logger.error("%s %s: invalid output: %s", call.execution_id, node, error)
        return _failure(node, call, codes.invalid_output, codes.invalid_output_message)
    except (Exception, SystemExit) as error:  # a node may end its call, not its process
        logger.error("%s %s: %s, hidden from the caller", call.execution_id, node, type(error).__name__)
        logger.debug("%s %s: the hidden error", call.execution_id, node, exc_info=True)  # may hold secrets
        return _failure(node, call, codes.backend_error, codes.backend_error_message)


def _failure(node: str, call: Call, code: str, message: str, status: NodeStatus = "failed") -> NodeResult:
    return NodeResult.failure(call.execution_id, node, code, message, status)
