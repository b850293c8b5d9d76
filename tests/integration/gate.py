"""A gate at which nodes of the tests wait until their test opens it: a file."""

import time
from pathlib import Path

__all__ = ["wait_at"]

_WAIT = 60.0  # seconds; a bound on what a test opens at once


def wait_at(gate: str) -> None:
    """Wait until the file is there."""
    ends = time.monotonic() + _WAIT
    while not Path(gate).exists():
        if time.monotonic() > ends:
            raise TimeoutError(f"nobody opened {gate}")
        time.sleep(0.01)
