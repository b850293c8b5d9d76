"""`ditto-tasks ingest` and `search`: files into memory, and found again."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditto_tasks.cli.invoke import connected
from ditto_tasks.cli.options import as_json, config_file, timeout
from ditto_tasks.cli.output import print_json, print_table
from ditto_tasks.contracts.base import MAX_LIMIT
from ditto_tasks.contracts.errors import InvalidPayload
from ditto_tasks.ingest import Document, read_documents

if TYPE_CHECKING:
    from ditto_tasks.cli.ingestion import Counts
    from ditto_tasks.runtime import Runtime

__all__ = ["ingest", "ingest_paths", "print_hits", "search"]

_SHOWN = 160  # characters of a hit in a table


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@as_json
@config_file
def ingest(paths: tuple[Path, ...], is_json: bool, config_path: Path | None) -> None:
    """Keep text and Markdown files as records: new, changed and shortened files alike.

    Each file is split at headings and paragraphs. A second run changes nothing unless a file has changed.
    Records of files that are gone stay.

    \b
    Example:
      ditto-tasks ingest docs README.md
    """
    with connected(config_path) as runtime:
        counts = ingest_paths(runtime, paths, runtime.config.workspace)
    if is_json:
        print_json(asdict(counts))
    else:
        click.echo(describe_counts(counts))


@click.command()
@click.argument("query")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), help="Most hits; by default the worker's limit.")
@timeout
@as_json
@config_file
def search(
    query: str, limit: int | None, timeout: float | None, is_json: bool, config_path: Path | None
) -> None:
    """Find records by relevance.

    \b
    Example:
      ditto-tasks search "how is a call cancelled" --limit 3
    """
    with connected(config_path) as runtime:
        input = {"query": query} | ({} if limit is None else {"limit": limit})
        hits = runtime.invoke("MEMORY.SEARCH", input, timeout=timeout).unwrap()
    if is_json:
        print_json(hits)
    else:
        print_hits(query, hits)


def ingest_paths(runtime: "Runtime", paths: tuple[Path, ...], base: Path) -> "Counts":
    """Ingest files and folders, with a progress bar on standard error where that is a terminal.

    Raises:
        InvalidPayload: a path cannot be read.
        DittoError: a call failed, or could not be made.
    """
    from rich.console import Console
    from rich.progress import Progress

    from ditto_tasks.cli.ingestion import ingest_documents

    documents = [document for path in paths for document in _read(path, base)]
    total = sum(len(document.passages) for document in documents if document)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("passages", total=total)
        return ingest_documents(runtime, documents, lambda done: progress.advance(task, done))


def describe_counts(counts: "Counts") -> str:
    """Say in a line what an ingestion did."""
    return (
        f"{counts.new} new, {counts.changed} changed, {counts.unchanged} unchanged, "
        f"{counts.removed} removed, from {counts.files} files ({counts.skipped} skipped)"
    )


def print_hits(title: str, hits: list[Any]) -> None:
    """Print hits as a table."""
    print_table(title, ("score", "where", "text"), [_row(hit) for hit in hits])
    if not hits:
        click.echo("nothing found")


def _read(path: Path, base: Path) -> Iterator[Document | None]:
    try:
        path.stat()
        yield from read_documents(path, base)
    except OSError as error:
        raise InvalidPayload(
            f"{error.filename or path} cannot be read ({error.strerror}): name a file or a folder that can"
        ) from None


def _row(hit: Any) -> tuple[str, str, str]:
    memory = hit["memory"]
    metadata = memory.get("metadata") or {}
    where = metadata.get("path") or memory.get("key") or memory["id"]
    if metadata.get("heading"):
        where += f"\n{metadata['heading']}"
    content = memory["content"] if isinstance(memory["content"], str) else str(memory["content"])
    text = " ".join(content.split())
    score = f"{hit['score']:.3g}" if "score" in hit else ""
    return score, where, text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
