"""Limits over all workers: calls at once, calls at once a key, calls a second (case Q11)."""

import os
import signal
import time
from collections.abc import Iterator

import pytest
from redis.exceptions import ConnectionError

from ditto_tasks import Invocation, Runtime
from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.consumer import StreamConsumer
from ditto_tasks.transport.entry import Entry
from ditto_tasks.transport.keys import Keys, stream_name
from ditto_tasks.transport.limits import Limit
from tests.conftest import LATE, RedisServer, WorkerProcess, wait_until
from tests.integration.conftest import LEASE, Site
from tests.integration.notes import Note, most_at_once

LIMIT = 2  # of the capability LIMITED
SECONDS = 0.3
CALLS = 20
SOON = 0.5  # seconds in which a free slot is taken on a busy machine; who only looked would need 1.5
QUEUE = "held.test"
TOLERANCE = 0.01  # seconds; the server counts in milliseconds


@pytest.fixture(scope="module")
def workers(shared_site: Site) -> list[WorkerProcess]:
    return shared_site.hire_many(3)


@pytest.fixture
def runtime(shared_site: Site, workers: list[WorkerProcess]) -> Iterator[Runtime]:
    with shared_site.runtime() as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """After all calls, nothing is left of what counts them."""
    site: Site = request.getfixturevalue("site" if "site" in request.fixturenames else "shared_site")
    yield
    wait_until(lambda: left_of_limits(site) == [], 5 + LATE, what="the limits' keys are gone")


def left_of_limits(site: Site) -> list[bytes]:
    kinds = ("running", "keyed", "parked")
    names = [name for kind in kinds for name in site.client.scan_iter(f"{site.keys.prefix}:{kind}*")]
    return names + ([b"entries"] if site.entries() else [])


def statuses(calls: list[Invocation], timeout: float = 60) -> set[str]:
    return {call.result(timeout).status for call in calls}


def span(notes: list[Note]) -> float:
    """Seconds from the first start to the last end."""
    return max(note.at for note in notes) - min(note.at for note in notes)


def test_no_more_than_the_limit_run_at_once_and_it_is_used(shared_site: Site, runtime: Runtime) -> None:
    calls = [runtime.submit("LIMITED.READ", {"label": f"busy {n}", "seconds": SECONDS}) for n in range(CALLS)]
    assert statuses(calls) == {"success"}
    notes = [note for note in shared_site.notes.all() if note.label.startswith("busy")]
    assert most_at_once(notes) == LIMIT
    assert len(notes) == 2 * CALLS
    assert span(notes) < (SECONDS + SOON) * CALLS / LIMIT
    assert len({note.pid for note in notes}) > 1


def test_calls_that_come_one_by_one_begin_at_once(runtime: Runtime) -> None:
    began = time.monotonic()
    for n in range(10):
        assert runtime.invoke("LIMITED.READ", {"label": f"single {n}"}).status == "success"
    assert time.monotonic() - began < 10 * SOON


def test_a_key_has_one_call_at_a_time_and_keys_do_not_block_each_other(
    shared_site: Site, runtime: Runtime
) -> None:
    keys = "abc"
    calls = [
        runtime.submit("KEYED.WORK", {"label": f"key-{key}-{n}", "seconds": 0.3}, concurrency_key=key)
        for n in range(6)
        for key in keys
    ]
    without = [runtime.submit("KEYED.WORK", {"label": "key-none", "seconds": 2}) for _ in range(3)]
    assert statuses([*calls, *without]) == {"success"}
    for key in keys:
        assert shared_site.notes.most_at_once(f"key-{key}") == 1
        assert len(shared_site.notes.started(f"key-{key}")) == 6
    assert shared_site.notes.most_at_once("key-") >= 3
    assert shared_site.notes.most_at_once("key-none") >= 2


def test_a_busy_key_does_not_keep_another_one_waiting(shared_site: Site, runtime: Runtime) -> None:
    busy = [runtime.submit("KEYED.LOOP", {"label": "one key"}, concurrency_key="busy") for _ in range(20)]
    shared_site.wait_started("one key")
    other = runtime.submit("KEYED.WORK", {"label": "free"}, concurrency_key="a key, with: spaces")
    assert other.result(30).status == "success"
    for call in busy:
        call.cancel()
    assert statuses(busy) == {"cancelled"}
    assert shared_site.notes.started("one key") == ["one key"]


def test_a_call_that_is_cancelled_while_it_waits_for_its_key_does_not_block_the_key(
    shared_site: Site, runtime: Runtime
) -> None:
    def submit(label: str) -> Invocation:
        held = {"label": label, "until": str(shared_site.gate)}
        return runtime.submit("KEYED.WORK", held, concurrency_key="chain")

    first = submit("chain 0")
    wait_until(lambda: shared_site.notes.started("chain"), what="the first runs")
    second, third = submit("chain 1"), submit("chain 2")
    wait_until(lambda: shared_site.client.llen("ditto:parked:keyed:chain") == 2, what="two wait")
    second.cancel("not wanted")
    shared_site.gate.touch()
    assert statuses([first, third]) == {"success"}
    assert (second.result(30).status, second.status()) == ("cancelled", "cancelled")
    assert shared_site.notes.started("chain") == ["chain 0", "chain 2"]


def test_calls_begin_at_a_rate_over_all_workers(shared_site: Site, runtime: Runtime) -> None:
    rate = burst = 10  # what the app gives RATED
    count = 35
    began = time.time()
    calls = [runtime.submit("RATED.WORK", {"label": f"rated {n}"}) for n in range(count)]
    assert statuses(calls) == {"success"}
    assert_began_at_a_rate(shared_site.notes.of("started", "rated"), began, rate, burst)


def assert_began_at_a_rate(started: list[Note], began: float, rate: int, burst: int) -> None:
    """Of what has waited since `began`, no call comes early, nor much later than it may."""
    for number, note in enumerate(sorted(started, key=lambda note: note.at), 1):
        earliest = (number - burst) / rate
        assert earliest - TOLERANCE <= note.at - began < max(earliest, 0) + 1.5 + LATE


def test_the_slot_of_a_worker_that_was_killed_comes_back(site: Site) -> None:
    workers = site.hire_many(3)
    with site.runtime() as runtime:
        calls = [runtime.submit("LIMITED.READ", {"label": str(n), "seconds": 1}) for n in range(12)]
        wait_until(lambda: len(site.notes.started()) >= LIMIT)
        holder = next(worker for worker in workers if worker.pid == site.notes.of("started")[-1].pid)
        killed_at = time.time()
        os.kill(holder.pid, signal.SIGKILL)
        site.notes.add(Note("killed", "", holder.pid, time.time()))
        assert statuses(calls) == {"success"}
    notes = site.notes.all()
    assert most_at_once(notes) == LIMIT
    back_at = min(
        note.at
        for note in notes
        if note.at > killed_at and running(notes, note.at, besides=holder.pid) == LIMIT
    )
    assert back_at - killed_at < LEASE + 2 + LATE


def running(notes: list[Note], at: float, besides: int) -> int:
    """Count the nodes that ran at a time, those of one process aside."""
    seen = [note for note in notes if note.at <= at and note.pid != besides]
    return sum(1 if note.event == "started" else -1 for note in seen if note.event != "killed")


@pytest.mark.parametrize("is_purged", [False, True], ids=["", "with its queue purged"])
def test_the_key_of_a_worker_that_was_killed_comes_back(site: Site, is_purged: bool) -> None:
    workers = site.hire_many(2, concurrency=2)
    with site.runtime() as runtime:
        first = runtime.submit("KEYED.LOOP", {"label": "first"}, concurrency_key="k")
        site.wait_started("first")
        second = runtime.submit("KEYED.WORK", {"label": "second"}, concurrency_key="k")
        wait_until(lambda: site.client.llen("ditto:parked:keyed:k") == 1, what="the second waits")
        if is_purged:
            site.client.delete(site.stream("KEYED.LOOP"))
        holder = next(worker for worker in workers if worker.pid == site.notes.of("started")[0].pid)
        holder.kill()
        third = runtime.submit("KEYED.WORK", {"label": "third"}, concurrency_key="k")
        assert statuses([second, third], LEASE + 30) == {"success"}
        if not is_purged:
            assert first.result(30).error is not None


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_limits_from_the_configuration_hold_for_memory(site: Site, pool: str) -> None:
    site.memory |= {"globalConcurrency": 2, "keyConcurrency": 1}
    site.hire_many(2, pool=pool)
    with site.runtime() as runtime:
        calls = [
            runtime.submit("MEMORY.GET", {"keys": [f"{tenant}-{n}"]}, concurrency_key=tenant)
            for n in range(5)
            for tenant in "abc"
        ]
        assert statuses(calls) == {"success"}
    assert site.notes.most_at_once() == 2
    assert [site.notes.most_at_once(tenant) for tenant in "abc"] == [1] * 3


def test_a_rate_from_the_configuration_holds_for_memory(site: Site) -> None:
    site.memory["ratePerSecond"] = 4
    site.hire()
    with site.runtime() as runtime:
        began = time.time()
        calls = [runtime.submit("MEMORY.GET", {"keys": [str(n)]}) for n in range(12)]
        assert statuses(calls) == {"success"}
    assert len(site.notes.of("started")) == 12
    assert_began_at_a_rate(site.notes.of("started"), began, rate=4, burst=4)


@pytest.fixture
def limited_consumer(own_server: RedisServer) -> Iterator[StreamConsumer]:
    """One that reads a limited queue in the name of this process."""
    with connect(own_server.fresh_url()) as client:
        consumer = StreamConsumer(client, Keys("held"), LEASE, None, {QUEUE: Limit("held", concurrency=2)})
        consumer.read([QUEUE])
        yield consumer
        consumer.stop()


def read_one(consumer: StreamConsumer) -> object:
    """Write two calls of other priorities, and give what a blocking read brings: one of each."""
    for priority in ("high", "normal"):
        consumer._client.xadd(stream_name(QUEUE, priority), {"i": priority, "m": b"{}", "b": b"[]"})
    command = [str(word) for word in consumer.read_command(0)]
    at = command.index("BLOCK")
    return consumer._client.execute_command(*command[:at], *command[at + 2 :])


def test_limited_calls_for_which_the_server_has_no_memory_are_given_back(
    limited_consumer: StreamConsumer,
) -> None:
    consumer, client = limited_consumer, limited_consumer._client
    reply = read_one(consumer)
    client.config_set("maxmemory", 1)

    with pytest.raises(ConnectionError, match="cannot give messages now"):
        consumer.read_reply(reply)

    assert consumer.held == 0
    client.config_set("maxmemory", 0)
    assert taken_again(consumer) == {"high", "normal"}


def test_limited_calls_whose_slot_is_not_found_before_the_server_is_lost_are_given_back(
    limited_consumer: StreamConsumer, own_server: RedisServer
) -> None:
    reply = read_one(limited_consumer)
    own_server.stop()

    with pytest.raises(ConnectionError, match="cannot give messages now"):
        limited_consumer.read_reply(reply)

    assert limited_consumer.held == 0
    own_server.start()
    assert taken_again(limited_consumer) == {"high", "normal"}


def taken_again(consumer: StreamConsumer) -> set[str]:
    """Take over what was given back, until it is both calls."""
    taken: list[Entry] = []

    def are_taken() -> bool:
        taken.extend(consumer.take_overdue(2 - len(taken)))
        return len(taken) == 2

    wait_until(are_taken, 3 * LEASE + LATE, what="both calls come again")
    return {entry.fields["i"].decode() for entry in taken}
