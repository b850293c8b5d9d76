"""Limits of a capability over all workers: calls at once, calls at once a key, calls a second.

A limited call holds a slot in Redis from its fetch until it has ended, under its delivery tag; a process
that takes it over takes the slot along. Where a slot gets free, a bell is rung: a stream of which every idle
worker waits, too.
"""

from dataclasses import dataclass

from ditto_tasks.contracts.json_value import encode_json

__all__ = ["LIMIT_FUNCTIONS", "Limit"]

_BELLS_KEPT = 64  # rings that nobody has heard yet; one is enough

# What each function takes as `limit` is a Limit as a table; `prefix` begins all keys.
# room: how many calls may begin now, at most `wanted`; and in how many ms it is worth asking again, or nil.
# hold: takes a slot for a fetched entry; false when its key has as many calls as it may: then it is parked.
# free: gives an entry's slot back, lets a parked call of the same key go on, and rings the bell.
LIMIT_FUNCTIONS = f"""
local function running_key(prefix, limit) return prefix .. ':running:' .. limit.name end
local function free(prefix, limit, tag, key)
  if redis.call('ZREM', running_key(prefix, limit), tag) == 0 then return end
  if key and key ~= '' and limit.perKey then
    local of_keys = prefix .. ':keyed:' .. limit.name
    if redis.call('HINCRBY', of_keys, key, -1) <= 0 then redis.call('HDEL', of_keys, key) end
    local parked = redis.call('LPOP', prefix .. ':parked:' .. limit.name .. ':' .. key)
    if parked then
      local message = cjson.decode(parked)
      redis.call('XADD', message[1], '*', unpack(message[2]))
      if redis.call('HINCRBY', prefix .. ':parked', message[1], -1) <= 0 then
        redis.call('HDEL', prefix .. ':parked', message[1])
      end
    end
  end
  redis.call('XADD', prefix .. ':bell:' .. limit.name, 'MAXLEN', '~', {_BELLS_KEPT}, '*', 'b', '1')
end
local function forget_lost(prefix, limit, group)
  for _, tag in ipairs(redis.call('ZRANGE', running_key(prefix, limit), 0, 4)) do
    local entry, stream, key = string.match(tag, '^(%S+) (%S+) ?(.*)')
    local exists = redis.call('EXISTS', stream) == 1
    local held = exists and redis.call('XPENDING', stream, group, entry, entry, 1) or {{}}
    if #held == 0 then free(prefix, limit, tag, key) end
  end
end
local function tokens(prefix, limit, now)
  local key = prefix .. ':rate:' .. limit.name
  local known = redis.call('HMGET', key, 'tokens', 'at')
  local burst = math.max(1, limit.perSecond)
  local left = tonumber(known[1]) or burst
  return math.min(burst, left + (now - (tonumber(known[2]) or now)) * limit.perSecond / 1000), key
end
local function room(prefix, limit, wanted, now, group)
  local free, wait = wanted, nil
  if limit.concurrency then
    free = limit.concurrency - redis.call('ZCARD', running_key(prefix, limit))
    if free <= 0 then
      forget_lost(prefix, limit, group)
      free = limit.concurrency - redis.call('ZCARD', running_key(prefix, limit))
    end
  end
  if limit.perSecond then
    local left = tokens(prefix, limit, now)
    free = math.min(free, math.floor(left))
    if left < 1 then wait = math.ceil((1 - left) * 1000 / limit.perSecond) end
  end
  return math.max(0, math.min(wanted, free)), wait
end
local function spend(prefix, limit, count, now)
  if not limit.perSecond or count == 0 then return end
  local left, key = tokens(prefix, limit, now)
  redis.call('HSET', key, 'tokens', left - count, 'at', now)
  redis.call('PEXPIRE', key, math.ceil(math.max(1, limit.perSecond) * 1000 / limit.perSecond) + 60000)
end
local function hold(prefix, limit, tag, key, now, stream, fields)
  local of_keys = prefix .. ':keyed:' .. limit.name
  if key and limit.perKey then
    local function is_full() return tonumber(redis.call('HGET', of_keys, key) or '0') >= limit.perKey end
    if is_full() then forget_lost(prefix, limit, prefix) end
    if is_full() then
      redis.call('RPUSH', prefix .. ':parked:' .. limit.name .. ':' .. key, cjson.encode({{stream, fields}}))
      redis.call('HINCRBY', prefix .. ':parked', stream, 1)
      return false
    end
    redis.call('HINCRBY', of_keys, key, 1)
  end
  redis.call('ZADD', running_key(prefix, limit), now, tag)
  return true
end
"""


@dataclass(frozen=True, slots=True)
class Limit:
    """What holds for all calls of one capability together, over all workers.

    Attributes:
        name: the capability's.
        concurrency: calls at once; None: no limit.
        per_key: calls at once with the same concurrency key; None: no limit.
        per_second: calls begun a second, in bursts of at most one second's; None: no limit.
    """

    name: str
    concurrency: int | None = None
    per_key: int | None = None
    per_second: float | None = None

    def bell(self, prefix: str) -> str:
        """Name the stream on which is told that a slot got free."""
        return f"{prefix}:bell:{self.name}"

    def to_json(self) -> dict[str, object]:
        """Give what the scripts read; what does not limit is left out."""
        limits = {"concurrency": self.concurrency, "perKey": self.per_key, "perSecond": self.per_second}
        return {"name": self.name} | {name: value for name, value in limits.items() if value is not None}

    def encode(self) -> bytes:
        """Write it as the scripts take it."""
        return encode_json(self.to_json())
