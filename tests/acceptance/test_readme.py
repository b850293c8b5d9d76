"""The README's examples, as they stand there."""

import re
import subprocess
import sys

from tests.acceptance.conftest import COMMAND_TIME, Shell
from tests.conftest import ROOT

EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def run(shell: Shell, example: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=shell.folder,
        env=shell.environ,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIME,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_call_works_again_and_again(running: Shell) -> None:
    for _ in range(2):
        first, hit = run(running, EXAMPLES[0]).splitlines()
        assert first.startswith("success ")
        assert hit.endswith("The moon has no atmosphere.")


def test_the_call_without_a_broker_works(shell: Shell) -> None:
    assert run(shell, EXAMPLES[1]) == "{'items': []}\n"
