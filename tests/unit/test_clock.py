"""From rules to instants: intervals, cron fields, and what becomes of times that a clock skips or repeats."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise, product
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditto_tasks.clock import EPOCH, Cron, Every, Rule, slots_between

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def slots(cron: str, zone: str, day: str, days: int = 1) -> list[str]:
    """List the slots of whole UTC days, as 'day hour:minute'."""
    after = moment(day) - timedelta(seconds=1)
    found = slots_between(Cron.parse(cron, zone), after, after + days * DAY)
    return [f"{slot:%d %H:%M}" for slot in found]


@dataclass(frozen=True)
class Case:
    """A change of clocks, and a rule that is asked for its slots around it."""

    zone: str
    day: str
    cron: str
    by_the_hour: bool

    def __str__(self) -> str:
        return f"{self.zone} {self.day} {self.cron}"


SHIFTS = [
    ("America/Los_Angeles", "2026-03-08"),  # 02:00 becomes 03:00
    ("America/Los_Angeles", "2026-11-01"),  # 02:00 becomes 01:00
    ("Europe/Berlin", "2026-03-29"),  # 02:00 becomes 03:00
    ("Europe/Berlin", "2026-10-25"),  # 03:00 becomes 02:00
    ("Australia/Lord_Howe", "2026-10-04"),  # 02:00 becomes 02:30
    ("Australia/Lord_Howe", "2026-04-05"),  # 02:00 becomes 01:30
]
RULES = [
    ("30 2 * * *", False),
    ("30 1 * * *", False),
    ("0 2 * * *", False),
    ("0 3 * * sun", False),
    ("45 1,2 * * *", False),
    ("15 */2 1-15 * *", False),
    ("0 9 * * mon-fri", False),
    ("0 * * * *", True),
    ("30 * * * *", True),
    ("*/15 * * * *", True),
    ("*/20 1-3 * * *", True),
    ("* * * 3,4,10,11 *", True),
]
CASES = [Case(zone, day, cron, hourly) for (zone, day), (cron, hourly) in product(SHIFTS, RULES)]


@cache
def holds(field: str, value: int, names: tuple[str, ...] = ()) -> bool:
    """Tell whether a cron field of these tests holds a value."""
    for index, name in enumerate(names):
        field = field.replace(name, str(index))
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        first, last = (0, 59) if span == "*" else (int(low), int(high or low))
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False


def matches(cron: str, local: datetime) -> bool:
    minute, hour, day, month, weekday = cron.split()
    days = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
    return (
        holds(minute, local.minute)
        and holds(hour, local.hour)
        and holds(day, local.day)
        and holds(month, local.month)
        and holds(weekday, local.isoweekday() % 7, days)
    )


def walk(case: Case, after: datetime, until: datetime) -> Iterator[datetime]:
    """Go through the minutes of UTC and look at a wall clock: the slots as one would say them by hand."""
    zone = ZoneInfo(case.zone)
    before = after.astimezone(zone).replace(tzinfo=None)
    instant = after + MINUTE
    while instant <= until:
        local = instant.astimezone(zone)
        shown = local.replace(tzinfo=None)
        skipped = [before + step * MINUTE for step in range(1, (shown - before) // MINUTE)]
        is_repeated = local.fold == 1 and not case.by_the_hour
        if any(matches(case.cron, time) for time in skipped) or (
            matches(case.cron, shown) and not is_repeated
        ):
            yield instant
        before = shown
        instant += MINUTE


def test_there_are_72_cases_of_which_each_asks_for_something() -> None:
    assert len(CASES) == 72


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_slots_around_a_change_of_clocks_are_those_of_a_wall_clock(case: Case) -> None:
    after = moment(case.day) - 10 * HOUR  # Lord Howe is ahead of UTC
    until = after + 46 * HOUR

    assert list(slots_between(Cron.parse(case.cron, case.zone), after, until)) == list(
        walk(case, after, until)
    )


@pytest.mark.parametrize(
    ("cron", "day", "expected"),
    [
        ("30 2 * * *", "2026-03-08", ["08 10:00"]),  # skipped: at 03:00, the first instant after the gap
        ("30 1 * * *", "2026-03-08", ["08 09:30"]),
        ("30 2 * * *", "2026-11-01", ["01 10:30"]),
        ("30 1 * * *", "2026-11-01", ["01 08:30"]),  # comes twice: the first time
    ],
)
def test_a_daily_rule_has_one_slot_on_the_day_of_a_change(cron: str, day: str, expected: list[str]) -> None:
    assert slots(cron, "America/Los_Angeles", day) == expected


def test_times_of_one_gap_are_one_slot() -> None:
    assert slots("*/15 2 * * *", "Europe/Berlin", "2026-03-29") == ["29 01:00"]


def test_a_slot_of_the_gap_and_one_of_its_end_are_the_same() -> None:
    assert slots("0 2,3 * * *", "Europe/Berlin", "2026-03-29") == ["29 01:00"]


def test_an_hourly_rule_runs_in_both_of_the_repeated_hours() -> None:
    assert slots("30 * * * *", "Europe/Berlin", "2026-10-25")[:3] == ["25 00:30", "25 01:30", "25 02:30"]


def test_a_change_at_midnight_is_none_of_the_days_before() -> None:
    assert slots("30 0 * * *", "Africa/Cairo", "2025-04-24", days=2) == ["24 22:00", "25 21:30"]


def test_the_times_of_a_day_that_a_country_left_out_are_one_slot() -> None:
    assert slots("0 9 * * *", "Pacific/Apia", "2011-12-29", days=2) == ["29 19:00", "30 10:00", "30 19:00"]


@pytest.mark.parametrize(
    ("zone", "day", "expected"),
    [
        ("UTC", "2025-01-10", "10 09:00"),
        ("Asia/Shanghai", "2025-01-10", "10 01:00"),
        ("Asia/Kolkata", "2025-01-10", "10 03:30"),
        ("Europe/Berlin", "2025-01-10", "10 08:00"),  # winter
        ("Europe/Berlin", "2025-07-10", "10 07:00"),  # summer
        ("America/New_York", "2025-01-10", "10 14:00"),
        ("Pacific/Kiritimati", "2025-01-10", "10 19:00"),  # the day after, there
    ],
)
def test_nine_o_clock_is_nine_in_the_rules_own_zone(zone: str, day: str, expected: str) -> None:
    assert slots("0 9 * * *", zone, day) == [expected]


def test_days_are_those_of_the_zone() -> None:
    assert slots("30 0 * * mon", "Asia/Tokyo", "2025-01-10", days=7) == ["12 15:30"]  # a Sunday in UTC
    assert slots("30 0 1 * *", "Asia/Tokyo", "2025-01-10", days=30) == ["31 15:30"]


def test_all_fields_must_match() -> None:
    first_of_month_on_a_monday = Cron.parse("0 3 1 * mon")

    assert first_of_month_on_a_monday.next(moment("2026-01-01")) == moment("2026-06-01T03:00")


def test_a_leap_day_comes_after_years() -> None:
    assert Cron.parse("0 0 29 2 *").next(moment("2096-03-01")) == moment("2104-02-29")
    assert Cron.parse("0 0 29 2 mon").next(moment("2024-03-01")) == moment("2044-02-29")


@pytest.mark.parametrize("text", ["60 * * * *", "* * * *", "*/0 * * * *", "0 0 31 4,6 *", "a * * * *"])
def test_what_is_no_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Cron.parse(text)


def test_intervals_are_counted_from_the_epoch() -> None:
    assert Every.seconds(90).next(moment("1970-01-01T00:01:00")) == moment("1970-01-01T00:01:30")
    assert Every.seconds(90).next(moment("1970-01-01T00:01:30")) == moment("1970-01-01T00:03:00")


def test_an_interval_that_is_no_whole_second_does_not_drift() -> None:
    tenths = list(slots_between(Every.seconds(0.1), EPOCH + 40 * 365 * DAY, EPOCH + 40 * 365 * DAY + MINUTE))

    assert len(tenths) == 600
    assert tenths[-1] == EPOCH + 40 * 365 * DAY + MINUTE


def test_rules_have_a_text() -> None:
    assert str(Every.seconds(90)) == "every 90 s"
    assert str(Every.seconds(0.5)) == "every 0.5 s"
    assert str(Every.seconds(31_535_999)) == "every 31535999 s"
    assert str(Cron.parse("0 9 * * *", "Asia/Tokyo")) == "0 9 * * * Asia/Tokyo"


ZONES = ["UTC", "Asia/Kolkata", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Africa/Cairo"]
instants = st.datetimes(datetime(2024, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC))
crons = st.builds(
    "{} {} {} * {}".format,
    st.sampled_from(["0", "30", "59", "*/15", "5,35"]),
    st.sampled_from(["0", "2", "1,2", "23", "*", "*/3"]),
    st.sampled_from(["*", "1-15", "*/2"]),
    st.sampled_from(["*", "sun", "mon-fri"]),
)
rules: st.SearchStrategy[Rule] = st.one_of(
    st.builds(Cron.parse, crons, st.sampled_from(ZONES)),
    st.builds(Every.seconds, st.floats(0.01, 86_400)),
)


@given(rule=rules, after=instants)
def test_the_next_slot_is_later_and_nothing_lies_between(rule: Rule, after: datetime) -> None:
    slot = rule.next(after)

    assert slot > after
    between = after + (slot - after) / 2
    assert rule.next(between) == slot


@given(rule=rules, after=instants, hours=st.floats(0.1, 100))
def test_slots_increase_and_none_is_missed_or_doubled_wherever_one_stops(
    rule: Rule, after: datetime, hours: float
) -> None:
    until = after + hours * (HOUR if isinstance(rule, Cron) else timedelta(seconds=1))
    middle = after + (until - after) / 3

    whole = list(slots_between(rule, after, until))

    assert all(earlier < later for earlier, later in pairwise(whole))
    assert whole == [*slots_between(rule, after, middle), *slots_between(rule, middle, until)]
    assert rule.last(after, until) == (whole[-1] if whole else None)


@given(after=instants, zone=st.sampled_from(ZONES), hour=st.integers(4, 22), minute=st.integers(0, 59))
def test_away_from_changes_a_slot_is_at_its_time_of_the_zone_within_a_day(
    after: datetime, zone: str, hour: int, minute: int
) -> None:
    slot = Cron.parse(f"{minute} {hour} * * *", zone).next(after)

    assert timedelta() < slot - after <= 25 * HOUR
    local = slot.astimezone(ZoneInfo(zone))
    assert (local.hour, local.minute) == (hour, minute)
