"""A broker that is away: callers hear of it within their deadline, and everyone goes on when it is back."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ditto_tasks import BrokerUnavailable, InvocationTimeout, Runtime
from tests.conftest import LATE, RedisServer, StartWorker, connected, wait_until
from tests.integration.conftest import Site

POOLS = ["threads", "prefork", "solo"]
DEADLINE = 3.0  # seconds given to a call
WITHIN = 4.0  # seconds in which the caller must know, a busy machine apart

CALLS: dict[str, Callable[[Runtime], object]] = {
    "invoke": lambda runtime: runtime.invoke("MEMORY.GET", {"ids": ["a"]}, timeout=DEADLINE),
    "submit": lambda runtime: runtime.submit("MEMORY.GET", {"ids": ["a"]}, timeout=DEADLINE),
}


@pytest.fixture
def own_site(own_server: RedisServer, worker_process: StartWorker, tmp_path: Path) -> Iterator[Site]:
    site = Site(worker_process, own_server.url(), tmp_path)
    yield site
    site.close()


def raises_in_time(call: Callable[[Runtime], object], runtime: Runtime) -> None:
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable) as unavailable:
        call(runtime)
    assert time.monotonic() - began < WITHIN + LATE
    assert "127.0.0.1" not in str(unavailable.value)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_stopped_broker_is_told_in_time_twice_and_calls_go_through_once_it_is_back(
    own_server: RedisServer, call: Callable[[Runtime], object]
) -> None:
    with connected(own_server.url()) as runtime:
        assert runtime.submit("MEMORY.GET", {"ids": ["a"]}).status() == "pending"
        own_server.stop()
        raises_in_time(call, runtime)
        raises_in_time(call, runtime)
        own_server.start()
        assert runtime.submit("MEMORY.GET", {"ids": ["a"]}).status() == "pending"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_broker_that_was_never_there_is_told_in_time_twice(
    own_server: RedisServer, call: Callable[[Runtime], object]
) -> None:
    own_server.stop()
    with connected(own_server.url()) as runtime:
        raises_in_time(call, runtime)
        raises_in_time(call, runtime)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_broker_that_hangs_is_told_in_time_twice(
    own_server: RedisServer, worker_process: StartWorker, call: Callable[[Runtime], object]
) -> None:
    worker_process(own_server.url())
    with connected(own_server.url()) as runtime:
        assert runtime.invoke("MEMORY.GET", {"ids": ["a"]}).unwrap() == []
        own_server.pause()
        raises_in_time(call, runtime)
        raises_in_time(call, runtime)
        own_server.resume()
        assert runtime.invoke("MEMORY.GET", {"ids": ["a"]}).unwrap() == []


def test_an_idle_worker_goes_on_after_a_restart(own_server: RedisServer, worker_process: StartWorker) -> None:
    worker_process(own_server.url())
    with connected(own_server.url()) as runtime:
        assert runtime.invoke("TEST.ECHO", "before").unwrap() == "before"
        own_server.stop()
        own_server.start()
        results = list(runtime.map("TEST.ECHO", range(50), timeout=60))
    assert [result.unwrap() for result in results] == list(range(50))


def test_a_call_that_runs_while_the_broker_restarts_has_its_result(
    own_server: RedisServer, worker_process: StartWorker, tmp_path: Path
) -> None:
    worker_process(own_server.url())
    with connected(own_server.url()) as runtime:
        waiting = runtime.submit("TEST.HELD", {"until": str(tmp_path / "gate")})
        wait_until(lambda: waiting.status() == "running")
        own_server.stop()
        (tmp_path / "gate").touch()
        own_server.start()
        assert waiting.result(30).unwrap() == "done"
        assert runtime.invoke("TEST.ECHO", "next", timeout=20).unwrap() == "next"


@pytest.mark.parametrize("pool", POOLS)
def test_a_result_that_the_server_refuses_for_now_is_kept_until_then(own_site: Site, pool: str) -> None:
    worker = own_site.hire(pool=pool, module="tests.integration.worker_app")
    with own_site.runtime() as runtime:
        held = runtime.submit("TEST.HELD", {"until": str(own_site.gate)})
        wait_until(lambda: held.status() == "running")
        own_site.client.config_set("maxmemory", 1)
        own_site.gate.touch()
        refused = ("cannot be ended yet", "Connection to Redis lost")
        wait_until(lambda: any(words in worker.log for words in refused), what="the result is refused")
        own_site.client.config_set("maxmemory", 0)
        assert held.result(30).unwrap() == "done"
        assert runtime.invoke("TEST.ECHO", "next", timeout=20).unwrap() == "next"


@pytest.mark.parametrize("pool", POOLS)
def test_a_call_whose_result_cannot_be_stored_is_given_back(own_site: Site, pool: str) -> None:
    worker = own_site.hire(pool=pool, module="tests.integration.worker_app")
    with own_site.runtime() as runtime:
        held = runtime.submit("TEST.HELD", {"until": str(own_site.gate)})
        wait_until(lambda: held.status() == "running")
        own_site.client.set(own_site.keys.call(held.id), "no hash")
        own_site.gate.touch()
        wait_until(lambda: "cannot begin" in worker.log, what="the call is taken again")
        own_site.client.delete(own_site.keys.call(held.id))
        assert held.result(30).unwrap() == "done"


def test_a_caller_that_waits_while_the_broker_goes_hears_of_it(own_server: RedisServer) -> None:
    with connected(own_server.url()) as runtime:
        waiting = runtime.submit("MEMORY.GET", {"ids": ["a"]})
        own_server.stop()
        with pytest.raises((BrokerUnavailable, InvocationTimeout)):
            waiting.result(0.5)
