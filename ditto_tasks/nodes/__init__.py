"""What the nodes do, over ports: no queue, no broker, no driver. Apps may call it directly, workers do."""

from ditto_tasks.nodes.memory import Memory
from ditto_tasks.nodes.retrieval import Retrieval

__all__ = ["Memory", "Retrieval"]
