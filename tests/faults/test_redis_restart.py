"""A server that restarts, resets connections or is away, under load: nothing is lost, nobody hangs."""

import threading
import time
from functools import partial

import psutil
import pytest

from ditto_tasks import BrokerUnavailable, Invocation, InvocationTimeout, Runtime
from ditto_tasks.transport.connection import RedisClient, connect
from tests.conftest import LATE, RedisServer, wait_until
from tests.faults.conftest import KEYS, PATIENT_LEASE, Crew, entries, lasting_keys

POOLS = ["threads", "prefork", "solo"]
DEADLINE = 3.0  # seconds given to a call
RECOVERED = 10.0  # seconds in which workers go on once the server is back
SOONER = 20.0  # seconds; a look for what was lost with a connection comes each thirty
SLOTS = 4  # of a worker whose connections are counted
LINES = 3  # to the server, of which each may come to have a connection for each slot
RESETS = 25  # more than all that could add
KOMBUS_OWN = "_kombu.binding"  # what kombu notes of its exchanges, once an app


def reset_connections(client: RedisClient) -> None:
    """Close all connections to the server but this one."""
    for kind in ("NORMAL", "PUBSUB"):
        client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


class Load:
    """Submits calls, one after the other; notes which ones were accepted, and when it was refused."""

    def __init__(self, runtime: Runtime) -> None:
        self.accepted: list[str] = []
        self.refused: list[float] = []
        self._runtime = runtime
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._submit)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _submit(self) -> None:
        while not self._stopping.wait(0.01):
            began = time.monotonic()
            try:
                self.accepted.append(self._runtime.submit("FAULT.READ", {"seconds": 0.02}).id)
            except BrokerUnavailable:
                self.refused.append(time.monotonic() - began)


@pytest.mark.parametrize("pool", POOLS)
def test_a_restart_under_load_loses_nothing_and_workers_go_on(
    own_crew: Crew, own_server: RedisServer, pool: str
) -> None:
    own_crew.hire_two(pool=pool)
    with own_crew.runtime() as runtime:
        load = Load(runtime)
        wait_until(lambda: len(load.accepted) >= 30)
        own_server.stop()
        wait_until(lambda: load.refused, what="the caller hears of it")
        own_server.start()
        back_at = time.time()
        so_far = len(load.accepted)
        wait_until(lambda: len(load.accepted) >= so_far + 50)
        load.stop()
        results = [runtime.invocation(id).result(30) for id in load.accepted]
    assert {result.status for result in results} == {"success"}
    assert max(load.refused) < DEADLINE + LATE
    started_again = min(at for _, _, at in own_crew.noted() if at > back_at)
    assert started_again - back_at < RECOVERED + LATE


def test_a_waiter_has_its_result_or_a_typed_time_out_after_a_restart(
    own_crew: Crew, own_server: RedisServer
) -> None:
    own_crew.hire()
    with own_crew.runtime() as runtime:
        began = time.monotonic()
        ends, never = (runtime.submit("FAULT.READ", {"seconds": seconds}) for seconds in (3, 120))
        own_crew.wait_started(ends.id, never.id)
        own_server.stop()
        own_server.start()
        assert ends.result(60).status == "success"
        with pytest.raises(InvocationTimeout):
            never.result(1)
        never.cancel()
        assert time.monotonic() - began < 60


def test_a_stopped_server_is_told_in_time_first_and_second(own_crew: Crew, own_server: RedisServer) -> None:
    own_crew.hire()
    with own_crew.runtime() as runtime:
        assert runtime.submit("FAULT.WORK", {}).result(30).status == "success"
        own_server.stop()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                runtime.submit("FAULT.WORK", {}, timeout=DEADLINE)
            assert time.monotonic() - began < DEADLINE + LATE


@pytest.mark.parametrize("pool", POOLS)
def test_after_connections_were_reset_three_times_fifty_calls_are_done(
    crew: Crew, client: RedisClient, pool: str
) -> None:
    worker = crew.hire(pool=pool)
    with crew.runtime() as runtime:
        for _ in range(3):
            assert runtime.submit("FAULT.WORK", {}).result(SOONER).status == "success"
            reset_connections(client)
        began = time.monotonic()
        calls = [runtime.submit("FAULT.WORK", {}) for _ in range(50)]
        assert [call.result(60).status for call in calls] == ["success"] * 50
        assert time.monotonic() - began < 60
    assert psutil.pid_exists(worker.pid)
    wait_until(lambda: entries(client) == 0, what="no message is left")


def _are_done(calls: list[Invocation], count: int) -> bool:
    return sum(call.future.done() for call in calls) >= count


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_resets_under_load_lose_nothing(crew: Crew, client: RedisClient, pool: str) -> None:
    """A reset between two steps of a fetch leaves no call with a pool that has dropped it."""
    crew.hire(pool=pool)
    calls: list[Invocation] = []
    with crew.runtime() as runtime:
        for number in range(8):
            calls += [runtime.submit("FAULT.WORK", {"seconds": 0.03}) for _ in range(6 + number % 3)]
            enough = len(calls) - 5 - number % 4
            wait_until(partial(_are_done, calls, enough))
            reset_connections(client)
        assert {call.result(60).status for call in calls} == {"success"}
    assert set(crew.starts().values()) == {1}


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_running_call_is_not_given_away_when_connections_are_reset(
    crew: Crew, client: RedisClient, pool: str
) -> None:
    crew.hire_two(pool=pool, concurrency=2, lease=PATIENT_LEASE)
    with crew.runtime() as runtime:
        long = runtime.submit("FAULT.WORK", {"seconds": 1.5 * PATIENT_LEASE})
        crew.wait_started(long.id)
        for _ in range(3):
            reset_connections(client)
            assert runtime.submit("FAULT.READ", {}).result(SOONER).status == "success"
        assert long.result(30).status == "success"
        calls = [runtime.submit("FAULT.WORK", {}) for _ in range(20)]
        assert [call.result(30).status for call in calls] == ["success"] * 20
    assert set(crew.starts().values()) == {1}


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_that_is_full_when_connections_are_reset_takes_no_more_than_it_has_slots(
    crew: Crew, client: RedisClient, pool: str
) -> None:
    crew.hire(pool=pool, concurrency=2)
    with crew.runtime() as runtime:
        running = [runtime.submit("FAULT.LOOP", {}) for _ in range(2)]
        crew.wait_started(*(call.id for call in running))
        waiting = [runtime.submit("FAULT.WORK", {}) for _ in range(5)]
        reset_connections(client)
        wait_until(lambda: client.client_list(_type="pubsub"), what="the worker is connected again")
        crew.hire(pool=pool, concurrency=2)
        assert [call.result(30).status for call in waiting] == ["success"] * 5
        assert [call.status() for call in running] == ["running"] * 2
        for call in running:
            call.cancel()
        assert [call.result(30).status for call in running] == ["cancelled"] * 2


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_worker_keeps_its_count_of_connections(crew: Crew, client: RedisClient, pool: str) -> None:
    """A connection that each reset leaves behind is more than a worker's slots ever come to need."""
    worker = psutil.Process(crew.hire(pool=pool, concurrency=SLOTS).pid)

    def work() -> None:
        calls = [runtime.submit("FAULT.READ", {}) for _ in range(2 * SLOTS)]
        assert {call.result(SOONER).status for call in calls} == {"success"}

    with crew.runtime() as runtime:
        work()
        descriptors, threads = worker.num_fds(), worker.num_threads()
        for _ in range(RESETS):
            reset_connections(client)
            work()
        wait_until(lambda: worker.num_fds() <= descriptors + LINES * SLOTS, what="no connection is left")
        wait_until(lambda: worker.num_threads() <= threads + SLOTS, what="no thread is left")


def test_a_purge_leaves_what_runs_and_does_not_stop_a_worker(crew: Crew, client: RedisClient) -> None:
    dying = crew.hire(concurrency=2)
    with crew.runtime() as runtime:
        running = [runtime.submit("FAULT.READ", {"seconds": [60, 0]}) for _ in range(2)]
        crew.wait_started(*(call.id for call in running))
        runtime.submit("FAULT.WORK", {})
        survivor = crew.hire(concurrency=2)
        client.delete("ditto.fault.work:normal", "ditto.fault.loop:low")
        dying.kill()
        assert {call.result(60).status for call in running} == {"success"}
        assert runtime.submit("FAULT.WORK", {}).result(30).status == "success"
    assert "Traceback" not in survivor.log


def test_a_closed_runtime_leaves_no_thread_and_no_connection(crew: Crew) -> None:
    crew.hire()
    process = psutil.Process()

    def connections() -> set[int]:
        port = int(crew.url.split(":")[2].split("/")[0])
        return {one.fd for one in process.net_connections() if one.raddr and one.raddr.port == port}

    before = connections(), set(threading.enumerate())
    with crew.runtime() as runtime:
        assert runtime.invoke("FAULT.WORK", {}).status == "success"
        assert len(list(runtime.map("FAULT.WORK", [{}] * 3))) == 3
        runtime.submit("FAULT.LOOP", {}).cancel()
        assert runtime.workers()
    assert connections() <= before[0]
    assert set(threading.enumerate()) <= before[1]


@pytest.mark.parametrize("pool", POOLS)
def test_calls_that_have_ended_leave_nothing_but_their_results(crew: Crew, pool: str) -> None:
    worker = crew.hire(pool=pool)
    with connect(crew.url) as client:
        wait_until(lambda: client.exists("ditto:leases"), what="the worker reads")
        idle = our_lasting_keys(client)
        with crew.runtime() as runtime:
            calls = [runtime.submit("FAULT.READ", {}) for _ in range(50)]
            cancelled = runtime.submit("FAULT.LOOP", {})
            cancelled.cancel()
            found = runtime.invocation(calls[0].id)
            assert {call.result(30).status for call in [*calls, found]} == {"success"}
            assert cancelled.result(30).status == "cancelled"
        assert our_lasting_keys(client) == idle
        left = {key.decode() for key in client.scan_iter(KEYS.prefix + ":*")}
        assert not {key for key in left if key.startswith((KEYS.call(""), KEYS.waiters("")))}
        assert worker.stop() == 0
        wait_until(lambda: entries(client) == 0)
        assert our_lasting_keys(client) == set()


def our_lasting_keys(client: RedisClient) -> set[str]:
    return {key for key in lasting_keys(client) if not key.startswith(KOMBUS_OWN)}
