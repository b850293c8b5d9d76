"""`ditto-tasks schedules`: what beat has sent, what became of it, and what comes next."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.acceptance.conftest import Shell
from tests.beat_process import Orchestra
from tests.conftest import StartWorker, wait_until


def test_schedules_shows_last_and_next_slots_and_how_the_call_ended(
    shell: Shell, broker_url: str, worker_process: StartWorker, tmp_path: Path
) -> None:
    orchestra = Orchestra(broker_url, tmp_path, schedules=2)
    worker_process(broker_url, module="workers.app")

    before = shell.json("schedules", "--json", environ=orchestra.environ)
    assert before["beat"] is None
    assert [row["lastSlot"] for row in before["schedules"]] == [None, None]

    beat = orchestra.start()
    wait_until(lambda: beat.log.count("was sent") >= 4)
    orchestra.stop()
    after = shell.json("schedules", "--json", environ=orchestra.environ)
    first, second = after["schedules"]
    assert (first["name"], first["task"], first["rule"]) == ("s0", "MEMORY.QUERY", "every 1 s")
    assert datetime.fromisoformat(first["lastSlot"]) < datetime.now(UTC)
    assert datetime.now(UTC) - timedelta(minutes=1) < datetime.fromisoformat(first["nextSlot"])
    result = shell.json("result", second["lastExecutionId"], environ=orchestra.environ)
    assert (result["node"], result["status"]) == ("MEMORY.QUERY", "success")
    again = shell.json("schedules", "--json", environ=orchestra.environ)
    assert again["schedules"][1]["lastStatus"] == "success"
    orchestra.close()


def test_schedules_are_a_table_for_people_in_their_own_time_zone(shell: Shell, broker_url: str) -> None:
    (shell.folder / "ditto.yaml").write_text(
        "schedules:\n  - {name: daily, task: X.Y, cron: '30 9 * * *', timezone: Asia/Tokyo}\n"
    )

    shown = shell.run("schedules", environ={"DITTO_BROKER_URL": broker_url, "COLUMNS": "150"})

    assert shown.returncode == 0
    assert "30 9 * * * Asia/Tokyo" in shown.stdout
    assert " 09:30:00+09:00" in shown.stdout
    assert "no beat runs" in shown.stderr


def test_a_broker_that_is_away_is_told(shell: Shell) -> None:
    (shell.folder / "ditto.yaml").write_text("schedules:\n  - {name: a, task: X.Y, every: 1}\n")

    shown = shell.run("schedules", environ={"DITTO_BROKER_URL": "redis://127.0.0.1:1/0"})

    assert shown.returncode == 3
    assert "looking at the schedules failed" in shown.stderr
