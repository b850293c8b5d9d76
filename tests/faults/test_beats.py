"""Beats that are killed, suspended, cut off and without a server: every slot is sent once."""

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from ditto_tasks.transport.connection import RedisClient
from tests.beat_process import KEYS, Orchestra
from tests.conftest import LATE, RedisServer, wait_until
from tests.faults.test_redis_restart import reset_connections

SLOTS = 1000
AT_ONCE = 2.0  # seconds in which a beat ends; it needs a few tenths, and a busy machine's time


@contextmanager
def cutting_connections(client: RedisClient) -> Iterator[list[float]]:
    """At random moments, close all connections but this one; gives when."""
    dice, stopping, cuts = random.Random(9), threading.Event(), list[float]()

    def cut() -> None:
        while not stopping.wait(dice.uniform(0.01, 0.4)):
            reset_connections(client)
            cuts.append(time.monotonic())

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield cuts
    finally:
        stopping.set()
        thread.join(10)


def test_a_thousand_slots_are_sent_once_each_while_beats_die_and_connections_break(
    orchestra: Orchestra,
) -> None:
    dice = random.Random(4)
    orchestra.start()
    orchestra.start()
    orchestra.sender()
    with cutting_connections(orchestra.client) as cuts:
        for goal in count(100, 300):
            orchestra.wait_sent(goal + dice.randrange(100))
            orchestra.replace(orchestra.sender() if goal % 200 else dice.choice(orchestra.beats))
            if goal >= SLOTS:
                break
        orchestra.wait_sent(SLOTS + 500)
    orchestra.stop()

    assert len(cuts) > 20
    assert orchestra.sent() >= SLOTS
    orchestra.assert_each_slot_was_sent_once()


def test_a_suspended_beat_is_replaced_and_sends_nothing_twice_when_it_wakes(orchestra: Orchestra) -> None:
    orchestra.start()
    orchestra.start()
    sleeper = orchestra.sender()
    orchestra.wait_sent(50)

    sleeper.send(signal.SIGSTOP)
    wait_until(lambda: orchestra.holder() not in (0, sleeper.pid), what="the other one sends")
    orchestra.wait_sent(orchestra.sent() + 50)
    sleeper.send(signal.SIGCONT)
    orchestra.wait_sent(orchestra.sent() + 100)
    orchestra.stop()

    orchestra.assert_each_slot_was_sent_once()


def test_a_beat_that_is_stopped_ends_at_once_and_the_other_goes_on(orchestra: Orchestra) -> None:
    orchestra.start()
    first = orchestra.sender()
    second = orchestra.start()
    wait_until(lambda: "stands by" in second.log)

    began = time.monotonic()
    assert first.stop() == 0
    assert time.monotonic() - began < AT_ONCE + LATE
    orchestra.beats.remove(first)
    assert orchestra.holder() != first.pid
    assert orchestra.sender() is second
    orchestra.wait_sent(orchestra.sent() + 50)
    orchestra.stop()

    orchestra.assert_each_slot_was_sent_once()


def test_a_server_that_was_restarted_costs_no_slot(own_server: RedisServer, tmp_path: Path) -> None:
    orchestra = Orchestra(own_server.url(), tmp_path, schedules=10)
    beat = orchestra.start()
    orchestra.wait_sent(20)

    own_server.stop()
    wait_until(lambda: "the schedules wait" in beat.log, what="beat has noticed")
    own_server.start()
    orchestra.wait_sent(orchestra.sent() + 50)

    assert beat.log.count("the schedules wait") == 1
    orchestra.stop()
    orchestra.assert_each_slot_was_sent_once()
    orchestra.close()


def test_a_beat_that_starts_without_a_server_sends_when_it_comes(
    own_server: RedisServer, tmp_path: Path
) -> None:
    orchestra = Orchestra(own_server.url(), tmp_path, schedules=5)
    own_server.stop()
    beat = orchestra.start()
    wait_until(lambda: "the schedules wait" in beat.log, what="beat has noticed")

    own_server.start()
    orchestra.wait_sent(10)
    orchestra.stop()

    orchestra.assert_each_slot_was_sent_once()
    orchestra.close()


def test_a_beat_without_a_server_ends_at_once(own_server: RedisServer, tmp_path: Path) -> None:
    orchestra = Orchestra(own_server.url(), tmp_path, schedules=1)
    beat = orchestra.start()
    orchestra.wait_sent(1)
    own_server.pause()
    wait_until(lambda: "the schedules wait" in beat.log, what="beat has noticed")

    began = time.monotonic()
    assert beat.stop() == 0
    assert time.monotonic() - began < AT_ONCE + 1 + LATE  # that long it tries to give the schedules back
    orchestra.beats.clear()
    orchestra.close()


def test_both_beats_may_be_gone_for_a_while(orchestra: Orchestra) -> None:
    orchestra.start()
    orchestra.wait_sent(100)
    orchestra.stop()
    assert not orchestra.client.exists(KEYS.beat)
    sent = orchestra.sent()

    orchestra.start()
    orchestra.wait_sent(sent + 100)
    orchestra.stop()

    orchestra.assert_each_slot_was_sent_once()
