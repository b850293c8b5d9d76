"""One call as a provider sees it: who it is, whether it is still wanted, how much time is left."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ditto_tasks.contracts.cancellation import NEVER_CANCELLED, CancelToken
from ditto_tasks.contracts.errors import DeadlineExceeded

if TYPE_CHECKING:
    from ditto_tasks.contracts.node import NodeResult

__all__ = ["NO_CALL", "Call", "Invoker"]


class Invoker(Protocol):
    """What calls other nodes: a Runtime, or the part of one that is bound to the present invocation."""

    def invoke(
        self, node: str, input: Any, *, timeout: float | None = None, cancel: CancelToken | None = None
    ) -> "NodeResult":
        """Run one node and return its result."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """The circumstances of one call, handed to every provider.

    Attributes:
        execution_id: names this execution in results, logs and cancels.
        cancel: set when nobody wants the answer any more.
        deadline: the moment on `time.monotonic()`'s clock at which the time is used up; None: no limit.
        runtime: calls other nodes on behalf of this one; None outside a worker.
    """

    execution_id: str = ""
    cancel: CancelToken = NEVER_CANCELLED
    deadline: float | None = None
    runtime: Invoker | None = None

    def remaining(self) -> float | None:
        """Return the seconds left, 0 when they are used up, None when there is no limit."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        """Go on only if the answer is still wanted.

        Raises:
            InvocationCancelled: the token is set.
            DeadlineExceeded: the time is used up.
        """
        if self.cancel is not NEVER_CANCELLED:
            self.cancel.raise_if_cancelled()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlineExceeded("the call's time is used up")


NO_CALL = Call()  # for calls made directly, outside any invocation: never cancelled, no deadline
