"""What can go wrong: errors that a caller gets, and errors that a node answers with.

Each has a stable `code` for programs and a message for people, and survives pickling.
"""

from typing import ClassVar

__all__ = [
    "BrokerUnavailable",
    "ConfigError",
    "ContextError",
    "DeadlineExceeded",
    "DittoError",
    "InvalidDefinition",
    "InvalidPayload",
    "InvocationCancelled",
    "InvocationTimeout",
    "MemoryNodeError",
    "NoWorkerAvailable",
    "NodeError",
    "NodeFailed",
    "PayloadTooLarge",
    "QueueFull",
    "RetrievalError",
    "RuntimeClosed",
    "StoreUnavailable",
]


class DittoError(Exception):
    """Base of all that a caller gets raised; a call that ended as a NodeResult raises none of them."""

    code: ClassVar[str] = "DITTO_ERROR"


class ConfigError(DittoError):
    """A setting is wrong; the message names file, key and remedy, never a value from the environment."""

    code = "CONFIG_INVALID"


class InvalidDefinition(DittoError, ValueError):
    """A worker, store or other object was put together wrongly; raised where it is built."""

    code = "INVALID_DEFINITION"


class InvalidPayload(DittoError, ValueError):
    """The input has no JSON form, so it cannot be queued; nothing was sent."""

    code = "INVALID_PAYLOAD"


class PayloadTooLarge(DittoError):
    """The encoded message is over `transport.maxBodyBytes`; nothing was sent."""

    code = "PAYLOAD_TOO_LARGE"


class NoWorkerAvailable(DittoError):
    """No live worker serves the node, or all of this process are at their limit; the call never ran."""

    code = "NO_WORKER_AVAILABLE"


class QueueFull(DittoError):
    """The node's queue holds `transport.maxPending` calls already; nothing was sent."""

    code = "QUEUE_FULL"


class BrokerUnavailable(DittoError):
    """The broker or the result backend did not answer in time.

    A call that was being sent may have been accepted all the same: ask for its execution id once the broker
    is back.
    """

    code = "BROKER_UNAVAILABLE"


class InvocationTimeout(DittoError):
    """No result came within the time given; the call's outcome is unknown to this caller.

    Attributes:
        started: True when a worker had begun to run it, False when it was still queued, None when unknown.
    """

    code = "INVOCATION_TIMEOUT"

    def __init__(self, message: str, started: bool | None = None) -> None:
        super().__init__(message, started)
        self.message = message
        self.started = started

    def __str__(self) -> str:
        return self.message


class InvocationCancelled(DittoError):
    """The call's cancel token was set."""

    code = "INVOCATION_CANCELLED"


class DeadlineExceeded(DittoError):
    """A node noticed that its call's time is used up; the caller sees a result with the status timeout."""

    code = "DEADLINE_EXCEEDED"


class RuntimeClosed(DittoError):
    """The runtime is closed or closing and takes no new call."""

    code = "RUNTIME_CLOSED"


class StoreUnavailable(DittoError):
    """A store cannot be opened; the message names what was to be opened and the remedy, no credential."""

    code = "STORE_UNAVAILABLE"


class NodeFailed(DittoError):
    """A NodeResult that was unwrapped did not hold a success; `code` is the node's own.

    Attributes:
        status: failed, cancelled or timeout.
        message: the public message of the result.
    """

    def __init__(self, code: str, status: str, message: str) -> None:
        super().__init__(code, status, message)
        self.code = code  # type: ignore[misc]  # of this one failure, where other errors have one of their class
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class NodeError(Exception):
    """Raised by a provider or a handler to fail with a code of its own; other exceptions are hidden.

    Args:
        code: what programs branch on, in upper case.
        message: public: no address, statement or credential.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class MemoryNodeError(NodeError):
    """What a memory store or memory search fails with."""


class RetrievalError(NodeError):
    """What a retrieval provider fails with."""


class ContextError(NodeError):
    """What a context node or store fails with."""
