"""ditto-tasks: agent nodes as Celery tasks.

An app calls a node, the call becomes a task on the queue of that capability, and one `NodeResult` comes back.
Importing this package reads no file and no environment, connects to nothing, and loads no driver.
"""

from typing import TYPE_CHECKING, Any

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED, Cancellation, CancelToken
from ditto_tasks.contracts.catalog import NODE_SPECS
from ditto_tasks.contracts.errors import (
    BrokerUnavailable,
    ConfigError,
    DittoError,
    InvalidDefinition,
    InvalidPayload,
    InvocationCancelled,
    InvocationTimeout,
    MemoryNodeError,
    NodeError,
    NodeFailed,
    NoWorkerAvailable,
    PayloadTooLarge,
    QueueFull,
    RetrievalError,
    RuntimeClosed,
)
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.invocation import Invocation
from ditto_tasks.runtime import Runtime
from ditto_tasks.worker import Limits, Worker, WorkerContext

if TYPE_CHECKING:
    from ditto_tasks.config import DittoConfig, load_config
else:

    def __getattr__(name: str) -> Any:
        """Load the configuration when it is asked for: its models are half of what there is to load."""
        if name in ("DittoConfig", "load_config"):
            from ditto_tasks import config

            return getattr(config, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [  # noqa: RUF022  # grouped: this is the table of contents
    # calling nodes
    "Runtime",
    "Invocation",
    "NodeResult",
    "Cancellation",
    "CancelToken",
    "NEVER_CANCELLED",
    # serving nodes
    "Worker",
    "WorkerContext",
    "Limits",
    "Call",
    "NODE_SPECS",
    # configuration
    "DittoConfig",
    "load_config",
    # errors a caller gets
    "DittoError",
    "BrokerUnavailable",
    "ConfigError",
    "InvalidDefinition",
    "InvalidPayload",
    "InvocationCancelled",
    "InvocationTimeout",
    "NoWorkerAvailable",
    "NodeFailed",
    "PayloadTooLarge",
    "QueueFull",
    "RuntimeClosed",
    # errors a node fails with
    "NodeError",
    "MemoryNodeError",
    "RetrievalError",
]
