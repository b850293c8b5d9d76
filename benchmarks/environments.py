"""Virtual environments of the benchmarks' own, for what we are measured against and do not depend on."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ROOT", "Failed", "environment_of"]

ROOT = Path(__file__).parents[1]
_ENVIRONMENTS = ROOT / ".ditto-benchmarks"


class Failed(Exception):
    """Something that cannot be measured: it could not be installed, or does not do its work."""


def environment_of(name: str, requirements: Sequence[str], *, may_install: bool) -> Path | None:
    """Return the Python that has the requirements, its virtual environment made if need be.

    Returns:
        None: it would have to be installed, and must not be.

    Raises:
        Failed: it cannot be installed.
    """
    folder = _ENVIRONMENTS / name
    python, done = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(requirements)
    if done.exists() and done.read_text() == wanted:
        return python
    if not may_install:
        return None
    print(f"installing {', '.join(requirements)}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    _ENVIRONMENTS.mkdir(exist_ok=True)
    (_ENVIRONMENTS / ".gitignore").write_text("*\n")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, *requirements]):
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            words = answer.stderr.strip().splitlines() or ["no word why"]
            raise Failed(f"{name} cannot be installed: {words[-1]}")
    done.write_text(wanted)
    return python
