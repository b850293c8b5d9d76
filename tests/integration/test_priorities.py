"""Among the calls that wait, the urgent ones run first."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery.signals import before_task_publish

from ditto_tasks import InvalidDefinition, Runtime
from ditto_tasks.transport.port import Priority
from tests.integration.conftest import Site

MIXED: list[Priority] = ["low", "normal", "high"] * 4
IN_ORDER = ["high"] * 4 + ["normal"] * 4 + ["low"] * 4


@pytest.fixture(params=["streams", "streams, with a signal's receiver", "kombu"])
def way(request: pytest.FixtureRequest, site: Site) -> Iterator[str]:
    """How calls are sent."""
    published: list[Any] = []

    def receive(**told: Any) -> None:
        published.append(told)

    listens = "receiver" in request.param
    site.transport["broker"] = request.param.partition(",")[0]
    if listens:
        before_task_publish.connect(receive)
    yield request.param
    before_task_publish.disconnect(receive)
    assert bool(published) == listens


def submit_mixed(runtime: Runtime, node: str = "NOTED.WORK") -> list[Any]:
    return [runtime.submit(node, {"label": priority}, priority=priority) for priority in MIXED]


def test_with_one_slot_high_runs_before_normal_before_low(site: Site, way: str) -> None:
    with site.runtime() as runtime:
        calls = submit_mixed(runtime)
        site.hire(concurrency=1)
        assert {call.result(60).status for call in calls} == {"success"}
    assert site.notes.started() == IN_ORDER


def test_an_urgent_call_overtakes_those_of_other_nodes_while_the_slot_is_taken(site: Site) -> None:
    site.hire(concurrency=1)
    with site.runtime() as runtime:
        first = runtime.submit("NOTED.WORK", {"label": "first", "until": str(site.gate)})
        site.wait_started("first")
        calls = submit_mixed(runtime, "NOTED.WORK")
        urgent = [runtime.submit("NOTED.READ", {"label": "high"}, priority="high") for _ in range(2)]
        site.gate.touch()
        assert {call.result(30).status for call in [first, *urgent, *calls]} == {"success"}
    assert site.notes.started() == ["first", *["high"] * 6, *["normal"] * 4, *["low"] * 4]


@pytest.mark.parametrize("priority", ["urgent", "", 5, None])
def test_a_priority_that_is_none_is_refused_before_anything_is_sent(site: Site, priority: Any) -> None:
    with site.runtime() as runtime:
        with pytest.raises(InvalidDefinition, match="priority is"):
            runtime.submit("NOTED.WORK", {"label": "never"}, priority=priority)
        with pytest.raises(InvalidDefinition, match="priority is"):
            runtime.map("NOTED.WORK", [{"label": "never"}], priority=priority)
    assert site.client.dbsize() == 0
