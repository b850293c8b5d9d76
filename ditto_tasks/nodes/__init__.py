"""What the nodes do, over ports: no queue, no broker, no driver. Apps may call it directly, workers do."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Memory", "Retrieval"]

if TYPE_CHECKING:
    from ditto_tasks.nodes.memory import Memory
    from ditto_tasks.nodes.retrieval import Retrieval
else:

    def __getattr__(name: str) -> Any:
        """Load a family of nodes when it is asked for: who only sends calls needs none."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(f"{__name__}.{name.lower()}")
        return getattr(module, name)
