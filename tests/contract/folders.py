"""Folders for engines that write through to the disk for every single record."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IN_MEMORY = "/dev/shm"  # Linux keeps what is there in memory


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Give a folder for one test: in memory where the system has such a place."""
    place = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="ditto-") as folder:
        yield Path(folder)
