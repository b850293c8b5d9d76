"""What is to be done for one schedule at one time: pure, so that any two beats decide alike."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from beat.entry import Entry

__all__ = ["GRACE", "Plan", "make_plan"]

GRACE = timedelta(seconds=60)  # a slot that is later is missed; over any takeover, restart or roll-out
_AT_ONCE = 100  # slots of one schedule in one plan; the others' turn comes in between


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in this order.

    Attributes:
        missed: the last slot that came too late to be sent as such; None: there is none.
        due: the slots to be sent, in order; the first is `missed`, if it stands for all that were.
        next_at: when there is something to do again.
    """

    missed: datetime | None
    due: tuple[datetime, ...]
    next_at: datetime


def make_plan(entry: Entry, done: datetime, now: datetime) -> Plan:
    """Plan for a schedule whose slots are done up to `done`.

    A slot that waits for one before it is sent with it: that keeps them in order, and within the jitter, for
    the one before is due by then.
    """
    rule = entry.place.rule
    missed = rule.last(done, now - entry.jitter - GRACE)
    due = [missed] if missed is not None and entry.is_made_up_for else []
    slot = rule.next(missed or done)
    while entry.due(slot) <= now and len(due) < _AT_ONCE:
        due.append(slot)
        slot = rule.next(slot)
    return Plan(missed, tuple(due), entry.due(slot))
