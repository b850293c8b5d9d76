"""`ditto-tasks reindex`: an index brought up to its store, watched, and stopped."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditto_tasks.cli.errors import NoRun
from ditto_tasks.cli.invoke import connected
from ditto_tasks.cli.options import as_json, config_file
from ditto_tasks.cli.output import print_json, print_table, say
from ditto_tasks.contracts.errors import InvocationTimeout

if TYPE_CHECKING:
    from ditto_tasks.config import DittoConfig
    from ditto_tasks.contracts.node import NodeResult
    from ditto_tasks.invocation import Invocation
    from ditto_tasks.transport.runs import Runs

__all__ = ["reindex"]

_LOOK = 0.5  # seconds between two looks; a run tells how it stands as often
_COUNTS = ("scanned", "embedded", "unchanged", "removed", "failedCount")
_RUN = "run"  # the command that is meant where none is named

_pause = threading.Event()  # never set


class _Targets(click.Group):
    """A group whose first argument may be a target, which is run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; what is no command's name is for `run`."""
        if args and args[0] not in {*self.commands, "--help"}:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Targets, options_metavar="", subcommand_metavar="TARGET | COMMAND [ARGS]...")
def reindex() -> None:
    """Bring the index of a target up to its store, or look after the run that does.

    \b
    Examples:
      ditto-tasks reindex memories
      ditto-tasks reindex memories --mode full --detach
      ditto-tasks reindex status memories --follow
      ditto-tasks reindex rollback memories
    """


@reindex.command(_RUN)
@click.argument("target")
@click.option(
    "--mode",
    type=click.Choice(["incremental", "full"]),
    default="incremental",
    show_default=True,
    help="What is embedded: records that have changed, or all, into an index beside the present one.",
)
@click.option("--detach", is_flag=True, help="Only send the call, and print its execution id.")
@as_json
@config_file
def run(target: str, mode: str, detach: bool, is_json: bool, config_path: Path | None) -> None:
    """Bring an index up, and show how far that is; interrupting the command leaves the run alone.

    A run that was interrupted is taken up where it was. While one goes on, another only makes it look once
    more.

    \b
    Example:
      ditto-tasks reindex memories --mode full
    """
    with connected(config_path) as runtime, _runs(runtime.config) as runs:
        invocation = runtime.submit("REINDEX.RUN", {"target": target, "mode": mode})
        if detach:
            _print_sent(invocation, is_json)
            return
        report = _watched(invocation, runs, target).unwrap()
    if is_json:
        print_json(report)
    elif report.get("covered"):
        click.echo(
            f"{target}: the run that goes on covers it: `ditto-tasks reindex status {target} --follow`"
        )
    else:
        _print_report(target, report)


@reindex.command()
@click.argument("target")
@as_json
@config_file
def rollback(target: str, is_json: bool, config_path: Path | None) -> None:
    """Search the generation again that was searched before, and bring that one up.

    There is one to go back to after a run with --mode full, or with another model, for
    `workers.reindex.keepPrevious` seconds. The one that is left is kept in its place. What it was made by is
    not built again until you ask for that by --mode full, or configure another model.

    \b
    Example:
      ditto-tasks reindex rollback memories
    """
    with connected(config_path) as runtime, _runs(runtime.config) as runs:
        invocation = runtime.submit("REINDEX.ROLLBACK", {"target": target})
        report = _watched(invocation, runs, target).unwrap()
    if is_json:
        print_json(report)
    else:
        _print_report(target, report)


@reindex.command()
@click.argument("target")
@click.option("--follow", is_flag=True, help="Show it until the run has ended, whoever began it.")
@as_json
@config_file
def status(target: str, follow: bool, is_json: bool, config_path: Path | None) -> None:
    """Show how the present run of a target stands, or how the last one ended.

    \b
    Example:
      ditto-tasks reindex status memories
    """
    with connected(config_path) as runtime, _runs(runtime.config) as runs:
        if follow:
            _follow(runs, target, lambda: not _paused_while_running(runs, target))
        told = _known(runs, target)
    if is_json:
        print_json(told)
    else:
        run = f"{told['state']}, {told['mode']}, generation {told['generation']}"
        click.echo(f"{target}: {run}, {_line(told)}, in {_seconds(told):.1f} s")
        _print_rest(told)


@reindex.command()
@click.argument("target")
@as_json
@config_file
def cancel(target: str, is_json: bool, config_path: Path | None) -> None:
    """Stop the run of a target after the pages at hand; the next one goes on from there.

    \b
    Example:
      ditto-tasks reindex cancel memories
    """
    with connected(config_path) as runtime, _runs(runtime.config) as runs:
        told = _known(runs, target)
        if told["state"] != "running":
            raise NoRun(f"no run of {target} goes on: the last one is {told['state']}")
        runtime.invocation(told["execution"]).cancel("cancelled from the command line")
    if is_json:
        print_json({"executionId": told["execution"]})
    else:
        click.echo(f"{target}: the run {told['execution']} was asked to stop")


@contextmanager
def _runs(config: "DittoConfig") -> "Iterator[Runs]":
    from ditto_tasks.transport.app import redis_url
    from ditto_tasks.transport.connection import connect
    from ditto_tasks.transport.keys import Keys
    from ditto_tasks.transport.runs import RedisRuns

    with connect(redis_url(config)) as client:
        kept = int(config.transport.idempotency_expires)
        yield RedisRuns(client, Keys(config.transport.prefix), kept=kept)


def _known(runs: "Runs", target: str) -> Mapping[str, Any]:
    told = runs.progress(target)
    if told is None:
        raise NoRun(f"nothing is known of a run of {target}: begin one with `ditto-tasks reindex {target}`")
    return told


def _watched(invocation: "Invocation", runs: "Runs", target: str) -> "NodeResult":
    def has_ended() -> bool:
        try:
            invocation.result(_LOOK)
        except InvocationTimeout:
            return False
        return True

    _follow(runs, target, has_ended)
    return invocation.result(0)


def _paused_while_running(runs: "Runs", target: str) -> bool:
    """Wait a moment if the run goes on; tells whether it does."""
    if _known(runs, target)["state"] != "running":
        return False
    _pause.wait(_LOOK)
    return True


def _follow(runs: "Runs", target: str, has_ended: Callable[[], bool]) -> None:
    """Show the progress of a target's run until it has ended, on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"{target}: waiting for a worker", total=None)
        while not has_ended():
            told = runs.progress(target)
            if told is not None and told["state"] == "running":
                bar.update(
                    task,
                    description=f"{target}: {_line(told)}, {_rate(told):,.0f} records/s",
                    completed=told["scanned"],
                    total=told["expected"] or None,
                )


def _line(told: Mapping[str, Any]) -> str:
    return ", ".join(f"{told[name]:,} {name.removesuffix('Count')}" for name in _COUNTS)


def _rate(told: Mapping[str, Any]) -> float:
    return float(told["scanned"]) / max(_seconds(told), 1e-3)


def _seconds(told: Mapping[str, Any]) -> float:
    return float(told["updatedAt"] - told["startedAt"])


def _print_report(target: str, report: Mapping[str, Any]) -> None:
    generation = f"generation {report['generation']}"
    click.echo(f"{target}: {generation}, {_line(report)}, in {report['seconds']:.1f} s")
    _print_rest(report)


def _print_sent(invocation: "Invocation", is_json: bool) -> None:
    if is_json:
        print_json({"executionId": invocation.id})
    else:
        click.echo(invocation.id)


def _print_rest(told: Mapping[str, Any]) -> None:
    if told["answered"]:
        say(f"{told['answered']:,} more runs were asked for while it went on, and are answered by it")
    if not told["failed"]:
        return
    rows = [(failure["id"], failure["reason"]) for failure in told["failed"]]
    print_table("Failed", ("record", "reason"), rows)
    if told["failedCount"] > len(rows):
        say(f"and {told['failedCount'] - len(rows):,} more")
