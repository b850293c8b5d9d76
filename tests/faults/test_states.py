"""The states of a call, against a simple oracle: any process may die between any two of its commands.

The real ledger and the real consumers over a real server; the processes are played one step at a time,
without Celery. One that dies is dropped as it is, and its lease ends because its time is written to the past.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.consumer import StreamConsumer
from ditto_tasks.transport.entry import Entry
from ditto_tasks.transport.keys import PRIORITIES, Keys, stream_name
from ditto_tasks.transport.ledger import Begun, Delivery, Ledger
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.streams import delayed_member
from tests.conftest import RedisServer, wait_until

KEYS = Keys("ditto")
QUEUE = "ditto.test.call"
STREAMS = [stream_name(QUEUE, priority) for priority in PRIORITIES]
LEASE = 3600.0  # seconds; leases end when a rule says so
EXPIRES = 3600  # seconds
MAX_DELIVERIES = 3


class SteppedConsumer(StreamConsumer):
    """A consumer without its thread: rules renew its lease, or let it end."""

    def read(self, queues: object = (QUEUE,)) -> None:
        self._streams = STREAMS
        self._limited = {stream: limit for limit in self._limits.values() for stream in STREAMS}
        self.make_groups()
        self._client.hset(KEYS.consumers, self.name, encode_json(STREAMS))
        self._renew()

    def look(self) -> None:
        self._renewed_at = float("inf")  # each look renews: what is found must not depend on time
        self._renew()


def read_blocking(client: RedisClient, consumer: StreamConsumer) -> list[Entry]:
    """Read as a worker that waits does, but only what is there at once: servers round short waits up."""
    command = list(consumer.read_command(0))
    at = command.index("BLOCK")
    del command[at : at + 2]
    return list(consumer.read_reply(client.execute_command(*command)).entries)


def read_and_begin(client: RedisClient, consumer: StreamConsumer) -> list[Entry]:
    """Read likewise, begin what came, and see how that went."""
    entries = read_blocking(client, consumer)
    for entry in entries:
        consumer.begin(entry)
    begins = [consumer.beginning(entry.tag) for entry in entries]
    return [
        entry if begin is None else entry._replace(begun=begin())
        for entry, begin in zip(entries, begins, strict=True)
    ]


@dataclass
class Process:
    """One process with what it has fetched and what it runs."""

    consumer: SteppedConsumer
    fetched: list[Entry] = field(default_factory=list)


@dataclass
class Run:
    """One attempt to run a call, from its begin to its end."""

    id: str
    attempt: int
    outcome: str
    tag: str
    process: Process


@dataclass
class Known:
    """What the oracle knows of one call."""

    is_repeatable: bool = True
    is_cancelled: bool = False
    attempts: int = 0
    result: bytes | None = None
    started: list[int] = field(default_factory=list)
    was_cancelled_first: bool = False


class CallStates(RuleBasedStateMachine):
    """Submits, fetches, begins, ends, cancels, kills and takes over, in any order."""

    client: RedisClient  # set by the test

    runs = Bundle("runs")
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.client.flushdb()
        self.ledger = Ledger(self.client, KEYS, EXPIRES)
        self.calls: dict[str, Known] = {}
        self.processes: list[Process] = []
        self.kept_running: list[Run] = []

    # --- the steps of callers

    @initialize(target=ids)
    def two_processes_and_two_calls(self) -> object:
        self.hire()
        self.hire()
        return multiple(self.submit("normal", None, True), self.submit("normal", None, False))

    @precondition(lambda self: len(self.calls) < 4)
    @rule(
        target=ids,
        priority=st.sampled_from(PRIORITIES),
        delay=st.sampled_from([None, -1, 3_600_000]),
        is_repeatable=st.booleans(),
    )
    def submit(self, priority: str, delay: int | None, is_repeatable: bool) -> str:
        id = f"call-{len(self.calls)}"
        self.calls[id] = Known(is_repeatable)
        stream, fields = stream_name(QUEUE, priority), {"i": id, "m": b"{}", "b": b"[]"}
        if delay is None:
            self.client.xadd(stream, fields)
        else:
            seconds, microseconds = self.client.time()
            due = seconds * 1000 + microseconds // 1000 + delay
            self.client.zadd(KEYS.delayed, {delayed_member(stream, id, fields): due})
        return id

    @rule(id=ids)
    def cancel(self, id: str) -> None:
        known = self.calls[id]
        assert self.ledger.cancel(id, "why") is (known.result is None)
        if known.result is None:
            known.is_cancelled = True
            known.was_cancelled_first |= known.attempts == 0

    # --- the steps of processes

    @precondition(lambda self: len(self.processes) < 3)
    @rule()
    def hire(self) -> None:
        begins = EXPIRES if len(self.processes) % 2 else None
        process = Process(SteppedConsumer(self.client, KEYS, LEASE, begins))
        process.consumer.read()
        self.processes.append(process)

    @rule(data=st.data(), count=st.integers(1, 3), how=st.sampled_from(["at once", "blocking", "reply lost"]))
    def fetch(self, data: st.DataObject, count: int, how: str) -> None:
        process = self._any(data)
        if how == "blocking":
            self._got(process, read_and_begin(self.client, process.consumer))
            return
        entries = process.consumer.fetch(count).entries
        if how == "at once":
            self._got(process, entries)
            return
        for entry in entries:  # the server has answered, and the connection is gone
            self._count_begun(entry)
            process.consumer.settled(entry.tag)

    @rule(target=runs, data=st.data())
    def begin(self, data: st.DataObject) -> object:
        process = self._any(data, having_fetched=True)
        return multiple() if process is None else self._begin(process)

    @rule(target=runs, data=st.data())
    def fetch_and_begin(self, data: st.DataObject) -> object:
        process = self._any(data)
        self._got(process, process.consumer.fetch(1).entries)
        return self._begin(process) if process.fetched else multiple()

    @rule(run=consumes(runs), settles=st.booleans())
    def end(self, run: Run, settles: bool) -> None:
        """Store the result; the acknowledgement rides along, or comes in a step of its own."""
        self._store(run, settles)
        if not settles:
            run.process.consumer.settle(run.tag)

    @rule(target=runs, run=consumes(runs))
    def end_and_lose_the_acknowledgement(self, run: Run) -> object:
        """The process goes on after its result was stored, and may end the call a second time."""
        self._store(run, settles=False)
        return run

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        process = self._any(data, having_fetched=True)
        if process is not None:
            process.consumer.release(process.fetched.pop().tag)
            self._note_attempts_taken_back()

    @rule(run=consumes(runs))
    def lose_the_child_that_ran_it(self, run: Run) -> None:
        run.process.consumer.release(run.tag)

    @rule(data=st.data(), what=st.sampled_from(["look", "look", "give strays back", "count all"]))
    def look(self, data: st.DataObject, what: str) -> None:
        consumer = self._any(data).consumer
        if what == "look":
            consumer.look()
        elif what == "count all":
            consumer.count_all()
        else:
            consumer.release_strays()
            self._note_attempts_taken_back()

    @rule(data=st.data(), count=st.integers(1, 3))
    def take_over(self, data: st.DataObject, count: int) -> None:
        process = self._any(data)
        process.consumer.look()
        self._got(process, process.consumer.take_overdue(count))

    # --- what goes wrong

    @rule(data=st.data(), takes_over=st.booleans(), forgets=st.booleans(), begins=st.booleans())
    def suspend(self, data: st.DataObject, takes_over: bool, forgets: bool, begins: bool) -> None:
        """One is silent for longer than its lease; another may take what it holds. It goes on, though."""
        suspended = self._any(data)
        self.client.zadd(KEYS.leases, {suspended.consumer.name: 1}, xx=True)
        others = [process for process in self.processes if process is not suspended]
        if not others or not takes_over:
            return
        other = data.draw(st.sampled_from(others))
        for _ in range(2 if forgets else 1):
            other.consumer.look()
            self._got(other, other.consumer.take_overdue(10))
        if begins and other.fetched:
            self.kept_running += [run for run in [self._begin(other)] if isinstance(run, Run)]

    @precondition(lambda self: len(self.processes) > 1)
    @rule(data=st.data(), how=st.sampled_from(["killed", "stopped"]))
    def go_away(self, data: st.DataObject, how: str) -> None:
        """Drop a process with what it has fetched and noted to settle, or let it give that back."""
        process = self._any(data)
        self.processes.remove(process)
        if how == "killed":
            self.client.zadd(KEYS.leases, {process.consumer.name: 1}, xx=True)
            return
        process.consumer.stop()
        self._note_attempts_taken_back()
        assert not self.client.zscore(KEYS.leases, process.consumer.name)

    @precondition(lambda self: self.kept_running)
    @rule(settles=st.booleans())
    def end_what_was_taken_over(self, settles: bool) -> None:
        self.end(self.kept_running.pop(0), settles)

    @rule()
    def die_on_arrival(self) -> None:
        """A process announces its streams and dies before it has a lease."""
        self.client.hset(KEYS.consumers, f"dead-{len(self.calls)}", encode_json(STREAMS))

    # --- what always holds

    @invariant()
    def a_stored_result_never_changes(self) -> None:
        for id, known in self.calls.items():
            assert self.client.get(KEYS.result(id)) == known.result

    @invariant()
    def nothing_is_lost(self) -> None:
        """A call without a result is in a stream, or not due yet; what was fetched is noted as somebody's."""
        waiting = self._in_streams() | self._delayed()
        assert {id for id, known in self.calls.items() if known.result is None} <= waiting

    @invariant()
    def attempts_only_grow(self) -> None:
        for id, known in self.calls.items():
            counted = self.client.hget(KEYS.call(id), "attempts")
            assert int(counted or 0) == (0 if known.result is not None else known.attempts)

    @invariant()
    def a_call_cancelled_in_time_never_starts(self) -> None:
        assert not [id for id, known in self.calls.items() if known.was_cancelled_first and known.started]

    @invariant()
    def what_is_not_repeatable_starts_once_and_no_attempt_twice(self) -> None:
        for known in self.calls.values():
            assert len(known.started) == len(set(known.started))
            assert known.is_repeatable or len(known.started) <= 1

    @invariant()
    def what_an_attempt_runs_is_somebodys(self) -> None:
        """As long as a call has no result, whoever runs its latest attempt or another holds its message."""
        begun = {id for id, known in self.calls.items() if known.result is None and known.attempts}
        held = {held["message_id"] for stream in STREAMS for held in self._pending(stream)}
        messages = {
            fields[b"i"].decode(): entry for stream in STREAMS for entry, fields in self.client.xrange(stream)
        }
        assert {messages[id] for id in begun} <= held

    def teardown(self) -> None:
        """However it went on: one live process brings every call to its end."""
        for process in self.processes:
            self.client.zadd(KEYS.leases, {process.consumer.name: 1}, xx=True)
        last = Process(SteppedConsumer(self.client, KEYS, LEASE, EXPIRES))
        last.consumer.read()
        for name, score in self.client.zrange(KEYS.delayed, 0, -1, withscores=True):
            assert score
            self.client.zadd(KEYS.delayed, {name: 1})
        for _ in range(20 * len(self.calls) + 20):
            last.consumer.count_all()
            for name in self.client.zrange(KEYS.leases, 0, -1):
                if name.decode() != last.consumer.name:
                    self.client.zadd(KEYS.leases, {name: 1})
            last.consumer.look()
            self._got(last, last.consumer.take_overdue(10) + list(last.consumer.fetch(10).entries))
            while last.fetched:
                self._finish(last, last.fetched.pop(0))
            last.consumer.look()
            if all(known.result is not None for known in self.calls.values()) and not self._in_streams():
                break
        assert not [id for id, known in self.calls.items() if known.result is None]
        assert not self._in_streams()
        last.consumer.stop()
        left = {key.decode() for key in self.client.scan_iter()}
        assert left <= {*STREAMS, *map(KEYS.result, self.calls), *map(KEYS.call, self.calls)}
        assert not [key for key in left if key.startswith(KEYS.call(""))]

    def _begin(self, process: Process) -> object:
        entry = process.fetched.pop(0)
        id = entry.fields["i"].decode()
        known = self.calls[id]
        begun = entry.begun or self.ledger.begin(id, tag=entry.tag)
        process.consumer.runs(entry.tag)
        if entry.begun is None and begun.verdict != "done":
            assert begun.attempt == known.attempts + 1
            known.attempts = begun.attempt
        if begun.verdict == "done":
            assert known.result is not None
            process.consumer.settle(entry.tag)
            return multiple()
        if known.was_cancelled_first:
            assert begun.verdict == "cancelled"
        outcome = self._outcome(id, begun)
        if outcome == "done":
            known.started.append(begun.attempt)
        return Run(id, begun.attempt, outcome, entry.tag, process)

    def _finish(self, process: Process, entry: Entry) -> None:
        id = entry.fields["i"].decode()
        begun = entry.begun or self.ledger.begin(id, tag=entry.tag)
        process.consumer.runs(entry.tag)
        known = self.calls[id]
        if begun.verdict == "done":
            process.consumer.settle(entry.tag)
            return
        known.attempts = max(known.attempts, begun.attempt)
        self._store(Run(id, begun.attempt, self._outcome(id, begun), entry.tag, process), settles=True)

    def _outcome(self, id: str, begun: Begun) -> str:
        """Say how an attempt ends if nothing comes between, as the task decides it."""
        if begun.verdict == "cancelled":
            return "cancelled"
        if begun.attempt > MAX_DELIVERIES:
            return "dead"
        return "done" if begun.attempt == 1 or self.calls[id].is_repeatable else "unknown"

    def _any(self, data: st.DataObject, *, having_fetched: bool = False) -> Process | None:
        processes = [process for process in self.processes if process.fetched or not having_fetched]
        return data.draw(st.sampled_from(processes)) if processes else None

    def _note_attempts_taken_back(self) -> None:
        """What was begun with its fetch, and given back before it ran, was no attempt."""
        for id, known in self.calls.items():
            if known.result is None:
                counted = int(self.client.hget(KEYS.call(id), "attempts") or 0)
                assert counted in (known.attempts, known.attempts - 1)
                assert counted >= max(known.started, default=0)
                known.attempts = counted

    def _got(self, process: Process, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._count_begun(entry)
        process.fetched += entries

    def _count_begun(self, entry: Entry) -> None:
        known = self.calls[entry.fields["i"].decode()]
        if entry.begun is None:
            return
        if entry.begun.verdict == "done":
            assert known.result is not None
            return
        assert entry.begun.attempt == known.attempts + 1
        known.attempts = entry.begun.attempt
        if known.is_cancelled:
            assert entry.begun.verdict == "cancelled"

    def _store(self, run: Run, settles: bool) -> None:
        known = self.calls[run.id]
        result = encode_json(
            {"status": "SUCCESS", "result": f"{run.outcome} {run.attempt}", "task_id": run.id}
        )
        delivery = Delivery(run.tag)
        ended = self.ledger.end(
            self.ledger.ending(run.id, delivery=delivery if settles else None).filled(result, run.attempt)
        )
        if known.result is not None:
            assert ended == "known"
        elif run.attempt < known.attempts:
            assert ended == "overtaken"
        else:
            assert ended == "stored"
            known.result = result
        if settles and ended != "known":
            run.process.consumer.settled(run.tag)

    def _pending(self, stream: str) -> list[dict[str, object]]:
        pending: list[dict[str, object]] = self.client.xpending_range(stream, KEYS.prefix, "-", "+", 1000)
        return pending

    def _in_streams(self) -> set[str]:
        return {fields[b"i"].decode() for stream in STREAMS for _, fields in self.client.xrange(stream)}

    def _delayed(self) -> set[str]:
        return {member.split(b"\0")[1].decode() for member in self.client.zrange(KEYS.delayed, 0, -1)}


@pytest.fixture
def states(redis_server: RedisServer) -> Iterator[type[CallStates]]:
    with connect(redis_server.fresh_url()) as client:
        CallStates.client = client
        yield CallStates


def test_the_states_of_a_call(states: type[CallStates]) -> None:
    run_state_machine_as_test(
        states,
        settings=settings(
            max_examples=250,
            stateful_step_count=50,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_call_that_comes_back_while_its_first_attempt_runs_is_not_settled_by_that_one(
    states: type[CallStates],
) -> None:
    """The first attempt, overtaken by one that died, ends last: the call goes to whoever looks next."""
    machine = states()
    first, second = (
        Process(SteppedConsumer(states.client, KEYS, LEASE, begins)) for begins in (EXPIRES, None)
    )
    for process in (first, second):
        process.consumer.read()
    machine.submit("normal", None, True)
    [entry] = first.consumer.fetch(1).entries
    states.client.zadd(KEYS.leases, {first.consumer.name: 1})
    second.consumer.look()
    [taken] = second.consumer.take_overdue(1)
    assert machine.ledger.begin("call-0", tag=taken.tag).attempt == 2
    states.client.zadd(KEYS.leases, {second.consumer.name: 1})

    first.consumer.look()
    assert first.consumer.take_overdue(1) == []
    ending = machine.ledger.ending("call-0").filled(b"late", 1)
    assert machine.ledger.end(ending) == "overtaken"
    first.consumer.settle(entry.tag)
    first.consumer.look()

    assert [again.id for again in first.consumer.take_overdue(1)] == [entry.id]


def test_a_call_that_was_given_back_waits_while_its_key_is_full(states: type[CallStates]) -> None:
    limits = {QUEUE: Limit("test", per_key=1)}
    first, second = (SteppedConsumer(states.client, KEYS, LEASE, None, limits) for _ in range(2))
    for consumer in (first, second):
        consumer.read()
    stream = stream_name(QUEUE, "normal")
    for id in ("given back", "running"):
        states.client.xadd(stream, {"i": id, "m": b"{}", "b": b"[]", "k": "tenant"})
        [entry] = first.fetch(1).entries
        if id == "given back":
            first.release(entry.tag)

    second.look()
    assert second.take_overdue(1) == []
    first.settle(entry.tag)
    first.look()
    second.look()

    assert [taken.fields["i"] for taken in second.take_overdue(1)] == [b"given back"]


def test_a_call_that_is_given_back_while_it_is_begun_counts_no_attempt(states: type[CallStates]) -> None:
    machine = states()
    first, second = (SteppedConsumer(states.client, KEYS, LEASE, EXPIRES) for _ in range(2))
    for consumer in (first, second):
        consumer.read()
    machine.submit("normal", None, False)
    [entry] = read_blocking(states.client, first)
    first.begin(entry)
    begin = first.beginning(entry.tag)
    assert begin is not None

    first.release(entry.tag)

    with pytest.raises(redis.ConnectionError, match="given back"):
        begin()
    second.look()
    [taken] = second.take_overdue(1)
    assert machine.ledger.begin("call-0", tag=taken.tag).attempt == 1


def test_of_two_calls_that_two_processes_died_with_the_second_is_taken_a_lease_later(
    states: type[CallStates],
) -> None:
    """The first may be waiting for the second: a node that calls another."""
    machine = states()
    for number in range(2):
        machine.submit("normal", None, number == 0)
    first, second = (SteppedConsumer(states.client, KEYS, LEASE, EXPIRES) for _ in range(2))
    last = SteppedConsumer(states.client, KEYS, 0.5, EXPIRES)
    for consumer in (first, second, last):
        consumer.read()
    first.fetch(2)
    for dead, heir in ((first, second), (second, last)):
        states.client.zadd(KEYS.leases, {dead.name: 1})
        heir.look()
        taken = heir.take_overdue(2)

    assert len(taken) == 1
    last.look()
    assert last.take_overdue(2) == []

    later: list[Entry] = []

    def takes_the_other() -> bool:
        last.look()
        later.extend(last.take_overdue(2))
        return bool(later)

    wait_until(takes_the_other)
    assert [entry.id for entry in later] != [entry.id for entry in taken]
