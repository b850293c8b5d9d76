"""What `import ditto_tasks` takes in a fresh process, beside `import celery`.

`python -m benchmarks.imports [--quick] [--json FILE]`; takes a few seconds.
"""

import argparse
import subprocess
import sys

from benchmarks.report import Row, finish, medians

MORE = 0.35  # seconds over celery


def measure(rounds: int) -> list[Row]:
    """Start a process an import; the start of the interpreter is in both figures."""
    ours, reference = medians(
        rounds, lambda _: _started("import ditto_tasks"), lambda _: _started("import celery")
    )
    return [Row("import ditto_tasks, beside celery", ours, reference, MORE, "s", measure="difference")]


def _started(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)  # a timeout would poll, every 50 ms


def main() -> int:
    parser = argparse.ArgumentParser(description="importing ditto_tasks beside importing celery")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    options = parser.parse_args()
    return finish(measure(5 if options.quick else 20), options.json)


if __name__ == "__main__":
    raise SystemExit(main())
