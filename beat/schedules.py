"""The `schedules` of ditto.yaml as entries of Celery's beat; pure functions."""

from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, schedule

from ditto_tasks.config import DittoConfig, Schedule
from ditto_tasks.transport.app import node_queue

__all__ = ["ZonedCrontab", "beat_entries"]

_HIDDEN = "(...)"  # shown for arguments in events and logs: content does not belong there


class ZonedCrontab(crontab):
    """Five cron fields in a time zone of their own, where Celery's are all in the app's.

    A time that the clock skips comes as much later as the clock was put forward; a time that comes twice is
    taken the first time only.
    """

    def __init__(self, cron: str, zone: str) -> None:
        minute, hour, day_of_month, month_of_year, day_of_week = cron.split()
        super().__init__(minute, hour, day_of_week, day_of_month, month_of_year)
        self._cron = cron
        self._zone = ZoneInfo(zone)

    @property
    def tz(self) -> tzinfo:
        return self._zone

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ZonedCrontab):
            return NotImplemented
        return (self._cron, self._zone.key) == (other._cron, other._zone.key)

    def __hash__(self) -> int:
        return hash((self._cron, self._zone.key))

    def __reduce__(self) -> tuple[Any, ...]:  # beat keeps its entries in a file
        return ZonedCrontab, (self._cron, self._zone.key)


def beat_entries(config: DittoConfig) -> dict[str, dict[str, Any]]:
    """Make the value of Celery's `beat_schedule`: one entry a schedule, under its name."""
    return {entry.name: _entry(config, entry) for entry in config.schedules}


def _entry(config: DittoConfig, entry: Schedule) -> dict[str, Any]:
    return {
        "task": entry.task,
        "args": (entry.input,),
        "schedule": _rhythm(entry),
        "options": {"queue": node_queue(config, entry.task), "argsrepr": _HIDDEN, "kwargsrepr": "{}"},
    }


def _rhythm(entry: Schedule) -> BaseSchedule:
    if entry.cron is not None:
        return ZonedCrontab(entry.cron, entry.timezone)
    return schedule(entry.every)
