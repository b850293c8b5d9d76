"""One owner at a time: locks on files, which end with the process that holds them, however it ends."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ditto_tasks.embedded.errors import CannotStart

__all__ = ["make_folder", "owned", "try_lock"]

_LOCK = "up.lock"
_PATIENCE = 0.5  # seconds; an `up` that was killed lets go of the lock within a moment


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Be the only one to run servers and workers with this folder, for the length of the block.

    Raises:
        CannotStart: another process is, or the folder cannot be written to.
    """
    make_folder(folder)
    path = folder / _LOCK
    try:
        file = path.open("a+")
    except OSError as error:
        raise _unwritable(path, error) from None
    with file:
        if not try_lock(file, _PATIENCE):
            file.seek(0)
            raise CannotStart(
                f"`ditto-tasks up` runs in {folder.parent} already, as process {file.read().strip() or '?'}: "
                "use that one, or stop it first"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def try_lock(file: IO[str], patience: float) -> bool:
    """Lock an open file, trying for some seconds; False when another process goes on holding it."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def make_folder(folder: Path) -> None:
    """Make a folder that only its owner can look into.

    Raises:
        CannotStart: it cannot be made.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(path: Path, error: OSError) -> CannotStart:
    return CannotStart(
        f"{path} cannot be written ({error.strerror}): make it writable, "
        "or set DITTO_RUNTIME_WORKSPACE to a folder that is"
    )
