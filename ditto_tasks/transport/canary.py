"""Canaries: calls that only show that the workers of a capability answer; no part of the catalogue."""

__all__ = ["canary_node"]


def canary_node(capability: str) -> str:
    """Name the node through which the workers of a capability answer: DITTO.HEALTH.MEMORY for MEMORY.

    Each capability has its own, and so a queue of its own: the workers of one cannot answer for another's.
    """
    return f"DITTO.HEALTH.{capability}"
