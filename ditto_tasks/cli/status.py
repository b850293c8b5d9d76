"""`ditto-tasks status`: the queues, the workers, and what they serve."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ditto_tasks.cli.options import as_json, config_file, read_config
from ditto_tasks.cli.output import print_json, print_table
from ditto_tasks.contracts.catalog import NODE_SPECS

if TYPE_CHECKING:
    from ditto_tasks.transport.port import Transport

__all__ = ["print_status", "status"]


@click.command()
@as_json
@config_file
def status(is_json: bool, config_path: Path | None) -> None:
    """Show what waits in the queues, which workers live, and what they serve.

    \b
    Example:
      ditto-tasks status --json | jq '.queues[] | select(.waiting > 0)'
    """
    from ditto_tasks.transport.client import CeleryTransport

    transport = CeleryTransport(read_config(config_path))
    try:
        print_status(transport, is_json=is_json)
    finally:
        transport.close()


def print_status(transport: "Transport", *, is_json: bool = False) -> None:
    """Print queues, workers and capabilities."""
    overview = _overview(transport)
    if is_json:
        print_json(overview)
        return
    print_table(
        "Queues",
        ("queue", "node", "waiting", "workers"),
        [(row["name"], row["node"], row["waiting"], row["workers"]) for row in overview["queues"]],
    )
    print_table(
        "Workers",
        ("worker", "capabilities", "concurrency"),
        [(row["id"], row["type"], row["concurrency"]) for row in overview["workers"]],
    )


def _overview(transport: "Transport") -> dict[str, Any]:
    workers = transport.workers()
    served = [node for worker in workers for node in worker.nodes]
    queues = transport.queues(list(dict.fromkeys([*NODE_SPECS, *served])))
    return {
        "queues": [
            {
                "name": queue.name,
                "node": queue.node,
                "waiting": queue.waiting,
                "workers": served.count(queue.node),
            }
            for queue in queues
        ],
        "workers": [
            {
                "id": worker.id,
                "type": worker.type,
                "nodes": list(worker.nodes),
                "concurrency": worker.concurrency,
            }
            for worker in workers
        ],
        "capabilities": sorted({node.partition(".")[0] for node in served}),
    }
