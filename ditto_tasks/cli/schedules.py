"""`ditto-tasks schedules`: what beat sends, when it did last, and when it will next."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from ditto_tasks.cli.options import as_json, config_file, read_config
from ditto_tasks.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from ditto_tasks.config import DittoConfig, Schedule
    from ditto_tasks.transport.client import CeleryTransport

__all__ = ["schedules"]


@click.command()
@as_json
@config_file
def schedules(is_json: bool, config_path: Path | None) -> None:
    """Show the schedules of the configuration file: the slot sent last, what became of it, and the next.

    \b
    Example:
      ditto-tasks schedules --json | jq '.schedules[] | select(.lastStatus == "failed")'
    """
    from ditto_tasks.transport.client import CeleryTransport

    config = read_config(config_path)
    transport = CeleryTransport(config)
    try:
        overview = _overview(transport, config)
    finally:
        transport.close()
    if is_json:
        print_json(overview)
        return
    print_table(
        "Schedules",
        ("schedule", "task", "when", "last slot", "status", "next slot"),
        [_row(*pair) for pair in zip(config.schedules, overview["schedules"], strict=True)],
    )
    say(f"{overview['beat']} sends them" if overview["beat"] else "no beat runs: celery -A beat.app beat")


def _overview(transport: "CeleryTransport", config: "DittoConfig") -> dict[str, Any]:
    from ditto_tasks.transport.slots import Place, Slot

    now = datetime.now(UTC)
    prefix = config.transport.prefix
    beat, last = transport.slots.sent([Place(one.name, one.rule) for one in config.schedules])
    rows = []
    for schedule, slot in zip(config.schedules, last, strict=True):
        id = slot and Slot(schedule.name, slot).execution_id(prefix)
        rows.append(
            {
                "name": schedule.name,
                "task": schedule.task,
                "rule": str(schedule.rule),
                "lastSlot": slot and slot.isoformat(),
                "lastExecutionId": id,
                "lastStatus": id and transport.state(id),
                "nextSlot": schedule.rule.next(now).isoformat(),
            }
        )
    return {"beat": beat, "schedules": rows}


def _row(schedule: "Schedule", row: dict[str, Any]) -> tuple[str, ...]:
    last, next = (_local(row[key], schedule.timezone) for key in ("lastSlot", "nextSlot"))
    return row["name"], row["task"], row["rule"], last, row["lastStatus"] or "", next


def _local(slot: str | None, zone: str) -> str:
    """Write a slot as the clocks of the schedule's zone show it."""
    return datetime.fromisoformat(slot).astimezone(ZoneInfo(zone)).isoformat(" ") if slot else ""
