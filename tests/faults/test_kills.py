"""Workers killed at random moments: nothing is lost, nothing runs twice blindly, nobody sees two results."""

import os
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from ditto_tasks import NodeResult
from ditto_tasks.contracts.json_value import decode_json
from ditto_tasks.transport.app import create_app
from ditto_tasks.transport.connection import RedisClient
from tests.conftest import wait_until
from tests.faults.conftest import KEYS, PATIENT_LEASE, Crew, Published, entries

LONG_LEASE = 60.0  # seconds; what is done sooner has not waited for it
CALLS = 600
KILLS = 6
WITHIN = 300.0  # seconds; a bound on what takes a few


def code(result: NodeResult) -> str | None:
    return result.error and result.error.code


@pytest.fixture
def killing(crew: Crew) -> Iterator[threading.Thread]:
    """Kills a worker of three at random moments, one at a time, and replaces it."""
    chance = random.Random(4354)
    pools = ["threads", "prefork", "threads"]
    for pool in pools:
        crew.hire(pool=pool, wait=False)
    for worker in crew.workers:
        worker.wait_ready()
    crew_at_work = list(zip(crew.workers, pools, strict=True))
    stopped = threading.Event()

    def kill_and_replace() -> None:
        for _ in range(KILLS):
            if stopped.wait(chance.uniform(0, 1.0)):
                return
            worker, pool = crew_at_work.pop(chance.randrange(len(crew_at_work)))
            worker.kill()
            replacement = crew.hire(pool=pool)
            crew_at_work.append((replacement, pool))

    thread = threading.Thread(target=kill_and_replace)
    yield thread
    stopped.set()
    thread.join(WITHIN)


def test_every_call_has_one_result_however_many_workers_are_killed(
    crew: Crew, client: RedisClient, killing: threading.Thread, published: Published
) -> None:
    with crew.runtime() as runtime:
        killing.start()
        calls = [
            runtime.submit(node, {"seconds": 0.1})
            for _ in range(CALLS // 2)
            for node in ("FAULT.READ", "FAULT.WORK")
        ]
        results = [call.result(60) for call in calls]
        killing.join(WITHIN)
        assert not killing.is_alive()
    reads, works = results[::2], results[1::2]
    assert {(result.status, code(result)) for result in reads} <= {
        ("success", None),
        ("failed", "WORKER_LOST"),
    }
    assert {code(result) for result in works} <= {None, "OUTCOME_UNKNOWN"}
    assert sum(result.status == "success" for result in results) >= CALLS - 2 * 4 * KILLS
    starts = crew.starts()
    assert [starts[call.id] for call in calls[1::2] if starts[call.id] > 1] == []
    assert {call.id for call in calls if call.result().status == "success"} <= set(starts)
    wait_until(lambda: entries(client) == 0, what="no message is left")
    stored = [decode_json(data)["task_id"] for data in published.so_far()]
    assert sorted(stored) == sorted(call.id for call in calls)


def test_a_kill_between_the_result_and_its_acknowledgement_does_not_run_the_call_again(
    crew: Crew, client: RedisClient
) -> None:
    """With a broker of its own, a result is acknowledged in a step of its own; made here by hand."""
    with crew.runtime() as runtime:
        call = runtime.submit("FAULT.READ", {"seconds": 0.5})
        [(entry, fields)] = client.xrange("ditto.fault.read:normal")
        first = crew.hire()
        result = call.result(30)
        first.kill()
        client.xadd("ditto.fault.read:normal", fields)
        second = crew.hire()
        wait_until(lambda: entries(client) == 0, what="the message is gone")
        assert runtime.invocation(call.id).result(5) == result
    wait_until(lambda: f"{call.id} FAULT.READ has its result already" in second.log)
    assert crew.starts() == {call.id: 1}
    assert entry


def test_a_result_whose_acknowledgement_was_lost_stays(crew: Crew, client: RedisClient) -> None:
    """Prefork: the child has stored the result, and the parent dies before it hears of it."""
    first = crew.hire(pool="prefork", concurrency=1)
    with crew.runtime() as runtime:
        call = runtime.submit("FAULT.READ", {"seconds": 3})
        crew.wait_started(call.id)
        os.kill(first.pid, signal.SIGSTOP)
        result = call.result(30)
        first.kill()
        crew.hire()
        assert runtime.submit("FAULT.READ", {}).result(30).status == "success"
        assert runtime.invocation(call.id).result(5) == result
    assert crew.starts()[call.id] == 1
    wait_until(lambda: entries(client) == 0, what="no message is left")


@pytest.mark.parametrize("killed", ["none", "one", "all"])
def test_a_delayed_call_survives_any_worker_and_does_not_run_early(
    crew: Crew, client: RedisClient, killed: str
) -> None:
    crew.hire_two()
    with crew.runtime() as runtime:
        app = create_app(runtime.config)
        sent = app.send_task("FAULT.WORK", [{}], countdown=5)
        app.close()
        wait_until(lambda: client.zcard(KEYS.delayed) == 1)
        due = client.zrange(KEYS.delayed, 0, -1, withscores=True)[0][1] / 1000
        for worker in crew.workers[: {"none": 0, "one": 1, "all": 2}[killed]]:
            worker.kill()
        if killed == "all":
            crew.hire()
        assert runtime.invocation(sent.id).result(60).status == "success"
    [(id, _, started_at)] = crew.noted()
    assert id == sent.id
    assert due <= started_at
    assert client.zcard(KEYS.delayed) == 0


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_a_warm_shutdown_under_load_loses_nothing(crew: Crew, client: RedisClient, pool: str) -> None:
    leaving = crew.hire(pool=pool, lease=PATIENT_LEASE)
    with crew.runtime() as runtime:
        calls = [runtime.submit("FAULT.WORK", {"seconds": 0.2}) for _ in range(60)]
        crew.wait_started(calls[0].id)
        crew.hire(pool="threads", lease=PATIENT_LEASE)
        assert leaving.stop() == 0
        begun = sum(pid in {pid for _, pid, _ in crew.noted("ended")} for _, pid, _ in crew.noted())
        assert begun
        assert [call.result(60).status for call in calls] == ["success"] * 60
    assert set(crew.starts().values()) == {1}
    assert "Traceback" not in leaving.log
    wait_until(lambda: client.zcard(KEYS.leases) == 1, what="the one that left has no lease")
    wait_until(lambda: entries(client) == 0, what="no message is left")


def test_a_warm_shutdown_takes_no_longer_than_its_calls_and_gives_back_the_rest(
    crew: Crew, client: RedisClient
) -> None:
    leaving = crew.hire(concurrency=2, lease=LONG_LEASE)
    with crew.runtime() as runtime:
        running = [runtime.submit("FAULT.WORK", {"seconds": 4}) for _ in range(2)]
        crew.wait_started(*(call.id for call in running))
        waiting = [runtime.submit("FAULT.WORK", {}) for _ in range(10)]
        assert leaving.stop() == 0
        assert [call.result(5).status for call in running] == ["success"] * 2
        assert [call.status() for call in waiting] == ["pending"] * 10
        assert client.zcard(KEYS.leases) == client.hlen(KEYS.consumers) == 0
        crew.hire(lease=LONG_LEASE)
        assert [call.result(LONG_LEASE / 2).status for call in waiting] == ["success"] * 10
    assert set(crew.starts().values()) == {1}
