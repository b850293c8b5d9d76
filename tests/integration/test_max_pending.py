"""A queue takes so many calls and no more; who has none to spare hears of it at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ditto_tasks import Invocation, QueueFull, Runtime
from tests.conftest import wait_until
from tests.integration.conftest import Site

BOUND = 4


@pytest.fixture(params=["streams", "kombu"])
def bounded(request: pytest.FixtureRequest, site: Site) -> Site:
    site.transport |= {"broker": request.param, "maxPending": BOUND}
    return site


@pytest.fixture
def runtime(bounded: Site) -> Iterator[Runtime]:
    with bounded.runtime() as runtime:
        yield runtime


def submit(runtime: Runtime, label: str = "a", **input: str) -> Invocation:
    return runtime.submit("NOTED.WORK", {"label": label, **input})


def test_what_does_not_fit_is_refused_whole_and_works_once_there_is_room(
    bounded: Site, runtime: Runtime
) -> None:
    calls = [submit(runtime, str(n)) for n in range(BOUND - 1)]
    with pytest.raises(QueueFull, match=r"3 calls wait in ditto\.noted\.work, which takes 4"):
        runtime.map("NOTED.WORK", [{"label": "refused"}] * 2)
    calls.append(submit(runtime, "3"))
    with pytest.raises(QueueFull, match=r"4 calls wait in ditto\.noted\.work, which takes 4") as full:
        submit(runtime, "refused")
    assert full.value.code == "QUEUE_FULL"
    assert "127.0.0.1" not in str(full.value)
    other_queue = runtime.submit("NOTED.READ", {"label": "other"})
    bounded.hire(concurrency=1)
    assert {call.result(60).status for call in [*calls, other_queue]} == {"success"}
    assert [result.status for result in runtime.map("NOTED.WORK", [{"label": "m"}] * BOUND)] == [
        "success"
    ] * BOUND
    assert "refused" not in bounded.notes.started()


def test_a_call_that_runs_takes_no_room_and_one_that_begins_makes_some(
    bounded: Site, runtime: Runtime
) -> None:
    bounded.hire(concurrency=1)
    running = submit(runtime, "running", until=str(bounded.gate))
    bounded.wait_started("running")
    waiting = [submit(runtime) for _ in range(BOUND)]
    with pytest.raises(QueueFull):
        submit(runtime)
    bounded.gate.touch()
    assert running.result(30).status == "success"
    assert {call.result(30).status for call in waiting} == {"success"}


def test_all_priorities_of_a_queue_count(site: Site) -> None:
    site.transport["maxPending"] = 3
    with site.runtime() as runtime:
        for priority in ("high", "normal", "low"):
            runtime.submit("NOTED.WORK", {"label": "a"}, priority=priority)
        with pytest.raises(QueueFull):
            runtime.submit("NOTED.WORK", {"label": "a"}, priority="high")


def test_submitters_at_once_never_exceed_the_bound(site: Site) -> None:
    site.transport["maxPending"] = 25

    def fill(runtime: Runtime) -> int:
        accepted = 0
        for _ in range(15):
            try:
                runtime.submit("NOTED.WORK", {"label": "a"})
                accepted += 1
            except QueueFull:
                pass
        return accepted

    with site.runtime() as one, site.runtime() as other, ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(fill, [one, other] * 4)) == 25
    assert site.entries() == 25


def test_calls_that_wait_for_their_key_take_room_too(site: Site) -> None:
    site.transport["maxPending"] = BOUND
    site.hire()
    with site.runtime() as runtime:
        first = runtime.submit("KEYED.LOOP", {"label": "first"}, concurrency_key="k")
        site.wait_started("first")
        waiting = [runtime.submit("KEYED.WORK", {"label": str(n)}, concurrency_key="k") for n in range(BOUND)]
        wait_until(lambda: site.client.llen("ditto:parked:keyed:k") == BOUND, what="they wait for the key")
        with pytest.raises(QueueFull):
            runtime.submit("KEYED.WORK", {"label": "refused"}, concurrency_key="k")
        first.cancel()
        assert {call.result(30).status for call in waiting} == {"success"}
        assert (
            runtime.submit("KEYED.WORK", {"label": "m"}, concurrency_key="k").result(30).status == "success"
        )
