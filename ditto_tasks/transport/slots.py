"""The slots of schedules: their names, and the book in which beats note what was sent.

One beat at a time holds the book, by a lease; what it notes counts as long as it does. The lease keeps beats
from doing the same work. That a slot is sent once does not depend on it, but on the slot's name.
"""

import os
import socket
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ditto_tasks.clock import EPOCH, Rule
from ditto_tasks.transport.connection import RedisClient, broker_errors
from ditto_tasks.transport.keys import Keys

__all__ = ["LEASE", "Look", "Place", "Slot", "SlotBook"]

LEASE = 5.0  # seconds after which the book of a silent beat goes to another

_MICROSECOND = timedelta(microseconds=1)
_IDS = uuid.UUID("6b1f5d0e-3a3e-5c0b-9d47-5f1c1c6f4a27")  # the space of the execution ids of slots

# KEYS: the lease, the tokens, what is done, what was sent. ARGV: who asks, lease in ms, then the schedules.
# Takes the book when nobody has it, and then forgets the schedules that are not among these; renews the lease
# of who has it. A schedule that is new begins now. Returns the server's time in µs, the token, 0 when another
# has the book, and for each schedule up to when it is done.
_LOOK = """
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])
local holder = redis.call('HGET', KEYS[1], 'holder')
if holder and holder ~= ARGV[1] then return {now, '0'} end
if not holder then
  redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'token', redis.call('INCR', KEYS[2]))
  local known = {}
  for index = 3, #ARGV do known[ARGV[index]] = true end
  for index = 3, 4 do
    for _, schedule in ipairs(redis.call('HKEYS', KEYS[index])) do
      if not known[schedule] then redis.call('HDEL', KEYS[index], schedule) end
    end
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local answer = {now, redis.call('HGET', KEYS[1], 'token')}
for index = 3, #ARGV do
  redis.call('HSETNX', KEYS[3], ARGV[index], now)
  answer[index] = redis.call('HGET', KEYS[3], ARGV[index])
end
return answer
"""

# KEYS: the lease, then hashes. ARGV: token, schedule, time in µs. Notes the time in each of the hashes, if
# the token is still the book's; a time never goes back. Returns whether it is.
_NOTE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
for index = 2, #KEYS do
  local noted = redis.call('HGET', KEYS[index], ARGV[2])
  if not noted or tonumber(noted) < tonumber(ARGV[3]) then
    redis.call('HSET', KEYS[index], ARGV[2], ARGV[3])
  end
end
return 1
"""

# KEYS: the lease. ARGV: who asks. Gives the book back.
_LET_GO = """
if redis.call('HGET', KEYS[1], 'holder') == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """An instant at which a schedule is due."""

    name: str
    instant: datetime

    def __str__(self) -> str:
        """Name it in the same way everywhere: `name:2026-03-08T10:00:00Z`."""
        return f"{self.name}:{self.instant.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"

    @property
    def idempotency_key(self) -> str:
        """The key under which its call is sent."""
        return f"schedule:{self}"

    def execution_id(self, prefix: str) -> str:
        """The execution id of its call: the same whoever sends it, so that a second one has no effect."""
        return str(uuid.uuid5(_IDS, f"{prefix} {self}"))


@dataclass(frozen=True, slots=True)
class Place:
    """Under what a schedule stands in the book: its name and its rule, for with another it begins anew."""

    name: str
    rule: Rule

    def __str__(self) -> str:
        return f"{self.name}: {self.rule}"


@dataclass(frozen=True, slots=True)
class Look:
    """What the book said.

    Attributes:
        now: the server's time.
        token: rises with each beat that takes the book; 0: another one has it.
        done: for each schedule that was asked for, up to when its slots are done; empty without a token.
    """

    now: datetime
    token: int
    done: tuple[datetime, ...]


class SlotBook:
    """The book as one beat sees it. All methods raise BrokerUnavailable when the server does not answer.

    Args:
        client: stays the caller's to close.
        keys: the key names.
        holder: the name of the beat; None: a new one.
    """

    def __init__(self, client: RedisClient, keys: Keys, holder: str | None = None) -> None:
        self._client = client
        self._keys = keys
        self._look = client.register_script(_LOOK)
        self._note = client.register_script(_NOTE)
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    def look(self, places: Sequence[Place]) -> Look:
        """Take or keep the book, if no other beat has it, and read how far these schedules are."""
        keys = [self._keys.beat, self._keys.beat_tokens, self._keys.slots_done, self._keys.slots_sent]
        arguments = [self.holder, int(LEASE * 1000), *map(str, places)]
        with broker_errors("looking at the schedules"):
            now, token, *done = self._look(keys=keys, args=arguments)
        return Look(_instant(now), int(token), tuple(map(_instant, done)))

    def note_sent(self, token: int, place: Place, slot: datetime) -> bool:
        """Note that a slot was sent, and with it all before; False: another beat has the book by now."""
        return self._noted(token, place, slot, self._keys.slots_done, self._keys.slots_sent)

    def note_left_out(self, token: int, place: Place, slot: datetime) -> bool:
        """Note that a slot and all before are not sent any more; False: another beat has the book by now."""
        return self._noted(token, place, slot, self._keys.slots_done)

    def sent(self, places: Sequence[Place]) -> tuple[str | None, list[datetime | None]]:
        """Tell which beat has the book, and the last slots that were sent of these schedules."""
        with broker_errors("looking at the schedules"):
            holder = self._client.hget(self._keys.beat, "holder")
            noted = self._client.hmget(self._keys.slots_sent, list(map(str, places))) if places else []
        return holder and holder.decode(), [at and _instant(at) for at in noted]

    def let_go(self) -> None:
        """Give the book back, so that another beat has it at once."""
        with broker_errors("giving the schedules back"):
            self._client.eval(_LET_GO, 1, self._keys.beat, self.holder)

    def _noted(self, token: int, place: Place, slot: datetime, *hashes: str) -> bool:
        with broker_errors("noting what was sent"):
            return bool(self._note(keys=[self._keys.beat, *hashes], args=[token, str(place), _stamp(slot)]))


def _stamp(instant: datetime) -> int:
    return (instant - EPOCH) // _MICROSECOND


def _instant(stamp: bytes) -> datetime:
    return EPOCH + int(stamp) * _MICROSECOND
