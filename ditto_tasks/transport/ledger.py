"""The state of one call in Redis, and the only three steps that change it.

A call is queued, begun, and ended by its result. Each step is one script, so that a process may die between
any two of them and leave the call in a state that the next one understands. `docs/delivery.md` draws the
states.
"""

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from redis.exceptions import ConnectionError, ResponseError

from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.transport.connection import RedisClient, is_passing
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.limits import LIMIT_FUNCTIONS, Limit
from ditto_tasks.transport.line import Line, LineScript
from ditto_tasks.transport.tags import split_tag

__all__ = [
    "BEGIN",
    "BEGIN_FUNCTION",
    "BEGUN_PROPERTY",
    "DEAD_KEPT",
    "END",
    "ENDED",
    "INBOX_EXPIRY",
    "Begun",
    "Delivery",
    "Ended",
    "Ending",
    "Ledger",
    "cancel_message",
]

BEGUN_PROPERTY = "ditto_begun"  # of a message: the parts of the `Begun` of its call, or what waits for them
DEAD_KEPT = 10_000  # calls that were given up; the oldest are dropped beyond
INBOX_EXPIRY = 600  # seconds that results stay in the inbox of a process that reads no more

# Whether a key holds a final state, by the first field of what Celery stores.
FINAL_FUNCTION = """
local function is_final(result)
  local stored = redis.call('GETRANGE', result, 0, 20)
  for _, final in ipairs({'SUCCESS', 'FAILURE', 'REVOKED'}) do
    if string.find(stored, '{"status":"' .. final, 1, true) == 1 then return true end
  end
  return false
end
"""

# Begins a call: the key of its result, that of its hash and the hash's expiry, stream and entry that brought
# it or "", and what tells this step from any other, so that it may be sent again. Fetching begins calls as
# well. A second entry of a call whose first is still in its stream was written twice by a broken connection:
# it is dropped.
BEGIN_FUNCTION = (
    FINAL_FUNCTION
    + """
local function begin(result, call, expires, stream, entry, step)
  if is_final(result) then return {'done'} end
  local known = redis.call('HMGET', call, 'cancelled', 'attempts', 'step', 'stream', 'entry')
  local reason, attempt = known[1], known[2]
  local is_other = known[5] and known[5] ~= '' and known[5] ~= entry
  if is_other and #redis.call('XRANGE', known[4], known[5], known[5]) > 0 then return {'done'} end
  if known[3] ~= step then
    attempt = (attempt or 0) + 1
    redis.call('HSET', call, 'attempts', attempt, 'step', step, 'stream', stream, 'entry', entry)
    redis.call('EXPIRE', call, expires)
  end
  if reason then return {'cancelled', attempt, reason} end
  return {'run', attempt}
end
"""
)

# KEYS: result, call. ARGV: expiry of the call's hash, stream, entry, step: as for `begin`.
BEGIN = BEGIN_FUNCTION + "return begin(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])"

# KEYS: result, call, leases. ARGV: as for `BEGIN`, and the process that begins the call, and its pid. A call
# that a process with a lease holds is not begun a second time, however often the broker delivers it.
_BEGIN_OWNED = (
    BEGIN_FUNCTION
    + """
local owner, pid = ARGV[5], ARGV[6]
local holder = redis.call('HMGET', KEYS[2], 'owner', 'pid')
if holder[1] and (holder[1] ~= owner or holder[2] ~= pid) and redis.call('EXISTS', KEYS[1]) == 0 then
  local time = redis.call('TIME')
  local lease = redis.call('ZSCORE', KEYS[3], holder[1])
  if lease and tonumber(lease) > time[1] * 1000 then return {'held', 0, holder[1] .. ' ' .. holder[2]} end
end
local begun = begin(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4])
if begun[2] then redis.call('HSET', KEYS[2], 'owner', owner, 'pid', pid) end
return begun
"""
)

# KEYS: result, call, waiters, input, dead letters, stream. ARGV: the result, the attempt that gave it or "",
# the call for the dead letters or "", the result's expiry, the sender's inbox or "", what all keys begin with
# and the group is called, entry or ""; where a limit holds that, the tag, and the concurrency key or "".
# Refused are a second final state (0) and the result of an attempt that another one has overtaken (-1).
END = (
    LIMIT_FUNCTIONS
    + FINAL_FUNCTION
    + f"""
local latest = ARGV[2] ~= '' and redis.call('HGET', KEYS[2], 'attempts')
if latest and tonumber(latest) > tonumber(ARGV[2]) then return is_final(KEYS[1]) and 0 or -1 end
if not redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[4], 'NX') then
  if is_final(KEYS[1]) then return 0 end
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[4])
end
redis.call('PUBLISH', KEYS[1], ARGV[1])
local inboxes = redis.call('SMEMBERS', KEYS[3])
if ARGV[5] ~= '' then inboxes[#inboxes + 1] = ARGV[5] end
for _, inbox in ipairs(inboxes) do
  redis.call('RPUSH', inbox, ARGV[1])
  redis.call('EXPIRE', inbox, {INBOX_EXPIRY})
end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
if ARGV[3] ~= '' then
  redis.call('LPUSH', KEYS[5], ARGV[3])
  redis.call('LTRIM', KEYS[5], 0, {DEAD_KEPT - 1})
end
if ARGV[7] ~= '' then
  redis.call('XACK', KEYS[6], ARGV[6], ARGV[7])
  redis.call('XDEL', KEYS[6], ARGV[7])
  if ARGV[8] then free(ARGV[6], cjson.decode(ARGV[8]), ARGV[9], ARGV[10]) end
end
return 1
"""
)

# KEYS: result, call. ARGV: reason, expiry of the call's hash, channel, what is told there.
_CANCEL = (
    FINAL_FUNCTION
    + """
if is_final(KEYS[1]) then return 0 end
redis.call('HSETNX', KEYS[2], 'cancelled', ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
"""
)


def cancel_message(execution_id: str, reason: str) -> bytes:
    """Write what is told on the cancel channel."""
    return encode_json([execution_id, reason])


@dataclass(frozen=True, slots=True)
class Begun:
    """What came of beginning a call.

    Attributes:
        verdict: done: it has a result, leave it; cancelled: end it as that; run: go on; held: another process
            runs it.
        attempt: 1 the first time it is begun; also the fencing token of its result.
        reason: why it was cancelled, or, of a held call, its holder and that one's pid.
    """

    verdict: Literal["done", "cancelled", "run", "held"]
    attempt: int = 0
    reason: str = ""

    @classmethod
    def of(cls, answer: Sequence[Any]) -> "Begun":
        """Read what `BEGIN_FUNCTION` returned."""
        if len(answer) == 1:
            return cls("done")
        reason = answer[2].decode() if len(answer) > 2 else ""
        return cls(answer[0].decode(), int(answer[1]), reason)


Ended = Literal["stored", "known", "overtaken"]
"""What came of storing a result: it is the call's; the call had one; a later attempt has begun."""

ENDED: dict[int, Ended] = {1: "stored", 0: "known", -1: "overtaken"}


@dataclass(frozen=True, slots=True)
class Delivery:
    """The stream entry that brought a call, to be removed in the step that stores its result."""

    tag: str
    limit: Limit | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The last step of a call, not taken yet.

    Attributes:
        tag: of the delivery that is removed with it; empty for none.
        keys: as `END` takes them.
        arguments: likewise; the first three are what `filled` puts there.
    """

    tag: str
    keys: list[str]
    arguments: list[Any]

    def filled(self, stored: bytes, attempt: int | None = None, dead: bytes = b"") -> "Ending":
        """Fill in what came of the call, and return this very ending.

        Args:
            stored: its result as Celery stores it.
            attempt: the one that gave it; None: it is not asked whether another has begun.
            dead: the call itself, for the dead letters, when the result says that it was given up.
        """
        self.arguments[:3] = stored, "" if attempt is None else attempt, dead
        return self


class Ledger:
    """Takes a call through its states.

    Args:
        client: of the server that keeps the results.
        keys: the key names.
        expires: seconds that results, and notes on calls without one, are kept.
    """

    def __init__(self, client: RedisClient, keys: Keys, expires: int) -> None:
        self._keys = keys
        self._expires = expires
        self._line = Line(client)
        self._begin = LineScript(self._line, client, BEGIN)
        self._begin_owned = LineScript(self._line, client, _BEGIN_OWNED)
        self._end = LineScript(self._line, client, END)
        self._cancel = LineScript(self._line, client, _CANCEL)

    def begin(self, execution_id: str, owner: str = "", tag: str = "") -> Begun:
        """Count an attempt to run the call, unless it has its result.

        Args:
            tag: the delivery tag of the stream entry that brought it; empty with other brokers.
            owner: the name of this process's lease, with a broker that may deliver a call while it still
            runs.
        """
        keys = [self._keys.result(execution_id), self._keys.call(execution_id)]
        entry, stream, _ = split_tag(tag) if tag else ("", "", "")
        arguments = [self._expires, stream, entry, uuid.uuid4().hex]
        if not owner:
            return Begun.of(self._begin(keys, arguments))
        return Begun.of(self._begin_owned([*keys, self._keys.leases], [*arguments, owner, os.getpid()]))

    def end(self, ending: Ending) -> Ended:
        """Store the result, wake who waits for it, and remove its delivery, in one step.

        Raises:
            redis.ConnectionError: the server is away, or refuses for now.
            redis.RedisError: another error.
        """
        try:
            return ENDED[self._end(keys=ending.keys, args=ending.arguments)]
        except ResponseError as error:
            if not is_passing(error):
                raise
            raise ConnectionError(f"the server takes no results now: {error}") from None

    def ending(self, execution_id: str, *, inbox: str = "", delivery: Delivery | None = None) -> Ending:
        """Make the last step of a call, to be filled in when its result is known.

        It is taken by `end` then, or by who fetches calls with the next fetch.
        """
        keys = self._keys
        names = [keys.result(execution_id), keys.call(execution_id), keys.waiters(execution_id)]
        names += [keys.input(execution_id), keys.dead]
        arguments: list[Any] = ["", "", "", self._expires, inbox, keys.prefix]
        if delivery is None:
            return Ending("", [*names, keys.call(execution_id)], [*arguments, ""])
        entry, stream, key = split_tag(delivery.tag)
        if delivery.limit is None:
            return Ending(delivery.tag, [*names, stream], [*arguments, entry])
        limited = [entry, delivery.limit.encode(), delivery.tag, key]
        return Ending(delivery.tag, [*names, stream], [*arguments, *limited])

    def close(self) -> None:
        """Close the connections that the ledger made; the client stays open."""
        self._line.close()

    def cancel(self, execution_id: str, reason: str) -> bool:
        """Leave a tombstone and tell running workers; False when the call has its result already."""
        keys = self._keys
        return bool(
            self._cancel(
                keys=[keys.result(execution_id), keys.call(execution_id)],
                args=[reason, self._expires, keys.cancel_channel, cancel_message(execution_id, reason)],
            )
        )
