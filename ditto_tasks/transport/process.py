"""The process that we are in, known without asking the system each time."""

import os

__all__ = ["own_pid"]

_pid = os.getpid()


def own_pid() -> int:
    """Return the process's id; what was opened under another one is of the process that forked us."""
    return _pid


def _note_fork() -> None:
    global _pid
    _pid = os.getpid()


if hasattr(os, "register_at_fork"):  # where there is no fork, nothing need be noted
    os.register_at_fork(after_in_child=_note_fork)
