"""Leases: a long call runs once, a dead worker's calls go elsewhere, a late result is refused."""

import os
import signal
import time

import pytest

from ditto_tasks.contracts.json_value import decode_json
from ditto_tasks.transport.connection import RedisClient
from tests.conftest import LATE, wait_until
from tests.faults.conftest import (
    KEYS,
    LEASE,
    PATIENT_LEASE,
    Crew,
    Published,
    children,
    entries,
    freeze,
    thaw,
)

POOLS = ["threads", "prefork"]
TAKEN_OVER = LEASE + 2  # seconds in which a dead worker's calls run elsewhere


@pytest.mark.parametrize("pool", POOLS)
def test_a_call_longer_than_the_lease_is_started_once(crew: Crew, client: RedisClient, pool: str) -> None:
    crew.hire_two(pool=pool, lease=PATIENT_LEASE)
    with crew.runtime() as runtime:
        long = runtime.submit("FAULT.READ", {"seconds": 1.5 * PATIENT_LEASE})
        assert long.result(30).status == "success"
    assert crew.starts() == {long.id: 1}
    wait_until(lambda: entries(client) == 0, what="the message is gone")


@pytest.mark.parametrize("pool", POOLS)
def test_a_killed_workers_call_runs_elsewhere_within_the_lease_and_two_seconds(
    crew: Crew, client: RedisClient, pool: str
) -> None:
    crew.hire_two(pool=pool)
    with crew.runtime() as runtime:
        call = runtime.submit("FAULT.READ", {"seconds": [60, 0]})
        crew.holder(call.id).kill()
        killed_at = time.time()
        assert call.result(30).status == "success"
    [_, (_, _, started_at)] = crew.noted()
    assert started_at - killed_at < TAKEN_OVER + LATE
    wait_until(lambda: client.zcard(KEYS.leases) == client.hlen(KEYS.consumers) == 1, what="it is forgotten")
    wait_until(lambda: len(client.xinfo_consumers("ditto.fault.read:normal", KEYS.prefix)) <= 1)


@pytest.mark.parametrize("pool", POOLS)
def test_a_call_that_is_not_safe_to_repeat_is_not_started_again(crew: Crew, pool: str) -> None:
    crew.hire_two(pool=pool)
    with crew.runtime() as runtime:
        call = runtime.submit("FAULT.WORK", {"seconds": 60})
        crew.holder(call.id).kill()
        result = call.result(30)
    assert (result.status, result.error and result.error.code) == ("failed", "OUTCOME_UNKNOWN")
    assert crew.starts() == {call.id: 1}


@pytest.mark.parametrize("node", ["FAULT.READ", "FAULT.WORK"])
@pytest.mark.parametrize("pool", POOLS)
def test_the_late_result_of_a_suspended_worker_is_refused(
    crew: Crew, published: Published, pool: str, node: str
) -> None:
    """It ends before the one that took the call over, or after it: the caller sees one result."""
    crew.hire_two(pool=pool)
    with crew.runtime() as runtime:
        call = runtime.submit(node, {"seconds": [5, 1]})
        suspended = crew.holder(call.id)
        freeze(suspended)
        if node == "FAULT.READ":
            crew.wait_started(call.id, times=2)
        else:
            wait_until(call.future.done)
        thaw(suspended)
        result = call.result(30)
        ends = 2 if node == "FAULT.READ" else 1
        wait_until(lambda: len(crew.noted("ended")) == ends, what="both have ended")
        assert runtime.submit(node, {}).result(30).status == "success"
        assert runtime.invocation(call.id).result(5) == result
    stored = [decode_json(data) for data in published.so_far()]
    assert [one["result"] for one in stored if one["task_id"] == call.id] == [result.to_wire()]
    assert "Traceback" not in suspended.log


@pytest.mark.parametrize("pool", POOLS)
def test_a_suspended_worker_leaves_the_message_to_the_one_that_took_it_over(
    crew: Crew, client: RedisClient, pool: str
) -> None:
    """Were it to acknowledge the message, then the death of the other would lose the call."""
    crew.hire_two(pool=pool)
    with crew.runtime() as runtime:
        call = runtime.submit("FAULT.READ", {"seconds": [4, 60, 0]})
        suspended = crew.holder(call.id)
        freeze(suspended)
        crew.wait_started(call.id, times=2)
        second = crew.holder(call.id)
        thaw(suspended)
        wait_until(lambda: len(crew.noted("ended")) == 1, what="the suspended one has ended its late run")
        freeze(second)
        second.kill()
        assert call.result(30).status == "success"


def test_what_arrives_at_a_worker_that_nobody_counts_any_more_is_found(crew: Crew) -> None:
    """A blocking read of a suspended worker is answered after its lease; then the worker dies."""
    suspended = crew.hire(lease=1.0)
    freeze(suspended)
    crew.hire(lease=1.0)
    with crew.runtime() as runtime:
        calls = [runtime.submit("FAULT.WORK", {}) for _ in range(20)]
        suspended.kill()
        assert [call.result(30).status for call in calls] == ["success"] * 20


def test_the_death_of_a_child_is_told_without_waiting_for_the_lease(crew: Crew) -> None:
    worker = crew.hire(pool="prefork", lease=30)
    with crew.runtime() as runtime:
        read = runtime.submit("FAULT.READ", {"seconds": [60, 0]})
        work = runtime.submit("FAULT.WORK", {"seconds": 60})
        crew.wait_started(read.id, work.id)
        died_at = time.time()
        for pid in {pid for _, pid, _ in crew.noted()}:
            os.kill(pid, signal.SIGKILL)
        assert read.result(20).status == "success"
        result = work.result(20)
        assert result.error is not None
        assert result.error.code == "OUTCOME_UNKNOWN"
    assert crew.starts() == {read.id: 2, work.id: 1}
    assert crew.noted()[-1][2] - died_at < 10 + LATE
    wait_until(lambda: len(children(worker)) >= 4, what="the dead children are replaced")
