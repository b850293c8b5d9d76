"""When a schedule is due: from a rule to its slots. Pure functions of their arguments.

All instants, slots among them, are aware datetimes in UTC.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Protocol, Self
from zoneinfo import ZoneInfo

__all__ = ["EPOCH", "Cron", "Every", "Rule", "slots_between"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_NONE = timedelta()
_REMEMBERED = 4096  # answers; beat asks the same again with every tick


class Rule(Protocol):
    """Says when; its text names it, for people and for what is kept about it. Hashable."""

    def next(self, after: datetime) -> datetime:
        """Return the first slot later than `after`."""
        ...

    def last(self, after: datetime, until: datetime) -> datetime | None:
        """Return the last slot later than `after` and not later than `until`; None: there is none."""
        ...


def slots_between(rule: Rule, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the slots later than `after` and not later than `until`, in order."""
    slot = rule.next(after)
    while slot <= until:
        yield slot
        slot = rule.next(slot)


@dataclass(frozen=True, slots=True)
class Every:
    """Each whole multiple of the interval since the epoch, so that all who count agree."""

    interval: timedelta

    @classmethod
    def seconds(cls, seconds: float) -> Self:
        """Make the rule for an interval of at least a microsecond."""
        return cls(timedelta(seconds=seconds))

    def next(self, after: datetime) -> datetime:
        return EPOCH + ((after - EPOCH) // self.interval + 1) * self.interval

    def last(self, after: datetime, until: datetime) -> datetime | None:
        slot = EPOCH + (until - EPOCH) // self.interval * self.interval
        return slot if slot > after else None

    def __str__(self) -> str:
        return f"every {self.interval.total_seconds():.15g} s"


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields in a time zone. A local time matches when all five do.

    Where the clock is put forward, the matching local times that it skips are one slot together: the first
    instant after the gap. Where it is put back, a matching local time that comes twice is a slot each time
    if the rule goes by the hour, which is: in every hour of the day, or several times in an hour. Any other
    names times of the day, and gets the first of the two.
    """

    text: str
    zone: ZoneInfo
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> Self:
        """Read the five fields as Celery's crontab does.

        Raises:
            ValueError: they are no cron expression; says why.
            ZoneInfoNotFoundError: there is no such zone.
        """
        from celery.exceptions import CeleryError  # loads half of Celery, which most processes need not
        from celery.schedules import ParseException, crontab

        try:
            fields = crontab.from_string(text)
        except (ParseException, CeleryError) as error:
            raise ValueError(str(error)) from None
        return cls(
            text,
            ZoneInfo(zone),
            tuple(sorted(fields.minute)),
            tuple(sorted(fields.hour)),
            frozenset(fields.day_of_month),
            frozenset(fields.month_of_year),
            frozenset(fields.day_of_week),
        )

    @property
    def goes_by_the_hour(self) -> bool:
        """Whether a local time that comes twice is a slot each time."""
        return len(self.hours) == 24 or len(self.minutes) > 1

    def next(self, after: datetime) -> datetime:
        return _next(self, after.replace(microsecond=0))  # slots are whole seconds

    def last(self, after: datetime, until: datetime) -> datetime | None:
        if self.next(after) > until:
            return None
        width = _HOUR
        while True:
            start = max(after, until - width)
            if slots := list(slots_between(self, start, until)):
                return slots[-1]
            width *= 8

    def __str__(self) -> str:
        return f"{self.text} {self.zone.key}"


@lru_cache(_REMEMBERED)
def _next(rule: Cron, after: datetime) -> datetime:
    while (slot := _first(rule, after, after + _DAY)) is None:
        after += (
            _DAY  # at most 40 years: a 29th of February that is a Monday; a day that never comes is refused
        )
    return slot


def _first(rule: Cron, after: datetime, until: datetime) -> datetime | None:
    """Find the first slot in a span, its end included, in which the clock is changed once at most."""
    old, new = _offset(rule, after), _offset(rule, until)
    if old == new:
        return _first_at(rule, after, until, old)
    shift = _shift(rule, after, until)
    if slot := _first_at(rule, after, shift - _SECOND, old):
        return slot
    if _is_skipped(rule, _local(shift, old), _local(shift, new)):
        return shift
    return _first_at(rule, shift - _SECOND, until, new)


def _first_at(rule: Cron, after: datetime, until: datetime, offset: timedelta) -> datetime | None:
    """Find the first slot in a span, its end included, in which local time is so far ahead of UTC."""
    start = _local(after, offset).replace(second=0) + _MINUTE
    for local in _matches(rule, start, _local(until, offset)):
        slot = (local - offset).replace(tzinfo=UTC)
        if rule.goes_by_the_hour or not slot.astimezone(rule.zone).fold:
            return slot
    return None


def _is_skipped(rule: Cron, start: datetime, end: datetime) -> bool:
    """Tell whether a local time matches that is skipped between these two; the end is not."""
    return any(True for _ in _matches(rule, start, end - _SECOND))


def _matches(rule: Cron, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the local times that match, without a zone, in order, both ends included."""
    day = start.date()
    while day <= end.date():
        if _is_day(rule, day):
            for hour in rule.hours:
                if day > start.date() or hour >= start.hour:
                    times = (datetime.combine(day, time(hour, minute)) for minute in rule.minutes)
                    yield from (local for local in times if start <= local <= end)
        day += _DAY


def _is_day(rule: Cron, day: date) -> bool:
    return day.day in rule.days and day.month in rule.months and day.isoweekday() % 7 in rule.weekdays


def _shift(rule: Cron, after: datetime, until: datetime) -> datetime:
    """Find the first second after which the clock goes as it does at the end."""
    old = _offset(rule, after)
    while until - after > _SECOND:
        middle = after + (until - after) // _SECOND // 2 * _SECOND
        if _offset(rule, middle) == old:
            after = middle
        else:
            until = middle
    return until


def _offset(rule: Cron, instant: datetime) -> timedelta:
    """Say how far local time is ahead of UTC."""
    return instant.astimezone(rule.zone).utcoffset() or _NONE


def _local(instant: datetime, offset: timedelta) -> datetime:
    return instant.replace(tzinfo=None) + offset
