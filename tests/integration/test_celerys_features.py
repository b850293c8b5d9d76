"""What Celery's worker does beside running tasks, which calls get that otherwise take a short way past it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery

from ditto_tasks import load_config
from ditto_tasks.contracts.json_value import decode_json
from ditto_tasks.transport.app import create_app
from ditto_tasks.transport.keys import stream_name
from tests.conftest import wait_until
from tests.integration.conftest import Site

POOLS = ["solo", "threads", "prefork"]
LISTENING = "tests.integration.listening_app"


@pytest.fixture
def app(site: Site) -> Iterator[Celery]:
    app = create_app(load_config(None, {"DITTO_BROKER_URL": site.url}))
    yield app
    app.close()


@contextmanager
def heard_events(app: Celery) -> Iterator[list[dict[str, Any]]]:
    """Give a list that events come into as long as the block lasts."""
    heard: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": heard.append})
        listener = threading.Thread(target=lambda: receiver.capture(limit=None, timeout=None, wakeup=False))
        listener.start()
        yield heard
        receiver.should_stop = True
        listener.join(10)


def active(app: Celery) -> list[dict[str, Any]]:
    """List what the one worker runs."""
    [calls] = (app.control.inspect(timeout=30, limit=1).active() or {}).values()
    return list(calls)


def stored(site: Site, id: str) -> dict[str, Any]:
    record: dict[str, Any] = decode_json(site.client.get(site.keys.result(id)))
    return record


@pytest.mark.parametrize("pool", POOLS)
def test_signals_are_sent_when_somebody_listens(site: Site, pool: str) -> None:
    site.hire(pool=pool, module=LISTENING)
    with site.runtime() as runtime:
        call = runtime.submit("NOTED.WORK", {"label": "heard"})
        assert call.result(20).unwrap() == {"label": "heard"}

    def heard() -> list[str]:
        return [note.event for note in site.notes.all() if note.label == call.id]

    wait_until(lambda: "postrun" in heard(), what="all signals were heard")
    assert heard() == ["received", "prerun", "success", "postrun"]


def test_the_stored_record_is_the_same_whoever_listens(site: Site) -> None:
    records = []
    for module in ("tests.integration.noting_app", LISTENING):
        worker = site.hire(module=module)
        with site.runtime() as runtime:
            call = runtime.submit("NOTED.WORK", {"label": "kept"})
            call.result(20).unwrap()
        record = stored(site, call.id)
        assert (record.pop("task_id"), record["result"].pop("executionId")) == (call.id, call.id)
        assert record.pop("date_done").endswith("+00:00")
        records.append(record)
        worker.stop()
    assert records[0] == records[1]
    assert list(records[0]) == ["status", "result", "traceback", "children"]


@pytest.mark.parametrize("pool", POOLS)
def test_events_come_while_they_are_enabled(site: Site, app: Celery, pool: str) -> None:
    site.hire(pool=pool)
    with site.runtime() as runtime, heard_events(app) as events:

        def run_one() -> str:
            call = runtime.submit("NOTED.WORK", {"label": "told"})
            call.result(20).unwrap()
            return call.id

        def told_of(id: str) -> list[str]:
            return [event["type"] for event in events if event.get("uuid") == id]

        wait_until(lambda: events, what="the worker is heard")
        before = run_one()
        wait_until(lambda: not active(app), what="the worker has heard of its end")
        assert app.control.enable_events(reply=True, timeout=30, limit=1)
        told = run_one()
        wait_until(lambda: "task-succeeded" in told_of(told), what="a call is told of to its end")
        assert told_of(told) == ["task-received", "task-started", "task-succeeded"]
        assert told_of(before) == []


@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_counts_its_calls(site: Site, app: Celery, pool: str) -> None:
    site.hire(pool=pool)
    with site.runtime() as runtime:
        list(runtime.map("NOTED.WORK", [{"label": str(number)} for number in range(3)], timeout=20))
    [stats] = (app.control.inspect(timeout=5, limit=1).stats() or {}).values()
    assert stats["total"] == {"NOTED.WORK": 3}


@pytest.mark.parametrize("pool", POOLS)
def test_a_second_delivery_of_an_ended_call_is_thrown_away(site: Site, pool: str) -> None:
    with site.runtime() as runtime:
        call = runtime.submit("NOTED.WORK", {"label": "once"})
        stream = stream_name("ditto.noted.work", "normal")
        [[_, fields]] = site.client.xrange(stream)
        site.hire(pool=pool)
        assert call.result(20).status == "success"
        site.client.xadd(stream, fields)
        assert runtime.submit("NOTED.WORK", {"label": "next"}).result(20).status == "success"
    wait_until(lambda: site.client.xlen(stream) == 0, what="nothing is left in the stream")
    assert [note.label for note in site.notes.all() if note.event == "started"] == ["once", "next"]


def test_a_running_call_is_inspected_and_a_rate_limit_holds(site: Site, app: Celery) -> None:
    worker = site.hire(pool="threads")
    with site.runtime() as runtime:
        call = runtime.submit("NOTED.LOOP", {"label": "looked at"})
        site.wait_started("looked at")
        assert [(task["id"], task["name"], task["acknowledged"]) for task in active(app)] == [
            (call.id, "NOTED.LOOP", False)
        ]
        call.cancel()
        assert call.result(20).status == "cancelled"
        app.control.rate_limit("NOTED.WORK", "1/h", reply=True, timeout=30, limit=1)
        first, second = [runtime.submit("NOTED.WORK", {"label": label}) for label in ("first", "second")]
        assert first.result(20).status == "success"
        assert second.status() != "success"
        app.control.rate_limit("NOTED.WORK", "1000/s", reply=True, timeout=30, limit=1)
        assert worker.stop() == 0
