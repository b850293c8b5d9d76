"""`ditto-tasks dead`: the calls that were given up, to look at, send again, or throw away."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditto_tasks.cli.errors import NoDeadCall
from ditto_tasks.cli.options import as_json, config_file, read_config
from ditto_tasks.cli.output import print_json, print_table

if TYPE_CHECKING:
    from ditto_tasks.runtime import Runtime
    from ditto_tasks.transport.dead import DeadCall, DeadLetters

__all__ = ["dead"]

_SOME_OR_ALL = "name an execution id, or say --all"


@click.group()
def dead() -> None:
    """Look after the calls that were given up, since every process that ran them died.

    \b
    Examples:
      ditto-tasks dead list
      ditto-tasks dead requeue --all
    """


@dead.command("list")
@as_json
@config_file
def list_(is_json: bool, config_path: Path | None) -> None:
    """List them, the newest first.

    \b
    Example:
      ditto-tasks dead list --json | jq -r '.[].executionId'
    """
    with _opened(config_path) as (_, letters):
        calls = letters.list()
    if is_json:
        print_json([_wire(call) for call in calls])
        return
    print_table(
        "Given up",
        ("execution id", "node", "when"),
        [(call.execution_id, call.node, _when(call)) for call in calls],
    )


@dead.command()
@click.argument("execution_id", metavar="ID")
@as_json
@config_file
def show(execution_id: str, is_json: bool, config_path: Path | None) -> None:
    """Show one of them with its input.

    \b
    Example:
      ditto-tasks dead show 3f1f0c1e-2a0b-4c7e-9a53-0d6f6f0c8a11 --json | jq .input
    """
    with _opened(config_path) as (_, letters):
        [call] = _chosen(letters, execution_id, is_all=False)
    if is_json:
        print_json(_wire(call))
        return
    click.echo(f"{call.node} {call.execution_id}, given up at {_when(call)}, called with")
    print_json(call.input)


@dead.command()
@click.argument("execution_id", metavar="[ID]", required=False)
@click.option("--all", "is_all", is_flag=True, help="All that are listed.")
@as_json
@config_file
def requeue(execution_id: str | None, is_all: bool, is_json: bool, config_path: Path | None) -> None:
    """Call the same node with the same input again, and take the call off the list.

    It is a new call, with an execution id of its own, which is printed; it waits as long as it takes. It is
    sent before the old one is taken off: a failure in between leaves a call that may be requeued twice.

    \b
    Examples:
      ditto-tasks dead requeue 3f1f0c1e-2a0b-4c7e-9a53-0d6f6f0c8a11
      ditto-tasks dead requeue --all --json
    """
    with _opened(config_path) as (runtime, letters):
        for call in _chosen(letters, execution_id, is_all=is_all):
            again = runtime.submit(call.node, call.input)
            _take_off(letters, call)
            if is_json:
                print_json({"executionId": again.id, "node": call.node, "requeued": call.execution_id})
            else:
                click.echo(f"{call.execution_id} was sent again as {again.id}")


@dead.command()
@click.argument("execution_id", metavar="[ID]", required=False)
@click.option("--all", "is_all", is_flag=True, help="All that are listed.")
@as_json
@config_file
def drop(execution_id: str | None, is_all: bool, is_json: bool, config_path: Path | None) -> None:
    """Take a call off the list for good; its result stays.

    \b
    Examples:
      ditto-tasks dead drop 3f1f0c1e-2a0b-4c7e-9a53-0d6f6f0c8a11
      ditto-tasks dead drop --all
    """
    with _opened(config_path) as (_, letters):
        for call in _chosen(letters, execution_id, is_all=is_all):
            _take_off(letters, call)
            if is_json:
                print_json({"dropped": call.execution_id, "node": call.node})
            else:
                click.echo(f"{call.execution_id} was dropped")


@contextmanager
def _opened(config_path: Path | None) -> "Iterator[tuple[Runtime, DeadLetters]]":
    """Lend a runtime that is connected to the broker, and the dead letters there."""
    from ditto_tasks.runtime import Runtime
    from ditto_tasks.transport.client import CeleryTransport
    from ditto_tasks.transport.connection import broker_errors

    config = read_config(config_path)
    transport = CeleryTransport(config)
    with Runtime(config, transport=transport) as runtime, broker_errors("reading the dead letters"):
        yield runtime, transport.dead_letters


def _chosen(letters: "DeadLetters", execution_id: str | None, *, is_all: bool) -> "list[DeadCall]":
    """Choose the calls that were named, each once: one that was given up twice is on the list twice."""
    if is_all is (execution_id is not None):
        raise click.UsageError(_SOME_OR_ALL)
    calls = {call.execution_id: call for call in letters.list()}
    if is_all:
        return list(calls.values())
    if execution_id not in calls:
        raise NoDeadCall(f"no call {execution_id} was given up: see `ditto-tasks dead list`")
    return [calls[execution_id]]


def _take_off(letters: "DeadLetters", call: "DeadCall") -> None:
    while letters.remove(call.execution_id) is not None:
        pass


def _when(call: "DeadCall") -> str:
    return datetime.fromtimestamp(call.given_up_at, UTC).isoformat(" ", "seconds")


def _wire(call: "DeadCall") -> dict[str, Any]:
    return {
        "executionId": call.execution_id,
        "node": call.node,
        "input": call.input,
        "givenUpAt": call.given_up_at,
    }
