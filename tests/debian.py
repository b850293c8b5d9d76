"""Servers that no wheel has: Debian's packages, installed where they are missing."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

__all__ = ["install_missing"]

_LOCK = Path(tempfile.gettempdir()) / "ditto-tests-install.lock"
_TIMEOUT = 300.0  # seconds


def install_missing(package: str, program: str, *, path: str | None = None) -> None:
    """Install a package unless its program is found; of several processes one does, and the others wait.

    Args:
        path: where the program is looked for; None: PATH.
    """
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which(program, path=path) is not None:
            return
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            pytest.fail(f"these tests need {program}: install the package {package}")
        command = ["apt-get", "install", "-y", "--no-install-recommends", package]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        if ended.returncode != 0:
            pytest.fail(f"`{' '.join(command)}` failed: {ended.stdout[-500:]}{ended.stderr[-500:]}")
