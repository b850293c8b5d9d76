"""Schedules of ditto.yaml as entries of beat."""

import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery.beat import PersistentScheduler
from hypothesis import given
from hypothesis import strategies as st

from beat.schedules import ZonedCrontab, beat_entries
from ditto_tasks.config import DittoConfig, Schedule, load_config
from ditto_tasks.transport.app import create_app

ROOT = Path(__file__).parents[2]


def config_of(*schedules: dict[str, Any], **rest: Any) -> DittoConfig:
    return DittoConfig(schedules=tuple(Schedule.model_validate(one) for one in schedules), **rest)


def next_run(cron: str, zone: str, after: datetime) -> datetime:
    last, delta, _ = ZonedCrontab(cron, zone).remaining_delta(after)
    return (last + delta).astimezone(UTC)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_an_entry_sends_the_node_with_its_input_to_its_queue() -> None:
    entries = beat_entries(
        config_of({"name": "sweep", "task": "MEMORY.QUERY", "input": {"limit": 5}, "every": 90})
    )

    entry = entries["sweep"]
    assert (entry["task"], entry["args"]) == ("MEMORY.QUERY", ({"limit": 5},))
    assert entry["options"]["queue"] == "ditto.memory.query"
    assert entry["schedule"].run_every == timedelta(seconds=90)


def test_no_schedules_make_no_entries() -> None:
    assert beat_entries(DittoConfig()) == {}


def test_the_queue_follows_prefix_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "ditto.yaml"
    file.write_text(
        "transport: {prefix: blue}\n"
        "workers: {memory: {queues: {MEMORY.QUERY: slow}}}\n"
        "schedules:\n"
        "  - {name: a, task: MEMORY.QUERY, every: 1}\n"
        "  - {name: b, task: MEMORY.GET, input: {ids: [x]}, every: 1}\n"
        "  - {name: c, task: REPORT.DAILY, every: 1}\n"
    )

    entries = beat_entries(load_config(file, {}))

    queues = {name: entry["options"]["queue"] for name, entry in entries.items()}
    assert queues == {"a": "slow", "b": "blue.memory.get", "c": "blue.report.daily"}


def test_the_input_shows_in_no_event() -> None:
    entry = beat_entries(config_of({"name": "a", "task": "X.Y", "input": {"secret": 1}, "every": 1}))["a"]

    assert "secret" not in entry["options"]["argsrepr"]


@pytest.mark.parametrize(
    ("zone", "after", "expected"),
    [
        ("UTC", "2025-01-10T00:00", "2025-01-10T09:00"),
        ("Asia/Shanghai", "2025-01-10T00:00", "2025-01-10T01:00"),
        ("Europe/Berlin", "2025-01-10T00:00", "2025-01-10T08:00"),  # winter
        ("Europe/Berlin", "2025-07-10T00:00", "2025-07-10T07:00"),  # summer
        ("America/New_York", "2025-01-10T00:00", "2025-01-10T14:00"),
        ("Pacific/Kiritimati", "2025-01-10T00:00", "2025-01-10T19:00"),  # the day after, there
    ],
)
def test_nine_o_clock_is_nine_in_the_schedules_own_zone(zone: str, after: str, expected: str) -> None:
    assert next_run("0 9 * * *", zone, moment(after)) == moment(expected)


def test_days_are_those_of_the_zone() -> None:
    monday_in_tokyo = next_run("30 0 * * mon", "Asia/Tokyo", moment("2025-01-10T00:00"))
    first_in_tokyo = next_run("30 0 1 * *", "Asia/Tokyo", moment("2025-01-10T00:00"))

    assert monday_in_tokyo == moment("2025-01-12T15:30")  # a Sunday in UTC
    assert first_in_tokyo == moment("2025-01-31T15:30")


def test_a_time_that_the_clock_skips_comes_an_hour_later() -> None:
    skipped = next_run("30 2 * * *", "Europe/Berlin", moment("2025-03-29T12:00"))

    assert skipped == moment("2025-03-30T01:30")  # 03:30 in Berlin
    assert next_run("30 2 * * *", "Europe/Berlin", skipped) == moment("2025-03-31T00:30")


def test_a_time_that_comes_twice_is_taken_once() -> None:
    first = next_run("30 2 * * *", "Europe/Berlin", moment("2025-10-25T12:00"))

    assert first == moment("2025-10-26T00:30")
    assert next_run("30 2 * * *", "Europe/Berlin", first) == moment("2025-10-27T01:30")


@given(
    after=st.datetimes(datetime(2024, 1, 1), datetime(2026, 12, 31), timezones=st.just(UTC)),
    zone=st.sampled_from(["UTC", "Asia/Kolkata", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"]),
    hour=st.integers(4, 23),  # no clock is put back or forward then
    minute=st.integers(0, 59),
)
def test_the_next_run_is_later_within_a_day_and_at_that_time_of_the_zone(
    after: datetime, zone: str, hour: int, minute: int
) -> None:
    crontab = ZonedCrontab(f"{minute} {hour} * * *", zone)
    last, delta, _ = crontab.remaining_delta(after)
    run = last + delta

    assert timedelta() < run.astimezone(UTC) - after <= timedelta(hours=25)
    assert (run.astimezone(crontab.tz).hour, run.astimezone(crontab.tz).minute) == (hour, minute)


def test_a_crontab_is_due_once_its_time_has_come() -> None:
    crontab = ZonedCrontab("* * * * *", "Asia/Tokyo")
    crontab.app = create_app(DittoConfig(broker_url="redis://localhost", result_url="redis://localhost"))

    assert crontab.is_due(datetime.now(UTC) - timedelta(minutes=2)).is_due
    assert not crontab.is_due(datetime.now(UTC) + timedelta(minutes=2)).is_due


def test_a_crontab_keeps_its_zone_when_beat_stores_it() -> None:
    crontab = ZonedCrontab("0 9 * * *", "Asia/Tokyo")

    again = pickle.loads(pickle.dumps(crontab))

    assert again == crontab
    assert again.tz == crontab.tz
    assert crontab != ZonedCrontab("0 9 * * *", "UTC")


def test_beat_takes_the_entries_and_finds_them_again(tmp_path: Path) -> None:
    config = config_of(
        {"name": "a", "task": "MEMORY.QUERY", "every": 60},
        {"name": "b", "task": "MEMORY.QUERY", "cron": "0 9 * * *", "timezone": "Asia/Tokyo"},
        broker_url="redis://localhost",
        result_url="redis://localhost",
    )
    app = create_app(config)
    app.conf.beat_schedule = beat_entries(config)

    for _ in range(2):
        scheduler = PersistentScheduler(app, schedule_filename=str(tmp_path / "schedule"))
        assert sorted(scheduler.schedule) == ["a", "b"]
        assert scheduler.schedule["b"].schedule == ZonedCrontab("0 9 * * *", "Asia/Tokyo")
        scheduler.close()


def test_the_app_of_beat_reads_the_file_that_the_environment_names(tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("schedules:\n  - {name: sweep, task: MEMORY.QUERY, every: 60}\n")
    environ = os.environ | {"DITTO_CONFIG": str(file), "DITTO_BROKER_URL": "redis://127.0.0.1:1/0"}
    program = (
        "import sys; from beat.app import app; print(*app.conf.beat_schedule);"
        "print([name for name in ('workers', 'providers', 'numpy') if name in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == ["sweep", "[]"]
