"""Beat's dispatcher over a real server: slots are sent once, whatever fails between sending and noting."""

import logging
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from beat.dispatcher import Dispatcher
from beat.entry import Entry
from ditto_tasks.clock import slots_between
from ditto_tasks.config import DittoConfig, Schedule, Transport
from ditto_tasks.contracts.errors import BrokerUnavailable
from ditto_tasks.transport.client import CeleryTransport
from ditto_tasks.transport.connection import RedisClient, connect
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.port import OutgoingCall
from ditto_tasks.transport.slots import SlotBook
from tests.conftest import RedisServer

KEYS = Keys("ditto")
STREAM = "ditto.memory.query:normal"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def sweep(**settings: Any) -> dict[str, Any]:
    return {"name": "sweep", "task": "MEMORY.QUERY", "every": 1, **settings}


class Site:
    """A server, the beats that send over it, and what has arrived."""

    def __init__(self, url: str, **transport: Any) -> None:
        settings = Transport.model_validate(transport)
        self.transport = CeleryTransport(DittoConfig(broker_url=url, result_url=url, transport=settings))
        self.client: RedisClient = connect(url)

    def beat(self, *schedules: dict[str, Any], loses: type[BaseException] | None = None) -> "Beat":
        """Start a beat; with `loses`, every call of its arrives, and it does not hear of it."""
        return Beat(self, [Schedule.model_validate(one) for one in schedules], loses)

    def arrived(self) -> list[str]:
        """List the execution ids of what waits in the queue."""
        return [fields[b"i"].decode() for _, fields in self.client.xrange(STREAM)]

    def waiting(self) -> int:
        """Count what waits in the queue, whatever the broker."""
        (queue,) = self.transport.queues(["MEMORY.QUERY"])
        return queue.waiting

    def now(self) -> datetime:
        seconds, microseconds = self.client.time()
        return EPOCH + timedelta(seconds=seconds, microseconds=microseconds)

    def close(self) -> None:
        self.transport.close()
        self.client.close()


class Beat:
    def __init__(
        self, site: Site, schedules: list[Schedule], loses: type[BaseException] | None = None
    ) -> None:
        self.site = site
        self.book = site.transport.slots
        self.entries = [Entry.of(one) for one in schedules]
        self._loses = loses
        self._dispatcher = Dispatcher(self.entries, self.book, self._post, "ditto")

    def tick(self) -> float:
        return self._dispatcher.tick()

    def was_done(self, seconds_ago: float) -> datetime:
        """Let the schedules be done up to a time that is so long ago."""
        done = self.site.now() - timedelta(seconds=seconds_ago)
        stamp = (done - EPOCH) // timedelta(microseconds=1)
        self.site.client.hset(KEYS.slots_done, mapping={str(entry.place): stamp for entry in self.entries})
        return EPOCH + timedelta(microseconds=stamp)

    def expected(self, after: datetime, until: datetime, index: int = 0) -> list[str]:
        """List the execution ids of the slots in a span."""
        entry = self.entries[index]
        slots = slots_between(entry.place.rule, after, until)
        return [entry.call(slot, "ditto").execution_id for slot in slots]

    def last_sent(self) -> datetime:
        _, (slot,) = self.book.sent([self.entries[0].place])
        assert slot is not None
        return slot

    def dies(self) -> None:
        """Let the lease run out."""
        self.site.client.delete(KEYS.beat)

    def _post(self, call: OutgoingCall) -> None:
        self.site.transport.post([call])
        if self._loses is not None:
            raise self._loses("the answer was lost")


class FlakyConnection(redis.Connection):
    """Breaks one time in twenty before a command is sent, and as often before its answer is read."""

    dice = random.Random(7)

    def send_packed_command(self, *args: Any, **options: Any) -> None:
        self._break_sometimes()
        super().send_packed_command(*args, **options)

    def read_response(self, *args: Any, **options: Any) -> Any:
        response = super().read_response(*args, **options)
        self._break_sometimes()
        return response

    def _break_sometimes(self) -> None:
        if self.dice.random() < 0.05:
            self.disconnect()
            raise redis.ConnectionError("cut")


class FlakyBeat(Beat):
    """A beat all of whose calls to Redis fail at random, before or after they have taken effect."""

    def __init__(self, site: Site, url: str) -> None:
        super().__init__(site, [Schedule.model_validate(sweep(every=0.01))])
        self._client = connect(url)
        self._client.connection_pool.connection_class = FlakyConnection
        self.book = SlotBook(self._client, KEYS)
        self._dispatcher = Dispatcher(self.entries, self.book, self._post, "ditto")

    def close(self) -> None:
        self._client.close()

    def _post(self, call: OutgoingCall) -> None:
        failure = FlakyConnection.dice.random()
        if failure < 0.05:
            raise BrokerUnavailable("the call did not arrive")
        self.site.transport.post([call])
        if failure > 0.95:
            raise BrokerUnavailable("the call arrived")


@pytest.fixture
def site(broker_url: str) -> Iterator[Site]:
    site = Site(broker_url)
    yield site
    site.close()


def test_a_new_schedule_begins_now(site: Site) -> None:
    beat = site.beat(sweep(every=3600))

    assert 0 < beat.tick() <= 1
    assert site.arrived() == []


def test_what_is_due_is_sent_once_and_noted(site: Site) -> None:
    beat = site.beat(sweep())
    done = beat.was_done(20)

    beat.tick()
    beat.tick()

    assert len(site.arrived()) >= 20
    assert site.arrived() == beat.expected(done, beat.last_sent())


def test_a_beat_that_died_before_noting_is_followed_by_one_that_sends_nothing_twice(site: Site) -> None:
    dying = site.beat(sweep(), loses=SystemExit)
    done = dying.was_done(20)
    with pytest.raises(SystemExit):
        dying.tick()
    assert len(site.arrived()) == 1
    dying.dies()

    beat = site.beat(sweep())
    beat.tick()

    assert site.arrived() == beat.expected(done, beat.last_sent())


def test_a_call_of_which_nobody_knows_whether_it_arrived_is_sent_again_and_arrives_once(site: Site) -> None:
    unlucky = site.beat(sweep(), loses=BrokerUnavailable)
    done = unlucky.was_done(5)

    waits = [unlucky.tick() for _ in range(3)]

    assert waits == [0.5] * 3
    assert site.arrived() == unlucky.expected(done, done + timedelta(seconds=1))


def test_a_thousand_slots_are_sent_once_each_by_beats_that_come_and_go_and_whose_calls_fail(
    broker_url: str, site: Site
) -> None:
    dice = random.Random(3)
    beats = [FlakyBeat(site, broker_url) for _ in range(2)]
    done = beats[0].was_done(10)

    while site.client.xlen(STREAM) < 1000:
        beat = dice.choice(beats)
        beat.tick()
        if dice.random() < 0.3:  # the lease ends, and the beat that had it does not know
            beat.dies()
        if dice.random() < 0.1:
            beat.close()
            beats.remove(beat)
            beats.append(FlakyBeat(site, broker_url))

    last = done + len(site.arrived()) * timedelta(seconds=0.01)
    assert site.arrived() == beats[0].expected(done, last)
    for beat in beats:
        beat.close()


def test_over_kombus_lists_what_was_sent_and_not_noted_is_not_sent_again(broker_url: str) -> None:
    site = Site(broker_url, broker="kombu")
    dying = site.beat(sweep(), loses=SystemExit)
    done = dying.was_done(20)
    with pytest.raises(SystemExit):
        dying.tick()
    dying.dies()

    beat = site.beat(sweep())
    beat.tick()

    assert site.waiting() == len(beat.expected(done, beat.last_sent()))
    site.close()


def test_over_kombus_lists_a_slot_whose_beat_died_while_sending_is_sent(broker_url: str) -> None:
    site = Site(broker_url, broker="kombu")
    beat = site.beat(sweep())
    done = beat.was_done(20)
    (first, *_) = slots_between(beat.entries[0].place.rule, done, site.now())
    claimed = beat.entries[0].call(first, "ditto")
    site.client.set(KEYS.idempotency(claimed.node, str(claimed.idempotency_key)), claimed.execution_id, ex=60)

    beat.tick()

    assert site.waiting() == len(beat.expected(done, beat.last_sent()))
    site.close()


def test_a_call_that_ran_is_not_sent_again(site: Site) -> None:
    unlucky = site.beat(sweep(), loses=BrokerUnavailable)
    unlucky.was_done(1.5)
    unlucky.tick()
    (sent,) = site.arrived()
    site.client.delete(STREAM)

    unlucky.tick()

    assert sent not in site.arrived()


def test_one_beat_sends_and_the_other_stands_by_until_it_is_gone(site: Site) -> None:
    first, second = site.beat(sweep()), site.beat(sweep())
    first.tick()
    first.was_done(10)

    assert second.tick() == 1.0
    assert site.arrived() == []

    first.book.let_go()
    second.tick()
    assert len(site.arrived()) >= 10


def test_what_a_beat_notes_after_it_was_replaced_does_not_count(site: Site) -> None:
    old, new = site.beat(sweep()), site.beat(sweep())
    place = old.entries[0].place
    token = old.book.look([place]).token
    old.dies()
    done = new.book.look([place]).done[0]

    assert not old.book.note_sent(token, place, done + timedelta(days=1))
    assert new.book.look([place]).done[0] == done


def test_a_beat_that_sends_after_it_was_replaced_sends_nothing_twice(site: Site) -> None:
    old, new = site.beat(sweep()), site.beat(sweep())
    done = old.was_done(10)
    (entry,) = old.entries
    stale = [entry.call(slot, "ditto") for slot in slots_between(entry.place.rule, done, site.now())]
    new.tick()

    for call in stale:
        site.transport.post([call])

    assert site.arrived() == new.expected(done, new.last_sent())


@pytest.mark.parametrize(("misfire", "count"), [("skip", 0), ("run-once", 1)])
def test_what_was_missed_is_left_out_or_made_up_for_once(site: Site, misfire: str, count: int) -> None:
    half_an_hour_ago = (site.now().minute + 30) % 60
    hourly = {"name": "sweep", "task": "MEMORY.QUERY", "cron": f"{half_an_hour_ago} * * * *"}
    beat = site.beat({**hourly, "misfire": misfire})
    beat.was_done(50 * 3600)

    beat.tick()
    beat.tick()

    assert len(site.arrived()) == count


def test_a_schedule_with_another_rule_begins_anew_and_one_with_another_input_does_not(site: Site) -> None:
    site.beat(sweep()).was_done(30)

    other_rule = site.beat(sweep(every=2))
    other_rule.tick()
    assert site.arrived() == []

    other_rule.dies()
    site.beat(sweep()).was_done(30)
    site.beat(sweep(input={"limit": 3})).tick()
    assert len(site.arrived()) >= 30


def test_a_schedule_that_was_removed_is_forgotten(site: Site) -> None:
    beat = site.beat(sweep(), sweep(name="other"))
    beat.tick()
    beat.dies()

    site.beat(sweep()).tick()

    assert site.client.hkeys(KEYS.slots_done) == [b"sweep: every 1 s"]


def test_a_full_queue_is_waited_for(broker_url: str, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(broker_url, maxPending=1)
    beat = site.beat(sweep())
    done = beat.was_done(3)

    waits = [beat.tick(), beat.tick()]
    assert waits == [0.5, 0.5]
    assert site.arrived() == beat.expected(done, done + timedelta(seconds=1))
    assert caplog.text.count("sweep waits: 1 calls wait in ditto.memory.query") == 1

    site.client.xtrim(STREAM, maxlen=0)
    beat.tick()
    assert site.arrived() == beat.expected(done, done + timedelta(seconds=2))[1:]
    site.close()


def test_a_call_that_cannot_be_sent_is_left_out_and_the_others_go_on(
    broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(broker_url, maxBodyBytes=1024)
    beat = site.beat(sweep(name="large", input={"filter": {"a": "x" * 2000}}), sweep(name="small"))
    done = beat.was_done(5)

    beat.tick()

    _, (large, small) = beat.book.sent([entry.place for entry in beat.entries])
    assert large is None
    assert small is not None
    assert site.arrived() == beat.expected(done, small, index=1)
    assert "is left out, it cannot be sent" in caplog.text
    site.close()


def test_a_server_that_is_away_is_waited_for(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site = Site(own_server.url())
    beat = site.beat(sweep())
    done = beat.was_done(5)

    own_server.stop()
    assert [beat.tick() for _ in range(3)] == [0.5] * 3
    own_server.start()
    beat.tick()

    assert site.arrived() == beat.expected(done, beat.last_sent())
    assert caplog.text.count("the schedules wait: looking at the schedules failed") == 1
    assert "the broker answers again" in caplog.text
    site.close()


def test_the_result_of_a_slot_can_be_asked_for_by_its_execution_id(site: Site) -> None:
    beat = site.beat(sweep())
    beat.was_done(1.5)
    beat.tick()

    assert site.transport.state(site.arrived()[0]) == "pending"
