"""What beat does for a schedule: its call, its slots' names, and which are sent, left out or put off."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from beat.entry import Entry, call_of
from beat.plan import GRACE, Plan, make_plan
from ditto_tasks.clock import slots_between
from ditto_tasks.config import Schedule
from ditto_tasks.transport.slots import Slot

ROOT = Path(__file__).parents[2]
SECOND = timedelta(seconds=1)
NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)


def schedule(**settings: Any) -> Schedule:
    return Schedule.model_validate({"name": "sweep", "task": "MEMORY.QUERY", **settings})


def entry(**settings: Any) -> Entry:
    return Entry.of(schedule(**settings))


def seconds(*counts: float) -> tuple[datetime, ...]:
    """Give the instants so many seconds after noon."""
    return tuple(NOON + count * SECOND for count in counts)


class TestCalls:
    def test_a_schedule_calls_its_node_with_its_input(self) -> None:
        deleting = schedule(task="MEMORY.DELETE", input={"ids": ["a"]}, every=90)

        assert call_of(deleting) == ("MEMORY.DELETE", {"ids": ["a"]})

    def test_reindex_calls_a_node_with_target_and_mode(self) -> None:
        assert call_of(schedule(task="reindex", target="kb", mode="full", every=1)) == (
            "REINDEX.RUN",
            {"target": "kb", "mode": "full"},
        )
        assert call_of(schedule(task="reindex", target="kb", every=1)) == ("REINDEX.RUN", {"target": "kb"})

    def test_the_call_of_a_slot_is_the_same_whoever_makes_it(self) -> None:
        first, second = (entry(every=1, input={"limit": 5}).call(NOON, "ditto") for _ in range(2))

        assert first == second
        assert (first.node, first.input) == ("MEMORY.QUERY", {"limit": 5})
        assert first.idempotency_key == "schedule:sweep:2026-03-08T12:00:00Z"

    def test_calls_of_other_slots_schedules_and_prefixes_are_others(self) -> None:
        calls = [
            entry(every=1).call(NOON, "ditto"),
            entry(every=1).call(NOON + SECOND, "ditto"),
            entry(every=1, name="other").call(NOON, "ditto"),
            entry(every=1).call(NOON, "blue"),
        ]

        assert len({call.execution_id for call in calls}) == 4

    def test_a_slot_is_named_by_its_instant_in_utc(self) -> None:
        tokyo = NOON.astimezone(datetime.fromisoformat("2026-03-08T21:00:00+09:00").tzinfo)

        assert str(Slot("a", tokyo)) == str(Slot("a", NOON)) == "a:2026-03-08T12:00:00Z"
        assert str(Slot("a", NOON + SECOND / 2)) == "a:2026-03-08T12:00:00.500000Z"


class TestPlans:
    def test_nothing_is_due_between_two_slots(self) -> None:
        assert make_plan(entry(every=10), NOON, *seconds(9)) == Plan(None, (), *seconds(10))

    def test_a_slot_is_due_at_its_instant(self) -> None:
        assert make_plan(entry(every=10), NOON, *seconds(10)) == Plan(None, seconds(10), *seconds(20))

    def test_slots_that_are_a_little_late_are_all_sent_in_order(self) -> None:
        for misfire in ("skip", "run-once"):
            plan = make_plan(entry(every=10, misfire=misfire), NOON, *seconds(35))
            assert plan == Plan(None, seconds(10, 20, 30), *seconds(40))

    def test_what_was_missed_is_skipped(self) -> None:
        plan = make_plan(entry(every=30), NOON, *seconds(125))

        assert plan == Plan(*seconds(60), seconds(90, 120), *seconds(150))

    def test_one_call_stands_for_all_that_was_missed(self) -> None:
        plan = make_plan(entry(every=30, misfire="run-once"), NOON, *seconds(125))

        assert plan == Plan(*seconds(60), seconds(60, 90, 120), *seconds(150))

    def test_a_day_without_beat_costs_one_daily_call_or_none(self) -> None:
        back = NOON + timedelta(hours=20)
        daily = {"cron": "30 2 * * *", "timezone": "America/Los_Angeles"}

        skipping = make_plan(entry(**daily), NOON - timedelta(days=3), back)
        making_up = make_plan(entry(**daily, misfire="run-once"), NOON - timedelta(days=3), back)

        assert skipping.due == ()
        assert making_up.due == (NOON.replace(hour=10),)
        assert skipping.next_at == making_up.next_at == datetime(2026, 3, 9, 9, 30, tzinfo=UTC)

    def test_a_minute_late_is_not_missed(self) -> None:
        minute = NOON + 60 * SECOND

        assert make_plan(entry(every=60), NOON, minute + GRACE - SECOND).missed is None
        assert make_plan(entry(every=60), NOON, minute + GRACE).missed == minute

    def test_years_without_beat_are_planned_at_once(self) -> None:
        plan = make_plan(entry(every=0.01), NOON - timedelta(days=3650), NOON)

        assert plan.missed == NOON - GRACE

    def test_many_slots_are_sent_in_parts(self) -> None:
        plan = make_plan(entry(every=0.1), NOON, *seconds(30))

        assert plan.due == seconds(*(count / 10 for count in range(1, 101)))
        assert plan.next_at < NOON + 30 * SECOND

    def test_jitter_is_within_its_bounds_and_always_the_same(self) -> None:
        one, two = (entry(every=60, jitter=30) for _ in range(2))
        delays = [one.due(slot) - slot for slot in seconds(*range(0, 6000, 60))]

        assert delays == [two.due(slot) - slot for slot in seconds(*range(0, 6000, 60))]
        assert all(timedelta() <= delay < 30 * SECOND for delay in delays)
        assert min(delays) < 5 * SECOND
        assert max(delays) > 25 * SECOND

    def test_a_slot_within_its_jitter_is_not_missed(self) -> None:
        spread = entry(every=60, jitter=600)

        assert make_plan(spread, NOON, *seconds(650)).missed is None
        assert make_plan(spread, NOON, *seconds(720)).missed == NOON + 60 * SECOND

    @given(
        every=st.sampled_from([0.5, 7, 60]),
        jitter=st.sampled_from([0, 3, 100]),
        pauses=st.lists(st.floats(0.01, 59), max_size=30),
    )
    def test_whenever_one_looks_every_slot_is_sent_once_and_in_order(
        self, every: float, jitter: float, pauses: list[float]
    ) -> None:
        one = entry(every=every, jitter=jitter)
        sent: list[datetime] = []
        now = NOON
        for pause in pauses:
            now += pause * SECOND
            while (plan := make_plan(one, sent[-1] if sent else NOON, now)).due:
                assert plan.missed is None
                sent += plan.due

        assert sent == list(slots_between(one.place.rule, NOON, sent[-1] if sent else NOON))
        assert all(one.due(slot) <= now for slot in sent)
        assert plan.next_at > now if pauses else True


def test_the_app_of_beat_reads_the_file_that_the_environment_names(tmp_path: Path) -> None:
    file = tmp_path / "other.yaml"
    file.write_text("schedules:\n  - {name: sweep, task: MEMORY.QUERY, every: 60}\n")
    environ = os.environ | {"DITTO_CONFIG": str(file), "DITTO_BROKER_URL": "redis://127.0.0.1:1/0"}
    program = (
        "import sys; from beat.app import app; print(*(one.name for one in app.conf.ditto_config.schedules));"
        "print([name for name in ('workers', 'providers', 'numpy') if name in sys.modules])"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == ["sweep", "[]"]
