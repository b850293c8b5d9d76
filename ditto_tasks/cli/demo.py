"""`ditto-tasks demo`: broker, worker, ingestion and searches, once through and away again."""

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ditto_tasks
from ditto_tasks.cli.ingest import describe_counts, ingest_paths
from ditto_tasks.cli.output import print_result
from ditto_tasks.cli.search import print_candidates, print_explanation
from ditto_tasks.cli.status import print_status
from ditto_tasks.cli.up import started
from ditto_tasks.config import DittoConfig, find_config, load_config
from ditto_tasks.contracts.errors import InvalidPayload
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.contracts.reindex import RECORDS_TARGET

if TYPE_CHECKING:
    from ditto_tasks.runtime import Runtime

__all__ = ["demo"]

_QUERIES = ("a worker is killed", "how is a call cancelled", "where are the records kept")  # of our docs
_CALLS = 100  # timed one by one
_WORDS = 4  # of a passage make a query for texts that are not ours
_ADDRESSES = (
    "DITTO_BROKER_URL",
    "DITTO_RESULT_URL",
    "DITTO_WORKER_MEMORY_STORE_URL",
    "DITTO_WORKER_RETRIEVAL_INDEX_URL",
    "DITTO_WORKER_RETRIEVAL_EMBEDDING_BASE_URL",
    "DITTO_WORKER_RETRIEVAL_EMBEDDING_MODEL",
)


@click.command()
@click.argument("path", required=False, type=click.Path(path_type=Path, exists=True))
def demo(path: Path | None) -> None:
    """Ingest some documents through real workers, search them, and show what comes back.

    Takes the documents of this project, or PATH. Runs a broker and a worker of its own in a temporary folder
    and leaves nothing behind.

    \b
    Example:
      ditto-tasks demo ~/notes
    """
    paths, base = _documents(path)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that all is cleared away
    with tempfile.TemporaryDirectory(prefix="ditto-demo-") as folder:
        config = _own_config(folder)
        began = time.monotonic()
        with started(config, grace=5.0) as stack:
            _step(
                f"started {stack.broker} and a worker of each capability in {time.monotonic() - began:.1f} s"
            )
            _show(stack.config, paths, base)
    _step("stopped everything; to keep what you ingest: ditto-tasks up, then ditto-tasks ingest PATH")


def _documents(path: Path | None) -> tuple[tuple[Path, ...], Path]:
    if path is not None:
        return (path,), path if path.is_dir() else path.absolute().parent
    root = Path(ditto_tasks.__file__).parent.parent
    paths = (root / "docs", root / "README.md")
    if not all(own.exists() for own in paths):
        raise InvalidPayload(
            "this installation has no docs/: name a folder of yours, `ditto-tasks demo PATH`"
        )
    return paths, root


def _own_config(folder: str) -> DittoConfig:
    """Read the settings, but use no server and no store that they are used with otherwise."""
    environ = {name: value for name, value in os.environ.items() if name not in _ADDRESSES}
    return load_config(find_config(environ), {**environ, "DITTO_RUNTIME_WORKSPACE": folder})


def _show(config: DittoConfig, paths: tuple[Path, ...], base: Path) -> None:
    from ditto_tasks.runtime import Runtime
    from ditto_tasks.transport.client import CeleryTransport

    transport = CeleryTransport(config)
    with Runtime(config, transport=transport) as runtime:
        began = time.monotonic()
        counts = ingest_paths(runtime, paths, base)
        _step(f"ingested in {time.monotonic() - began:.1f} s: {describe_counts(counts)}")
        for query in _queries(runtime, is_own=len(paths) > 1):
            _show_search(runtime, query)
        _step("one NodeResult, as `ditto-tasks invoke` prints it")
        print_result(runtime.invoke("MEMORY.QUERY", {"limit": 1}))
        print_status(transport)
        _step(_timed(runtime))


def _queries(runtime: "Runtime", *, is_own: bool) -> tuple[str, ...]:
    """Choose what to search for: in texts that are not ours, the first words of some passages."""
    if is_own:
        return _QUERIES
    items = runtime.invoke("MEMORY.QUERY", {"limit": len(_QUERIES)}).unwrap()["items"]
    return tuple(" ".join(str(item["content"]).strip("# ").split()[:_WORDS]) for item in items)


def _show_search(runtime: "Runtime", query: str) -> None:
    """Print the same query by words, by meaning, and by both, with the reasons of the last."""
    _step(f"\nRETRIEVAL.SEARCH {query}")
    for strategy in ("keyword", "vector", "hybrid"):
        output = _search(runtime, query, strategy).unwrap()
        print_candidates(query, output)
    print_explanation(output)


def _search(runtime: "Runtime", query: str, strategy: str) -> NodeResult:
    input: dict[str, Any] = {
        "query": {"content": query},
        "target": {"name": RECORDS_TARGET},
        "strategy": strategy,
        "limit": 3,
    }
    if strategy == "hybrid":
        input["options"] = {"explain": True}
    return runtime.invoke("RETRIEVAL.SEARCH", input)


def _timed(runtime: "Runtime") -> str:
    times = []
    input: dict[str, Any] = {"keys": ["nothing"]}
    for _ in range(_CALLS):
        began = time.perf_counter()
        runtime.invoke("MEMORY.GET", input).unwrap()
        times.append((time.perf_counter() - began) * 1000)
    deciles = statistics.quantiles(times, n=10)
    return (
        f"time per call over the queue ({_CALLS} calls of MEMORY.GET, one after another): "
        f"median {statistics.median(times):.1f} ms, nine in ten within {deciles[-1]:.1f} ms"
    )


def _step(message: str) -> None:
    click.echo(message)
