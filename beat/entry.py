"""One schedule of ditto.yaml as beat goes by it: which call, and when each of its slots is due; pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ditto_tasks.config import REINDEX_TASK, Schedule
from ditto_tasks.transport.port import OutgoingCall
from ditto_tasks.transport.slots import Place, Slot

__all__ = ["Entry", "call_of"]

_REINDEX_NODE = "REINDEX.RUN"


def call_of(schedule: Schedule) -> tuple[str, Mapping[str, Any]]:
    """Say which node a schedule calls, and with what input in wire form."""
    if schedule.task != REINDEX_TASK:
        return schedule.task, schedule.input
    mode = {} if schedule.mode is None else {"mode": schedule.mode}
    return _REINDEX_NODE, {"target": schedule.target, **mode}


@dataclass(frozen=True, slots=True)
class Entry:
    """A schedule.

    Attributes:
        place: its name and its rule.
        node: what it calls.
        input: in wire form.
        jitter: its slots are sent up to this much later.
        is_made_up_for: whether one call stands for those that were missed; else they are left out.
    """

    place: Place
    node: str
    input: Mapping[str, Any]
    jitter: timedelta
    is_made_up_for: bool

    @classmethod
    def of(cls, schedule: Schedule) -> "Entry":
        """Read a schedule of the file."""
        node, input = call_of(schedule)
        place = Place(schedule.name, schedule.rule)
        return cls(place, node, input, timedelta(seconds=schedule.jitter), schedule.misfire == "run-once")

    def due(self, instant: datetime) -> datetime:
        """Say when a slot is to be sent: within the jitter, by a time that only its name decides."""
        digest = hashlib.sha256(str(self.slot(instant)).encode()).digest()
        return instant + self.jitter * (int.from_bytes(digest[:6]) / 2**48)

    def slot(self, instant: datetime) -> Slot:
        """Name a slot."""
        return Slot(self.place.name, instant)

    def call(self, instant: datetime, prefix: str) -> OutgoingCall:
        """Make what is sent for a slot: again and again the same, whoever makes it."""
        slot = self.slot(instant)
        return OutgoingCall(
            slot.execution_id(prefix), self.node, dict(self.input), idempotency_key=slot.idempotency_key
        )
