"""The runtime: what an app holds to call nodes, here in the process or over the queue."""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args

from pydantic import ValidationError

from ditto_tasks.contracts.base import describe
from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED, Cancellation, CancelToken, either
from ditto_tasks.contracts.catalog import NODE_SPECS
from ditto_tasks.contracts.errors import (
    DittoError,
    InvalidDefinition,
    InvalidPayload,
    InvocationCancelled,
    NoWorkerAvailable,
    RuntimeClosed,
)
from ditto_tasks.contracts.json_value import NotJson, strict_json
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.embedded.state import with_embedded_broker
from ditto_tasks.invocation import Invocation
from ditto_tasks.local import LocalWorkers, WorkerHandle, WorkerInfo
from ditto_tasks.nodes.boundary import new_execution_id
from ditto_tasks.queues import check_node_name
from ditto_tasks.transport.port import OutgoingCall, Priority, Submitted, Transport
from ditto_tasks.worker import Replica, Worker

if TYPE_CHECKING:
    from ditto_tasks.config import DittoConfig

__all__ = ["Runtime"]

_LONGEST_KEY = 256  # characters
_PRIORITIES = get_args(Priority)
_GIVEN_UP = "the task that awaited the call was cancelled"


@dataclass(frozen=True, slots=True)
class _Options:
    """What a caller may say of one call beside its node, its input and its time."""

    priority: Priority = "normal"
    idempotency_key: str | None = None
    concurrency_key: str | None = None

    def __post_init__(self) -> None:
        if self.priority not in _PRIORITIES:
            raise InvalidDefinition(f"priority is {self.priority!r}: use one of {', '.join(_PRIORITIES)}")
        for name in ("idempotency_key", "concurrency_key"):
            key = getattr(self, name)
            if key is not None and not _is_key(key):
                raise InvalidDefinition(
                    f"{name} is {key!r:.80}: it must be a string of 1 to {_LONGEST_KEY} characters of Unicode"
                )

    def call(self, execution_id: str, node: str, input: Any, expires_at: float | None) -> OutgoingCall:
        """Make what is sent."""
        return OutgoingCall(
            execution_id, node, input, expires_at, self.priority, self.idempotency_key, self.concurrency_key
        )


def _is_key(key: object) -> bool:
    """Tell whether this may be a key; half a surrogate pair cannot be sent."""
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
        return False
    return not any("\ud800" <= character <= "\udfff" for character in key)


_PLAIN = _Options()


def _options(
    priority: Priority, idempotency_key: str | None = None, concurrency_key: str | None = None
) -> _Options:
    """Check and hold what a caller says; most say nothing.

    Raises:
        InvalidDefinition: the priority or a key is none.
    """
    if priority == "normal" and idempotency_key is None and concurrency_key is None:
        return _PLAIN
    return _Options(priority, idempotency_key, concurrency_key)


class Runtime:
    """Calls nodes: by a worker of this process that serves them and has room, else over the queue.

    Usable from many threads. Close it, or use it as a context manager.

    Args:
        config: None: the defaults; nothing is read from files or the environment.
        workers: registered at once, each with an id made up for it.
        transport: carries calls to other processes; None: there are none. Closed with the runtime.
    """

    def __init__(
        self,
        config: "DittoConfig | None" = None,
        *,
        workers: Iterable[Worker] = (),
        transport: Transport | None = None,
    ) -> None:
        self._config = config or _defaults()
        self._transport = transport
        self._local = LocalWorkers(self._config)
        self._gate = _Gate()
        self._handles: list[WorkerHandle] = []
        try:
            for worker in workers:
                self.register(worker)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_config(
        cls,
        path: str | Path | None = "ditto.yaml",
        environ: Mapping[str, str] | None = None,
        *,
        workers: Iterable[Worker] = (),
    ) -> Self:
        """Make a runtime that is connected to the broker, or to that of a running `ditto-tasks up`.

        Args:
            path: the configuration file; None: the defaults.
            environ: where addresses are looked up; None: the environment.
            workers: as for `Runtime`.

        Raises:
            ConfigError: the file or the environment is wrong, or names no broker.
        """
        from ditto_tasks.config import load_config
        from ditto_tasks.transport.client import CeleryTransport  # Celery is for those who queue

        config = with_embedded_broker(load_config(path, environ))
        return cls(config, workers=workers, transport=CeleryTransport(config))

    @property
    def config(self) -> "DittoConfig":
        """The configuration that this runtime was made with."""
        return self._config

    def register(self, worker: Worker, id: str | None = None) -> WorkerHandle:
        """Open a worker in this process.

        Raises:
            InvalidDefinition: the id is blank or taken.
            RuntimeClosed: the runtime is closed.
        """
        with self._gate:
            handle = self._local.register(worker, id)
            self._handles.append(handle)
            return handle

    def workers(self) -> list[WorkerInfo]:
        """List the workers of this process, then those that announce themselves to the broker."""
        return self._local.list() + (self._transport.workers() if self._transport else [])

    def invoke(
        self,
        node: str,
        input: Any,
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
        concurrency_key: str | None = None,
        worker_id: str | None = None,
    ) -> NodeResult:
        """Run one node and wait for its result.

        Args:
            node: for example `MEMORY.SEARCH`.
            input: a dict in wire form, or the node's input contract.
            timeout: seconds for the whole call, queue included; None: `runtime.timeoutMs`.
            cancel: ends the wait, and the call as far as its node cooperates.
            priority: high, normal or low; among the queued calls of this node.
            idempotency_key: calls of the node with the same key are one execution with one result, however
            often
                and from wherever they are sent, for `transport.idempotencyExpires`. Such a call is always
                queued, since only the broker can remember it.
            concurrency_key: a tenant, say: `workers.<type>.keyConcurrency` limits the calls with the same
            key. worker_id: only this worker of this process may run it.

        Raises:
            NoWorkerAvailable: nobody serves the node, or all here are full and there is no queue.
            InvalidDefinition: the timeout, the priority or a key is none.
            InvocationCancelled: the token was set before the result was there.
            InvocationTimeout: no result came in time.
            BrokerUnavailable, QueueFull, PayloadTooLarge, InvalidPayload: it could not be sent.
            RuntimeClosed: the runtime is closed.
        """
        with self._gate:
            options = _options(priority, idempotency_key, concurrency_key)
            token = cancel or NEVER_CANCELLED
            return self._invoke(node, input, self._deadline(timeout), token, options, worker_id)

    async def ainvoke(
        self,
        node: str,
        input: Any,
        *,
        timeout: float | None = None,
        cancel: CancelToken | None = None,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
        concurrency_key: str | None = None,
    ) -> NodeResult:
        """Run one node without blocking the event loop; as `invoke`. Cancelling the task cancels the call."""
        import asyncio

        given_up = Cancellation()
        with either(cancel or NEVER_CANCELLED, given_up) as token:
            try:
                options = _options(priority, idempotency_key, concurrency_key)
                deadline = self._deadline(timeout)
                if idempotency_key is None and self._local.serves(node):
                    return await asyncio.to_thread(self._invoke_open, node, input, deadline, token, options)
                return await self._await(node, input, deadline, token, options)
            except asyncio.CancelledError:
                given_up.cancel(_GIVEN_UP)
                raise

    def submit(
        self,
        node: str,
        input: Any,
        *,
        timeout: float | None = None,
        priority: Priority = "normal",
        idempotency_key: str | None = None,
        concurrency_key: str | None = None,
    ) -> Invocation:
        """Queue one call, whether or not a worker is there yet, and return its handle at once.

        Args:
            node: for example `MEMORY.WRITE`.
            input: a dict in wire form, or the node's input contract. One that breaks the contract is not
                sent: the handle has its failed result.
            timeout: seconds after which no worker begins it any more; None: it waits as long as it takes.
            priority, idempotency_key, concurrency_key: as for `invoke`.

        Raises:
            NoWorkerAvailable: this runtime has no broker.
            InvalidDefinition: the timeout, the priority or a key is none.
            BrokerUnavailable, QueueFull, PayloadTooLarge, InvalidPayload: it could not be sent.
            RuntimeClosed: the runtime is closed.
        """
        options = _options(priority, idempotency_key, concurrency_key)
        return self._submit_all(node, [input], timeout, options)[0]

    def map(
        self,
        node: str,
        inputs: Iterable[Any],
        *,
        timeout: float | None = None,
        priority: Priority = "normal",
        concurrency_key: str | None = None,
    ) -> Iterator[NodeResult]:
        """Queue many calls of one node in one go, and yield their results in the order of the inputs.

        All are sent before this returns; `timeout` is for all of them together.

        Raises:
            As `submit`, and while iterating InvocationTimeout, when the next result does not come in time.
        """
        deadline = self._deadline(timeout)
        options = _options(priority, None, concurrency_key)
        invocations = self._submit_all(node, list(inputs), timeout, options)
        return (invocation.result(max(0.0, deadline - time.monotonic())) for invocation in invocations)

    def invocation(self, id: str) -> Invocation:
        """Find a call again by its execution id, from any process, while its result is kept.

        Raises:
            NoWorkerAvailable: this runtime has no broker.
            BrokerUnavailable: the result backend does not answer.
        """
        transport = self._queue_for("a call by its id")
        with self._gate:
            sent = Submitted(id, transport.watch(id))
            return self._handle("", sent, transport, self._config.runtime.timeout)

    def execute(self, node: str, input: Any, call: Call) -> NodeResult:
        """Run a node of this process for a call that came from elsewhere and was given a slot there.

        Raises:
            NoWorkerAvailable: no worker of this process implements it.
        """
        replica = self._local.find(node)
        if replica is None:
            raise NoWorkerAvailable(f"no worker of this process implements {node}")
        return self._run(replica, node, input, call)

    def close(self) -> None:
        """Take no new calls, wait for those that run, then dispose of workers and transport; once.

        Raises:
            ExceptionGroup: what the workers' `dispose` raised; all of them were called.
        """
        if not self._gate.close():
            return
        errors = [error for handle in self._handles if (error := _closed(handle))]
        if self._transport is not None:
            self._transport.close()
        if errors:
            raise ExceptionGroup("worker cleanup failed", errors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _invoke_open(
        self, node: str, input: Any, deadline: float, cancel: CancelToken, options: "_Options"
    ) -> NodeResult:
        with self._gate:
            return self._invoke(node, input, deadline, cancel, options)

    def _invoke(
        self,
        node: str,
        input: Any,
        deadline: float,
        cancel: CancelToken,
        options: "_Options",
        worker_id: str | None = None,
    ) -> NodeResult:
        check_node_name(node)
        cancel.raise_if_cancelled()
        if options.idempotency_key is not None:
            return self._wait(self._send_served(node, input, deadline, options), deadline, cancel)
        with self._local.claim(node, worker_id) as replica:
            if replica is not None:
                call = Call(new_execution_id(), cancel, deadline)
                result = self._run(replica, node, _local_input(node, input), call)
                cancel.raise_if_cancelled()
                return result
        if worker_id is not None:
            raise NoWorkerAvailable(f"the worker {worker_id!r} cannot take {node} now")
        return self._wait(self._send_served(node, input, deadline, options), deadline, cancel)

    def _run(self, replica: Replica, node: str, input: Any, call: Call) -> NodeResult:
        bound = Call(call.execution_id, call.cancel, call.deadline, _BoundRuntime(self, call))
        return replica.execute(node, input, bound)

    def _send_served(self, node: str, input: Any, deadline: float, options: "_Options") -> Invocation:
        """Queue a call if a live worker serves its node: fail now rather than when the time is up."""
        transport = self._queue_for(node)
        if not transport.serves(node):
            raise NoWorkerAvailable(
                f"no live worker serves {node}: start one, for example with `ditto-tasks worker`, "
                "or submit the call, to let it wait"
            )
        return self._send(node, [input], deadline, transport, options)[0]

    def _wait(self, invocation: Invocation, deadline: float, cancel: CancelToken) -> NodeResult:
        with _ends_with(cancel, invocation):
            try:
                return invocation.result(max(0.0, deadline - time.monotonic()))
            except InvocationCancelled as cancelled:
                invocation.cancel(str(cancelled))
                raise
            finally:
                invocation.forget()

    async def _await(
        self, node: str, input: Any, deadline: float, cancel: CancelToken, options: "_Options"
    ) -> NodeResult:
        import asyncio

        with self._gate:
            cancel.raise_if_cancelled()
            send = asyncio.to_thread(self._send_served, node, input, deadline, options)
            sending = asyncio.ensure_future(send)
            try:
                invocation = await asyncio.shield(sending)
            except asyncio.CancelledError:
                with suppress(DittoError):  # it was not sent, or cannot be called back
                    await asyncio.to_thread((await sending).cancel, _GIVEN_UP)
                raise
            with _ends_with(cancel, invocation):
                try:
                    return await invocation
                except InvocationCancelled as cancelled:
                    await asyncio.to_thread(invocation.cancel, str(cancelled))
                    raise
                except asyncio.CancelledError:
                    await asyncio.shield(asyncio.to_thread(invocation.cancel, _GIVEN_UP))
                    raise
                finally:
                    invocation.forget()

    def _submit_all(
        self, node: str, inputs: Sequence[Any], timeout: float | None, options: "_Options"
    ) -> list[Invocation]:
        transport = self._queue_for(node)
        deadline = None if timeout is None else self._deadline(timeout)
        with self._gate:
            return self._send(node, inputs, deadline, transport, options)

    def _send(
        self,
        node: str,
        inputs: Sequence[Any],
        deadline: float | None,
        transport: Transport,
        options: "_Options",
    ) -> list[Invocation]:
        check_node_name(node)
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        expires_at = None if remaining is None else time.time() + remaining
        timeout = self._config.runtime.timeout if remaining is None else remaining
        prepared = [_outgoing(node, input, expires_at, options) for input in inputs]
        calls = [call for call in prepared if isinstance(call, OutgoingCall)]
        submitted = iter(transport.submit(calls) if calls else ())
        return [
            self._handle(node, next(submitted), transport, timeout)
            if isinstance(call, OutgoingCall)
            else Invocation.ended(call)
            for call in prepared
        ]

    def _handle(self, node: str, sent: Submitted, transport: Transport, timeout: float) -> Invocation:
        return Invocation(sent.execution_id, node, sent.pending, transport=transport, timeout=timeout)

    def _queue_for(self, what: str) -> Transport:
        if self._transport is None:
            raise NoWorkerAvailable(
                f"no worker of this process can take {what}, and there is no broker: "
                "register a worker, or connect with Runtime.from_config"
            )
        return self._transport

    def _deadline(self, timeout: float | None) -> float:
        seconds = self._config.runtime.timeout if timeout is None else timeout
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not 0 < seconds <= threading.TIMEOUT_MAX:
            raise InvalidDefinition(f"timeout is {timeout!r}: it must be a positive number of seconds")
        return time.monotonic() + seconds


def _closed(handle: WorkerHandle) -> Exception | None:
    """Close one worker; returns what its `dispose` raised."""
    try:
        handle.close()
    except Exception as error:
        return error
    return None


class _Gate:
    """Lets calls in until it is closed, and knows when the last one has left."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler of signals may close the runtime within it
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._is_open = True

    def __enter__(self) -> None:
        """Be inside for the block; calls made by those inside get in while the gate closes."""
        with self._lock:
            if not self._is_open:
                raise RuntimeClosed("the runtime is closed: make a new one")
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._is_open:
                self._changed.notify_all()

    def close(self) -> bool:
        """Let nobody in any more and wait until all have left; False when it was closed before."""
        with self._changed:
            was_open, self._is_open = self._is_open, False
            self._changed.wait_for(lambda: self._inside == 0)
            return was_open


class _BoundRuntime:
    """The runtime for one call's nested calls: they end when it is cancelled, and with its deadline."""

    def __init__(self, runtime: Runtime, call: Call) -> None:
        self._runtime = runtime
        self._call = call

    def invoke(
        self, node: str, input: Any, *, timeout: float | None = None, cancel: CancelToken | None = None
    ) -> NodeResult:
        self._call.check()
        own = self._runtime._deadline(timeout)
        outer = self._call.deadline
        deadline = own if outer is None else outer if timeout is None else min(own, outer)
        if cancel is None:
            return self._runtime._invoke(node, input, deadline, self._call.cancel, _PLAIN)
        with either(self._call.cancel, cancel) as token:
            return self._runtime._invoke(node, input, deadline, token, _PLAIN)

    def submit(self, node: str, input: Any, *, idempotency_key: str | None = None) -> Invocation:
        """Queue one call, which outlives this one; as `Runtime.submit`, also while the runtime closes."""
        self._call.check()
        transport = self._runtime._queue_for(node)
        options = _options("normal", idempotency_key)
        return self._runtime._send(node, [input], None, transport, options)[0]

    def workers(self) -> list[WorkerInfo]:
        """List the workers; as `Runtime.workers`."""
        return self._runtime.workers()


@contextmanager
def _ends_with(cancel: CancelToken, invocation: Invocation) -> Iterator[None]:
    """Within the block, let the token end the wait for the invocation's result."""

    forget = cancel.on_cancel(lambda: invocation.end(InvocationCancelled(cancel.reason)))
    try:
        yield
    finally:
        forget()


def _defaults() -> "DittoConfig":
    from ditto_tasks.config import DittoConfig

    return DittoConfig()


def _outgoing(
    node: str, input: Any, expires_at: float | None, options: _Options
) -> OutgoingCall | NodeResult:
    """Make what is sent; an input that breaks the node's contract gives the result that the node would."""
    execution_id = new_execution_id()
    spec = NODE_SPECS.get(node)
    if spec is None:
        return options.call(execution_id, node, _json(input), expires_at)
    try:
        request = spec.input.from_wire(input)
    except ValidationError as error:
        return NodeResult.failure(execution_id, node, spec.invalid_input, describe(error))
    return options.call(execution_id, node, request.to_wire(), expires_at)


def _local_input(node: str, input: Any) -> Any:
    """Give a node of an application what the queue would give it; ours check their input themselves."""
    return input if node in NODE_SPECS else _json(input)


def _json(input: Any) -> Any:
    try:
        return strict_json(input)
    except NotJson as error:
        raise InvalidPayload(f"{error}; the call was not sent") from None
