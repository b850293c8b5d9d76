"""`ditto-tasks health`: whether calls are taken, run and answered, tried with a call for each capability."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditto_tasks.cli.errors import Unhealthy
from ditto_tasks.cli.invoke import connected
from ditto_tasks.cli.options import as_json, config_file
from ditto_tasks.cli.output import print_json, print_table
from ditto_tasks.contracts.errors import InvocationTimeout

if TYPE_CHECKING:
    from ditto_tasks.invocation import Invocation
    from ditto_tasks.runtime import Runtime

__all__ = ["health"]

_TIMEOUT = 5.0  # seconds; an idle worker answers in milliseconds, one that has no slot free when it has


@click.command()
@click.argument("capabilities", metavar="[CAPABILITY...]", nargs=-1)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=_TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="In which every answer must be there.",
)
@as_json
@config_file
def health(capabilities: tuple[str, ...], timeout: float, is_json: bool, config_path: Path | None) -> None:
    """Send a call through the queue to each capability, and see that it is answered.

    Without names, to every capability that live workers serve. Exit status 3 when one does not answer in
    time, or no worker lives.

    \b
    Examples:
      ditto-tasks health
      ditto-tasks health memory --timeout 2 --json
    """
    with connected(config_path) as runtime:
        rows = _ask(runtime, capabilities, timeout)
    if is_json:
        print_json({"healthy": all(row["healthy"] for row in rows), "capabilities": rows})
    else:
        print_table(
            "Health",
            ("capability", "workers", "answer"),
            [(row["capability"], row["workers"], _answer(row)) for row in rows],
        )
    silent = ", ".join(row["capability"] for row in rows if not row["healthy"])
    if silent:
        raise Unhealthy(
            f"no answer from {silent} within {timeout:g} s: see with `ditto-tasks status` whether workers "
            "live, and whether calls wait since all are busy"
        )


def _ask(runtime: "Runtime", names: tuple[str, ...], timeout: float) -> list[dict[str, Any]]:
    """Send all canaries, then wait for each; a capability without a live worker is sent none."""
    from ditto_tasks.transport.canary import canary_node

    live = [{node.partition(".")[0] for node in worker.nodes} for worker in runtime.workers()]
    served = sorted(set().union(*live))
    known = {name.upper(): name for name in served}
    capabilities = [known.get(name.upper(), name) for name in names] or served
    if not capabilities:
        raise Unhealthy("no worker lives: start one, for example with `ditto-tasks worker memory`")
    started = time.monotonic()
    workers = {name: sum(name in of_worker for of_worker in live) for name in capabilities}
    sent = {
        name: runtime.submit(canary_node(name), {}, timeout=timeout) for name in capabilities if workers[name]
    }
    return [
        {"capability": name, "workers": workers[name], **_wait(sent.get(name), started, timeout)}
        for name in capabilities
    ]


def _wait(canary: "Invocation | None", started: float, timeout: float) -> dict[str, Any]:
    try:
        result = canary.result(max(0.0, started + timeout - time.monotonic())) if canary else None
    except InvocationTimeout:
        result = None
    if result is None or result.status != "success":
        return {"healthy": False, "worker": None, "seconds": None}
    return {
        "healthy": True,
        "worker": result.unwrap()["worker"],
        "seconds": round(time.monotonic() - started, 4),
    }


def _answer(row: dict[str, Any]) -> str:
    if row["healthy"]:
        return f"{row['worker']} in {row['seconds'] * 1000:.1f} ms"
    return "none" if row["workers"] else "no live worker"
