"""Which queue a node's calls wait in: pure functions from node names to queue names."""

from collections.abc import Iterable, Mapping

from ditto_tasks.contracts.catalog import NODE_SPECS
from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.node import NODE_NAME

__all__ = ["DEFAULT_PREFIX", "capability_nodes", "check_node_name", "queue_name"]

DEFAULT_PREFIX = "ditto"


def check_node_name(node: str) -> str:
    """Return the name of a node if it is one.

    Raises:
        InvalidDefinition: it is not fully qualified: two or more dotted segments without white space.
    """
    if not isinstance(node, str) or not NODE_NAME.fullmatch(node):
        raise InvalidDefinition(
            f"{node!r:.80} is not a node: its name has two or more dotted segments, as MEMORY.GET has"
        )
    return node


def queue_name(node: str, *, prefix: str = DEFAULT_PREFIX, overrides: Mapping[str, str] | None = None) -> str:
    """Name the queue of a node: `ditto.memory.get` for MEMORY.GET, unless an override names another."""
    override = (overrides or {}).get(node)
    return override or f"{prefix}.{check_node_name(node).lower()}"


def capability_nodes(capabilities: Iterable[str]) -> list[str]:
    """List the nodes of the catalogue that belong to these capabilities, in the catalogue's order."""
    wanted = set(capabilities)
    return [name for name, spec in NODE_SPECS.items() if spec.capability in wanted]
