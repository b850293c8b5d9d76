"""`ditto-tasks index`: whether an index is what its store is."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ditto_tasks.cli.errors import FAILED
from ditto_tasks.cli.invoke import connected
from ditto_tasks.cli.options import as_json, config_file
from ditto_tasks.cli.output import print_json, print_table

__all__ = ["index"]

_TIMEOUT = 600.0  # seconds; store and index are read whole


@click.group()
def index() -> None:
    """Look after indexes of vectors.

    \b
    Example:
      ditto-tasks index check memories
    """


@index.command()
@click.argument("target")
@click.option("--repair", is_flag=True, help="Bring up those entries that differ, and no others.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="For the whole call, queue included.",
)
@as_json
@config_file
def check(target: str, repair: bool, timeout: float, is_json: bool, config_path: Path | None) -> None:
    """Compare the index of a target with its store; both are read whole.

    Prints the ids of the first records that are missing, stale or orphaned, 20 of each kind, counts those of
    the wrong generation, whose vectors another model made than the configured one, and changes nothing unless
    told to. Exit status 1 when they differ, or some cannot be repaired. The wrong generation is repaired by
    building another.

    \b
    Example:
      ditto-tasks index check memories --repair
    """
    with connected(config_path) as runtime:
        input = {"target": target, "repair": repair}
        found = runtime.invoke("REINDEX.CHECK", input, timeout=timeout).unwrap()
    if is_json:
        print_json(found)
    else:
        _print_found(found)
    if _is_wrong(found):
        sys.exit(FAILED)


def _is_wrong(found: Mapping[str, Any]) -> bool:
    """Tell whether anything differs still."""
    if "repaired" in found:
        return bool(found["repaired"]["failed"])
    return any(found["drift"].values()) or bool(found["wrongGeneration"])


def _print_found(found: Mapping[str, Any]) -> None:
    rows = [(kind, id) for kind in found["drift"] for id in found[kind]]
    if rows:
        print_table(f"{found['target']}: what differs", ("how", "record"), rows)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in found["drift"].items())
    click.echo(f"{found['target']}: {found['records']:,} records; {counts}")
    if found["wrongGeneration"]:
        remedy = f": build its own by `ditto-tasks reindex {found['target']} --mode full`"
        click.echo(
            f"{found['wrongGeneration']:,} entries of generation {found['generation']} are of another model "
            f"than the configured one{'' if 'repaired' in found else remedy}"
        )
    if "repaired" in found:
        done = found["repaired"]
        failed = f"{len(done['failed'])} failed"
        click.echo(f"repaired: {done['embedded']:,} embedded, {done['removed']:,} removed, {failed}")
