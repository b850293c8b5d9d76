"""`ditto-tasks invoke`, `result` and `cancel`: one call and what becomes of it."""

import difflib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditto_tasks.cli.errors import FAILED
from ditto_tasks.cli.options import as_json, config_file, read_config, timeout
from ditto_tasks.cli.output import print_json, print_result
from ditto_tasks.contracts.catalog import NODE_SPECS
from ditto_tasks.contracts.errors import InvalidPayload
from ditto_tasks.contracts.json_value import NotJson, decode_json
from ditto_tasks.contracts.node import NodeResult

if TYPE_CHECKING:
    from ditto_tasks.runtime import Runtime

__all__ = ["cancel", "connected", "invoke", "result"]


@click.command()
@click.argument("node")
@click.argument("input_source", metavar="JSON|@FILE|-")
@timeout
@config_file
def invoke(node: str, input_source: str, timeout: float | None, config_path: Path | None) -> None:
    """Call a node and print its NodeResult as JSON.

    The input is JSON, the name of a file after an @, or - for standard input.

    \b
    Examples:
      ditto-tasks invoke MEMORY.SEARCH '{"query": "late acks", "limit": 3}'
      echo '{"memories": [{"content": "a note"}]}' | ditto-tasks invoke MEMORY.WRITE -
    """
    input = _read_input(input_source)
    with connected(config_path) as runtime:
        if node not in NODE_SPECS:
            _refuse_unknown(node, {served for worker in runtime.workers() for served in worker.nodes})
        _finish(runtime.invoke(node, input, timeout=timeout))


@click.command()
@click.argument("execution_id", metavar="ID")
@click.option(
    "--wait", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="For a call that runs yet."
)
@config_file
def result(execution_id: str, wait: float, config_path: Path | None) -> None:
    """Print the NodeResult of a call that was made anywhere, while it is kept.

    \b
    Example:
      ditto-tasks result 3f1f0c1e-2a0b-4c7e-9a53-0d6f6f0c8a11 --wait 10
    """
    with connected(config_path) as runtime:
        _finish(runtime.invocation(execution_id).result(wait))


@click.command()
@click.argument("execution_id", metavar="ID")
@click.option(
    "--reason", default="cancelled from the command line", show_default=True, help="Kept in the result."
)
@as_json
@config_file
def cancel(execution_id: str, reason: str, is_json: bool, config_path: Path | None) -> None:
    """Ask that a call is not begun, or stops.

    What it has committed stays; a call that has ended keeps its result.

    \b
    Example:
      ditto-tasks cancel 3f1f0c1e-2a0b-4c7e-9a53-0d6f6f0c8a11
    """
    with connected(config_path) as runtime:
        invocation = runtime.invocation(execution_id)
        invocation.cancel(reason)
        state = invocation.status()
    if is_json:
        print_json({"executionId": execution_id, "state": state})
    else:
        click.echo(f"{execution_id} is {state}; it was asked to stop")


@contextmanager
def connected(config_path: Path | None) -> "Iterator[Runtime]":
    """Lend a runtime that is connected to the broker."""
    from ditto_tasks.runtime import Runtime
    from ditto_tasks.transport.client import CeleryTransport

    config = read_config(config_path)
    with Runtime(config, transport=CeleryTransport(config)) as runtime:
        yield runtime


def _read_input(source: str) -> Any:
    try:
        return decode_json(_read(source))
    except NotJson as error:
        raise InvalidPayload(
            f"the input is {error}; put JSON in single quotes, such as '{{\"limit\": 3}}'"
        ) from None


def _read(source: str) -> bytes | str:
    if source == "-":
        return sys.stdin.buffer.read()
    if not source.startswith("@"):
        return source
    try:
        return Path(source[1:]).read_bytes()
    except OSError as error:
        raise InvalidPayload(f"{source[1:]} cannot be read ({error.strerror}): name a file of JSON") from None


def _refuse_unknown(node: str, served: set[str]) -> None:
    if node in served:
        return
    known = sorted(served.union(NODE_SPECS))
    close = difflib.get_close_matches(node.upper(), known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    raise click.BadParameter(f"no node is called {node}: {remedy}", param_hint="NODE")


def _finish(result: NodeResult) -> None:
    print_result(result)
    if result.status != "success":
        sys.exit(FAILED)
