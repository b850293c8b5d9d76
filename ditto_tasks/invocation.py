"""The handle of one call: wait for its result, ask where it is, cancel it."""

import time
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from ditto_tasks.contracts.errors import InvocationTimeout
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.transport.pending import Pending
from ditto_tasks.transport.port import CallState, Transport

__all__ = ["Invocation"]

_CANCEL_REASON = "cancelled by the caller"


class Invocation:
    """One call that was submitted; made by `Runtime.submit` and `Runtime.invocation`.

    Attributes:
        id: the execution id.
        node: the node's name; empty when the call was found again by its id.
    """

    def __init__(
        self,
        id: str,
        node: str,
        pending: Pending,
        *,
        transport: Transport | None,
        timeout: float,
    ) -> None:
        self.id = id
        self.node = node
        self._pending = pending
        self._transport = transport
        self._timeout = timeout

    @classmethod
    def ended(cls, result: NodeResult) -> "Invocation":
        """Make the handle of a call that never needed a queue: its result is there."""
        pending = Pending()
        pending.end(result)
        return cls(result.execution_id, result.node, pending, transport=None, timeout=0.0)

    @property
    def future(self) -> "Future[NodeResult]":
        """The future of the result: for callbacks, and for waiting for several calls at once."""
        if self._transport is not None and not self._pending.done():
            self._transport.listen()
        return self._pending.future()

    def end(self, error: Exception) -> None:
        """Have whoever waits for the result get this error; without effect once the result is there."""
        self._pending.end(error)

    def result(self, timeout: float | None = None) -> NodeResult:
        """Wait for the result; may be called again, also after a timeout.

        Args:
            timeout: seconds; None: what the call was submitted with, or `runtime.timeoutMs`.

        Raises:
            InvocationTimeout: it did not come in time.
            BrokerUnavailable: it did not come in time, and the result backend does not answer.
            RuntimeClosed: the runtime was closed.
        """
        limit = self._timeout if timeout is None else timeout
        ends = time.monotonic() + limit
        if self._transport is not None:
            self._transport.wait(self._pending, limit)
        try:
            return self._named(self._pending.result(max(0.0, ends - time.monotonic())))
        except TimeoutError:
            raise self._timed_out(limit) from None

    def __await__(self) -> Generator[Any, None, NodeResult]:
        """Wait on the event loop, as long as `result()` would."""
        return self._wait().__await__()

    def cancel(self, reason: str = _CANCEL_REASON) -> None:
        """Ask that the call is not begun, or stops; its result then has the status cancelled.

        A call that has ended keeps its result; what a node has committed stays.

        Raises:
            BrokerUnavailable: the wish could not be recorded.
        """
        if self._transport is not None:
            self._transport.cancel(self.id, reason)

    def status(self) -> CallState:
        """Tell where the call is: pending, running, or how it ended.

        Raises:
            BrokerUnavailable: the result backend does not answer.
        """
        if self._transport is None:
            return self._pending.result(0).status
        return self._transport.state(self.id)

    def forget(self) -> None:
        """Wait for the result no longer; the call goes on."""
        if self._transport is not None:
            self._transport.forget(self.id, self._pending)

    async def _wait(self) -> NodeResult:
        import asyncio

        waiting = asyncio.wrap_future(self.future)
        done, _ = await asyncio.wait([waiting], timeout=self._timeout or None)
        if done:
            return self._named(waiting.result())
        raise await asyncio.to_thread(self._timed_out, self._timeout)

    def _named(self, result: NodeResult) -> NodeResult:
        """Fill in the node where Celery, and not the node, ended the task."""
        return result if result.node else result.model_copy(update={"node": self.node})

    def _timed_out(self, limit: float) -> InvocationTimeout:
        state = self.status()
        where = {"pending": "no worker has begun it", "running": "a worker runs it"}.get(
            state, "it has ended"
        )
        return InvocationTimeout(
            f"no result of {self.node or 'the call'} {self.id} within {limit:g} s: {where}; "
            "wait again with result(), or ask for it later by its id",
            started=state != "pending",
        )
