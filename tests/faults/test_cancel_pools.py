"""Cancels in every pool: of calls that run, that wait, and that are on their way."""

import multiprocessing
import time

import pytest
from celery import Celery

from ditto_tasks.transport.app import create_app
from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.executions import Executions
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.ledger import Ledger
from tests.conftest import LATE, wait_until
from tests.faults.conftest import KEYS, Crew, children

POOLS = ["threads", "prefork", "solo", "gevent"]
WITHIN = 0.5  # seconds from the cancel of a running call to its result, usually
TRIES = 3  # of which one shows what is usual
BETWEEN = Keys("between")  # on channels of their own, which no worker hears


@pytest.mark.parametrize("pool", POOLS)
def test_a_running_call_ends_soon_after_its_cancel_and_frees_its_slot(crew: Crew, pool: str) -> None:
    worker = crew.hire(pool=pool, concurrency=2)
    slots = 1 if pool == "solo" else 2
    processes = [worker.pid, *children(worker)]
    took: list[float] = []
    with crew.runtime() as runtime:
        for _ in range(TRIES):
            running = [runtime.submit("FAULT.LOOP", {}) for _ in range(slots)]
            crew.wait_started(*(call.id for call in running))
            waiting = runtime.submit("FAULT.WORK", {})
            cancelled_at = time.monotonic()
            for call in running:
                call.cancel("enough")
            assert [call.result(30).status for call in running] == ["cancelled"] * slots
            took.append(time.monotonic() - cancelled_at)
            assert waiting.result(30).status == "success"
    assert min(took) < WITHIN
    assert max(took) < WITHIN + LATE
    assert [worker.pid, *children(worker)] == processes
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("terminate", [False, True])
@pytest.mark.parametrize("pool", POOLS)
def test_a_revoke_is_a_cancel_and_kills_nothing(crew: Crew, pool: str, terminate: bool) -> None:
    worker = crew.hire(pool=pool)
    foreign = Celery("foreign", broker=crew.url, backend=crew.url, set_as_current=False)
    with crew.runtime() as runtime:
        running = runtime.submit("FAULT.LOOP", {})
        crew.wait_started(running.id)
        processes = [worker.pid, *children(worker)]
        app = create_app(runtime.config) if pool == "solo" else foreign
        with app.connection_for_write() as connection:
            app.control.revoke(running.id, terminate=terminate, connection=connection)
        app.backend.client.close()
        app.close()
        assert running.result(30).status == "cancelled"
        assert runtime.submit("FAULT.WORK", {}).result(30).status == "success"
    assert [worker.pid, *children(worker)] == processes
    assert "Traceback" not in worker.log


@pytest.mark.parametrize("pool", POOLS)
def test_a_call_that_was_cancelled_while_no_worker_was_up_never_runs(
    crew: Crew, client: RedisClient, pool: str
) -> None:
    with crew.runtime() as runtime:
        cancelled = [runtime.submit("FAULT.WORK", {}) for _ in range(5)]
        for call in cancelled:
            call.cancel("not wanted")
        wanted = runtime.submit("FAULT.WORK", {})
        crew.hire(pool=pool)
        assert wanted.result(30).status == "success"
        assert [call.result(30).status for call in cancelled] == ["cancelled"] * 5
    assert crew.starts() == {wanted.id: 1}
    assert client.keys(KEYS.call("*")) == []


def test_a_delayed_call_that_was_cancelled_never_runs(crew: Crew) -> None:
    with crew.runtime() as runtime:
        app = create_app(runtime.config)
        with app.connection_for_write() as connection:
            sent = app.send_task("FAULT.WORK", [{}], countdown=1, connection=connection)
        app.backend.client.close()
        app.close()
        call = runtime.invocation(sent.id)
        call.cancel()
        crew.hire()
        assert call.result(30).status == "cancelled"
    assert not crew.starts()


def test_a_cancel_survives_the_worker_that_it_was_told_to(crew: Crew) -> None:
    """The worker dies before its node notices; whoever takes the call over does not start it."""
    crew.hire_two()
    with crew.runtime() as runtime:
        call = runtime.submit("FAULT.READ", {"seconds": 60})
        crew.holder(call.id)
        call.cancel()
        crew.holder(call.id).kill()
        assert call.result(30).status == "cancelled"
    assert crew.starts() == {call.id: 1}


def test_a_cancel_between_the_fetch_of_a_call_and_its_start_is_heard(broker_url: str) -> None:
    """In a process of its own: for as long as that lives, it listens."""
    spawn = multiprocessing.get_context("spawn")
    listening = spawn.Process(target=_cancel_what_was_fetched, args=(broker_url,))
    listening.start()
    listening.join(60)
    assert listening.exitcode == 0


def _cancel_what_was_fetched(url: str) -> None:
    executions = Executions(lambda: connect(url), BETWEEN)
    with connect(url) as client, executions.track("another") as another:
        ledger = Ledger(client, BETWEEN, 60)
        wait_until(lambda: client.pubsub_numsub(BETWEEN.cancel_channel)[0][1] == 1, what="it listens")
        assert ledger.begin("fetched").verdict == "run"
        ledger.cancel("fetched", "not wanted")
        ledger.cancel("another", "a later one")
        wait_until(lambda: another.is_cancelled, what="the later cancel is heard")
        with executions.track("fetched") as token:
            assert token.is_cancelled
            assert token.reason == "not wanted"
