"""`ditto-tasks ingest`: files into memory, and into the index of vectors."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic.alias_generators import to_camel

from ditto_tasks.cli.invoke import connected
from ditto_tasks.cli.options import as_json, config_file
from ditto_tasks.cli.output import print_json
from ditto_tasks.contracts.errors import InvalidPayload
from ditto_tasks.ingest import Document, read_documents

if TYPE_CHECKING:
    from ditto_tasks.cli.ingestion import Counts
    from ditto_tasks.runtime import Runtime

__all__ = ["describe_counts", "ingest", "ingest_paths"]


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
        print_json({to_camel(name): count for name, count in asdict(counts).items()})
    else:
        click.echo(describe_counts(counts))


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
    kept = (
        f"{counts.new} new, {counts.changed} changed, {counts.unchanged} unchanged, "
        f"{counts.removed} removed, from {counts.files} files ({counts.skipped} skipped)"
    )
    if not counts.is_indexed:
        return f"{kept}; none embedded: no live worker serves REINDEX.PAGE (`ditto-tasks worker reindex`)"
    refused = f", {counts.unembedded} refused by the model" if counts.unembedded else ""
    return f"{kept}; {counts.embedded} embedded{refused}"


def _read(path: Path, base: Path) -> Iterator[Document | None]:
    try:
        path.stat()
        yield from read_documents(path, base)
    except OSError as error:
        raise InvalidPayload(
            f"{error.filename or path} cannot be read ({error.strerror}): name a file or a folder that can"
        ) from None
