"""What keeps `ditto-tasks up` from starting, or from going on."""

from ditto_tasks.contracts.errors import DittoError

__all__ = ["CannotStart", "ProcessDied"]


class CannotStart(DittoError):
    """Server or folder cannot be had as asked; nothing was left running, and the message holds the remedy."""

    code = "CANNOT_START"


class ProcessDied(DittoError):
    """A process died before it was ready, or again and again; its own output says why."""

    code = "PROCESS_DIED"
