"""What a runtime needs of whatever carries its calls to other processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from ditto_tasks.local import WorkerInfo
from ditto_tasks.transport.pending import Pending

__all__ = ["CallState", "OutgoingCall", "Priority", "QueueInfo", "Submitted", "Transport"]

Priority = Literal["high", "normal", "low"]

CallState = Literal["pending", "running", "success", "failed", "cancelled", "timeout"]
"""Where a call is: pending says that no worker has begun it, or that nothing is known of it."""


class OutgoingCall(NamedTuple):
    """One call to be sent.

    Attributes:
        execution_id: becomes the task's id.
        node: becomes the task's name.
        input: JSON in wire form.
        expires_at: seconds since the epoch after which the call is not begun any more; None: never.
        priority: how urgent it is among the calls of its node.
        idempotency_key: calls of the node with the same key are one execution; None: this one is its own.
        is_kept_apart: the input lies in Redis by itself, and `input` is None.
        concurrency_key: counts among the calls with the same key, where their number is limited.
    """

    execution_id: str
    node: str
    input: Any
    expires_at: float | None = None
    priority: Priority = "normal"
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    is_kept_apart: bool = False


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue with the number of calls that wait in it."""

    name: str
    node: str
    waiting: int


class Submitted(NamedTuple):
    """A call that was sent, now or, by its idempotency key, earlier."""

    execution_id: str
    pending: Pending


class Transport(Protocol):
    """Carries calls to workers and results back. Usable from many threads; every wait is bounded.

    All methods raise BrokerUnavailable when broker or result backend do not answer in time.
    """

    def submit(self, calls: Sequence[OutgoingCall]) -> list[Submitted]:
        """Send the calls; returns for each, in order, its execution id and its result to come.

        A call whose idempotency key is known is not sent: the earlier one's id and result are returned.

        Raises:
            PayloadTooLarge: one of them is over the limit; none is sent then.
            QueueFull: a queue has no room for them; none is sent then.
            BrokerUnavailable: they could not be sent; some may have been.
        """
        ...

    def watch(self, execution_id: str) -> Pending:
        """Await the result of a call that was sent from anywhere."""
        ...

    def wait(self, pending: Pending, seconds: float) -> None:
        """Wait for a result in the thread that wants it: so it comes soonest.

        Returns when it is there or the time is up, and earlier when others see to it: ask for the result
        itself then. Whoever does not call this calls `listen`, or results come somewhat late.
        """
        ...

    def listen(self) -> None:
        """Have results come from now on though nobody is in `wait`, as long as any are expected."""
        ...

    def forget(self, execution_id: str, pending: Pending) -> None:
        """Wait no longer for this result."""
        ...

    def cancel(self, execution_id: str, reason: str) -> None:
        """Ask that the call is not begun, or stops; returns once the wish is recorded."""
        ...

    def state(self, execution_id: str) -> CallState:
        """Tell where the call is."""
        ...

    def serves(self, node: str) -> bool:
        """Tell whether a live worker serves the node; may be a moment old when true, never when false."""
        ...

    def workers(self) -> list[WorkerInfo]:
        """List the live workers, by name."""
        ...

    def queues(self, nodes: Sequence[str]) -> list[QueueInfo]:
        """Count what waits for these nodes, in their order."""
        ...

    def close(self) -> None:
        """Let go of connections and threads; what is still pending fails with RuntimeClosed."""
        ...
