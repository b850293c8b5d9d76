"""Sends the slots that are due, as long as this beat has the book; knows nothing of Celery."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from beat.entry import Entry
from beat.plan import make_plan
from ditto_tasks.contracts.errors import BrokerUnavailable, DittoError, QueueFull
from ditto_tasks.transport.port import OutgoingCall
from ditto_tasks.transport.slots import LEASE, Look, SlotBook

__all__ = ["LOOK_INTERVAL", "Dispatcher"]

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0  # seconds between two looks at the book; several in a lease
_PAUSE = 0.5  # seconds until a server that is away, or a call that could not be sent, is tried again

Post = Callable[[OutgoingCall], object]


@dataclass(frozen=True, slots=True)
class _Turn:
    """One look, and for how long one may go by what it said."""

    look: Look
    looked_at: float

    def now(self) -> datetime:
        """The server's time, or a little less: nothing is sent too early."""
        return self.look.now + timedelta(seconds=time.monotonic() - self.looked_at)

    def is_over(self) -> bool:
        return time.monotonic() - self.looked_at > LEASE / 2


class Dispatcher:
    """Sends each slot, then notes it: what was sent and not noted is sent again, and has no effect.

    Args:
        entries: the schedules.
        book: says which slots are done.
        post: sends one call; raises as `CeleryTransport.post` does.
        prefix: that of the keys and queues.
    """

    def __init__(self, entries: Sequence[Entry], book: SlotBook, post: Post, prefix: str) -> None:
        self._entries = entries
        self._places = [entry.place for entry in entries]
        self._book = book
        self._post = post
        self._prefix = prefix
        self._is_away = False
        self._full: set[str] = set()  # schedules whose queue had no room
        self._token: int | None = None

    @property
    def sends(self) -> bool:
        """Whether this beat had the book when it looked last."""
        return bool(self._token)

    def tick(self) -> float:
        """Send what is due; returns in how many seconds to come again, `LOOK_INTERVAL` at most."""
        try:
            return self._tick()
        except BrokerUnavailable as error:
            if not self._is_away:
                logger.warning("the schedules wait: %s", error)
            self._is_away = True
            return _PAUSE

    def _tick(self) -> float:
        turn = _Turn(self._book.look(self._places), time.monotonic())
        self._note_look(turn.look.token)
        if not turn.look.token:
            return LOOK_INTERVAL
        wait = LOOK_INTERVAL
        for entry, done in zip(self._entries, turn.look.done, strict=True):
            if turn.is_over():
                return 0.0
            wait = min(wait, self._serve_safely(entry, done, turn))
        return max(0.0, wait)

    def _note_look(self, token: int) -> None:
        if self._is_away:
            logger.info("the broker answers again")
        if token != self._token:
            logger.info("this beat sends" if token else "another beat sends: this one stands by")
        self._is_away, self._token = False, token

    def _serve_safely(self, entry: Entry, done: datetime, turn: _Turn) -> float:
        """Serve one schedule; one that cannot be served does not keep the others from it."""
        try:
            return self._serve(entry, done, turn)
        except BrokerUnavailable:
            raise
        except QueueFull as error:
            if entry.place.name not in self._full:
                logger.warning("%s waits: %s", entry.place.name, error)
            self._full.add(entry.place.name)
        except Exception:
            logger.exception("%s could not be served: it is tried again", entry.place.name)
        return _PAUSE

    def _serve(self, entry: Entry, done: datetime, turn: _Turn) -> float:
        """Do what is due of one schedule; returns in how many seconds there is more."""
        plan = make_plan(entry, done, turn.now())
        if plan.missed is not None and plan.missed not in plan.due:
            logger.warning("%s and what came before it was missed", entry.slot(plan.missed))
            if not self._book.note_left_out(turn.look.token, entry.place, plan.missed):
                return 0.0
        for instant in plan.due:
            if turn.is_over() or not self._send(entry, instant, turn.look.token):
                return 0.0
        return (plan.next_at - turn.now()).total_seconds()

    def _send(self, entry: Entry, instant: datetime, token: int) -> bool:
        """Send a slot and note it; False: another beat has the book by now."""
        call = entry.call(instant, self._prefix)
        try:
            self._post(call)
        except (BrokerUnavailable, QueueFull):
            raise
        except DittoError as error:
            logger.error("%s is left out, it cannot be sent: %s", entry.slot(instant), error)
            return self._book.note_left_out(token, entry.place, instant)
        self._full.discard(entry.place.name)
        logger.info("%s was sent as %s", entry.slot(instant), call.execution_id)
        return self._book.note_sent(token, entry.place, instant)
