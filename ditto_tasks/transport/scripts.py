"""The scripts by which a process takes calls from streams, keeps its lease, and gives calls back.

Each runs in one step in the server, so that no crash can come in between. `ledger.py` has those that change
the state of one call.
"""

from ditto_tasks.transport.ledger import BEGIN_FUNCTION
from ditto_tasks.transport.limits import LIMIT_FUNCTIONS

__all__ = ["COUNT_ALL", "FETCH", "HOLD", "RELEASE", "SETTLE", "TAKE_OVER", "TICK"]

_NOW = """
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function field(fields, name)
  for index = 1, #fields, 2 do if fields[index] == name then return fields[index + 1] end end
end
local function tag_of(entry, stream, key) return entry .. ' ' .. stream .. (key and ' ' .. key or '') end
"""

# KEYS: streams in order of urgency. ARGV: group, consumer, how many at most; where results are kept here,
# too, what the keys of results and of calls begin with, and the expiry of the latter, since calls are begun
# then as they are fetched, else ""; the limits by stream, or ""; what all keys begin with; what tells this
# fetch from any other. A call's id is its entry's first field.
# Returns when to ask again in ms or 0, the limits without room, how many calls were parked, and the entries.
FETCH = (
    BEGIN_FUNCTION
    + _NOW
    + LIMIT_FUNCTIONS
    + """
local left, taken, closed, parked, again = tonumber(ARGV[3]), {}, {}, 0, 0
local limits = ARGV[7] ~= '' and cjson.decode(ARGV[7]) or {}
local now = ARGV[7] ~= '' and now_ms() or 0
for _, stream in ipairs(KEYS) do
  if left <= 0 then break end
  local limit, count, pause = limits[stream], left, nil
  if limit then
    count, pause = room(ARGV[8], limit, left, now, ARGV[1])
    if count == 0 then closed[#closed + 1] = limit.name end
    if pause and (again == 0 or pause < again) then again = pause end
  end
  local read = count > 0
    and redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', count, 'STREAMS', stream, '>')
  if read and read.err then  -- a queue that was purged, or a server that lost its data
    redis.call('XGROUP', 'CREATE', stream, ARGV[1], '0', 'MKSTREAM')
    read = false
    parked = parked + 1
  end
  local begun_here = 0
  for _, entry in ipairs(read and read[1][2] or {}) do
    local key = limit and field(entry[2], 'k')
    if limit and not hold(ARGV[8], limit, tag_of(entry[1], stream, key), key, now, stream, entry[2]) then
      redis.call('XACK', stream, ARGV[1], entry[1])
      redis.call('XDEL', stream, entry[1])
      parked = parked + 1
    else
      local begun = {}
      if ARGV[4] ~= '' and entry[2][1] == 'i' then
        local id, step = entry[2][2], ARGV[9] .. entry[1]
        begun = begin(ARGV[4] .. id, ARGV[5] .. id, ARGV[6], stream, entry[1], step)
      end
      taken[#taken + 1] = {stream, entry[1], entry[2], begun}
      left, begun_here = left - 1, begun_here + 1
    end
  end
  if limit then spend(ARGV[8], limit, begun_here, now) end
end
return {again, closed, parked, taken}
"""
)

# KEYS: stream. ARGV: group, entry, tag, key or "", limit, what all keys begin with.
# For a limited call that came with a blocking read: 1: it holds a slot; 0: there is none; -1: it was parked.
HOLD = (
    _NOW
    + LIMIT_FUNCTIONS
    + """
local limit, now, key = cjson.decode(ARGV[5]), now_ms(), ARGV[4] ~= '' and ARGV[4] or nil
if room(ARGV[6], limit, 1, now, ARGV[1]) == 0 then return 0 end
local fields = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1]
if not fields then return -1 end
if not hold(ARGV[6], limit, ARGV[3], key, now, KEYS[1], fields[2]) then
  redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
  redis.call('XDEL', KEYS[1], ARGV[2])
  return -1
end
spend(ARGV[6], limit, 1, now)
return 1
"""
)

# KEYS: the stream of each entry. ARGV: group, us, the limits by stream or "", then for each entry its id,
# its tag, its key or "". An entry that another process has taken over is that one's to settle: it would be
# lost with it otherwise.
SETTLE = (
    LIMIT_FUNCTIONS
    + """
local limits = ARGV[3] ~= '' and cjson.decode(ARGV[3]) or {}
for index, stream in ipairs(KEYS) do
  local base = 4 + (index - 1) * 3
  local entry = ARGV[base]
  local held = redis.pcall('XPENDING', stream, ARGV[1], entry, entry, 1)[1]
  if held and held[2] == ARGV[2] then
    redis.call('XACK', stream, ARGV[1], entry)
    redis.call('XDEL', stream, entry)
    if limits[stream] then free(ARGV[1], limits[stream], ARGV[base + 1], ARGV[base + 2]) end
  end
end
"""
)

# KEYS: leases, delayed, consumers, the lists of plain Celery clients. ARGV: consumer, lease in ms, how many
# messages to move at most, our streams as JSON, what follows a queue's name in the keys of lists of other
# priorities, and 1 if the lease is to be renewed even if it has not ended. A delayed message is the stream's
# name, a NUL, its id, a NUL, and the fields as a JSON list.
# Who lost its lease without noticing, being suspended, announces its streams again.
TICK = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function renew()
  if redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1]) == 1 then
    redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
  end
end
if ARGV[6] == '1' then renew() end
local ended = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
for index, name in ipairs(ended) do
  if name == ARGV[1] then
    renew()
    table.remove(ended, index)
    break
  end
end
for _, due in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local stop = string.find(due, '\\0', 1, true)
  local id_stop = string.find(due, '\\0', stop + 1, true)
  local fields = cjson.decode(string.sub(due, id_stop + 1))
  redis.call('XADD', string.sub(due, 1, stop - 1), '*', unpack(fields))
  redis.call('ZREM', KEYS[2], due)
end
if #KEYS == 3 then return ended end
local pop = {'LMPOP', #KEYS - 3, unpack(KEYS, 4)}
for _, word in ipairs({'RIGHT', 'COUNT', ARGV[3]}) do pop[#pop + 1] = word end
local popped = redis.call(unpack(pop))
if popped then
  local stop = string.find(popped[1], ARGV[5], 1, true)
  local stream = stop and string.sub(popped[1], 1, stop - 1) .. ':low' or popped[1] .. ':normal'
  for _, message in ipairs(popped[2]) do redis.call('XADD', stream, '*', 'r', message) end
end
return ended
"""

# KEYS: leases, consumers, the streams that we read. ARGV: group, the dead, us, how many at most, the limits
# by stream or "", what all keys begin with.
# A limited call takes its slot along; one that was given back has none, and is left where it is when there
# is none. Streams that the dead read and we do not are left to others; when none holds anything, the dead is
# forgotten.
TAKE_OVER = (
    _NOW
    + LIMIT_FUNCTIONS
    + """
local now = now_ms()
local lease = redis.call('ZSCORE', KEYS[1], ARGV[2])
if not lease or tonumber(lease) > now then return {} end
local left, suspects, taken = tonumber(ARGV[4]), tonumber(ARGV[8]), {}
local limits = ARGV[5] ~= '' and cjson.decode(ARGV[5]) or {}
local function may_take(stream, entry)
  local limit = limits[stream]
  if not limit then return true end
  local fields = redis.call('XRANGE', stream, entry, entry)[1]
  local key = fields and field(fields[2], 'k')
  local tag = tag_of(entry, stream, key)
  if redis.call('ZSCORE', ARGV[6] .. ':running:' .. limit.name, tag) then return true end
  if room(ARGV[6], limit, 1, now, ARGV[1]) == 0 then return false end
  local of_keys = ARGV[6] .. ':keyed:' .. limit.name
  local is_keyed = key and limit.perKey
  if is_keyed and tonumber(redis.call('HGET', of_keys, key) or '0') >= limit.perKey then return false end
  redis.call('ZADD', ARGV[6] .. ':running:' .. limit.name, now, tag)
  if is_keyed then redis.call('HINCRBY', of_keys, key, 1) end
  spend(ARGV[6], limit, 1, now)
  return true
end
for index = 3, #KEYS do
  if left <= 0 then break end
  local pending = redis.pcall('XPENDING', KEYS[index], ARGV[1], '-', '+', left, ARGV[2])
  for _, held in ipairs(pending.err and {} or pending) do
    local is_suspect = held[4] >= tonumber(ARGV[7])
    local claimed = (not is_suspect or suspects > 0) and may_take(KEYS[index], held[1])
      and redis.call('XCLAIM', KEYS[index], ARGV[1], ARGV[3], 0, held[1]) or {}
    for _, entry in ipairs(claimed) do
      taken[#taken + 1] = {KEYS[index], entry[1], entry[2], {}, held[4]}
      left = left - 1
      if is_suspect then suspects = suspects - 1 end
    end
  end
end
local streams = redis.call('HGET', KEYS[2], ARGV[2])
for _, stream in ipairs(streams and cjson.decode(streams) or {}) do
  if redis.call('EXISTS', stream) == 1
      and #redis.pcall('XPENDING', stream, ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return taken end
end
for _, stream in ipairs(streams and cjson.decode(streams) or {}) do
  if redis.call('EXISTS', stream) == 1 then
    redis.pcall('XGROUP', 'DELCONSUMER', stream, ARGV[1], ARGV[2])
  end
end
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[2])
return taken
"""
)

# Notes that a consumer holds something in a stream, so that whoever takes it over looks there.
_NOTE_FUNCTION = """
local function note(consumers, name, stream)
  local known = redis.call('HGET', consumers, name)
  local streams = known and cjson.decode(known) or {}
  for _, noted in ipairs(streams) do if noted == stream then return end end
  streams[#streams + 1] = stream
  redis.call('HSET', consumers, name, cjson.encode(streams))
end
"""

# KEYS: leases, consumers, stream. ARGV: group, us, the released's name, entry, tag, key or "", limit or "",
# what all keys begin with, the call's hash when it was begun with its fetch and has not run, else "".
# Given back only while it is ours; it counts as if it had never been fetched, unless it was begun again
# since: the step of a fetch ends with the entry's id, and an entry is fetched once.
RELEASE = (
    _NOTE_FUNCTION
    + LIMIT_FUNCTIONS
    + """
local held = redis.call('XPENDING', KEYS[3], ARGV[1], ARGV[4], ARGV[4], 1)[1]
if not held or held[2] ~= ARGV[2] then return 0 end
redis.call('XCLAIM', KEYS[3], ARGV[1], ARGV[3], 0, ARGV[4], 'RETRYCOUNT', math.max(held[4] - 1, 0), 'JUSTID')
if ARGV[7] ~= '' then free(ARGV[8], cjson.decode(ARGV[7]), ARGV[5], ARGV[6]) end
local step = ARGV[9] ~= '' and redis.call('HGET', ARGV[9], 'step')
if step and string.sub(step, -#ARGV[4]) == ARGV[4] then
  redis.call('HINCRBY', ARGV[9], 'attempts', -1)
  redis.call('HDEL', ARGV[9], 'step')
end
redis.call('ZADD', KEYS[1], 0, ARGV[3])
note(KEYS[2], ARGV[3], KEYS[3])
return 1
"""
)

# KEYS: leases, consumers, the streams that we read. ARGV: group, lease in ms.
# Who holds a message and has no lease, since a read of its was answered after it was forgotten, and who died
# before it had one: they get one that nobody but themselves renews.
COUNT_ALL = (
    _NOTE_FUNCTION
    + """
local time = redis.call('TIME')
local ends = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
for index = 3, #KEYS do
  for _, held in ipairs(redis.pcall('XPENDING', KEYS[index], ARGV[1])[4] or {}) do
    if not redis.call('ZSCORE', KEYS[1], held[1]) then
      redis.call('ZADD', KEYS[1], ends, held[1])
      note(KEYS[2], held[1], KEYS[index])
    end
  end
end
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do redis.call('ZADD', KEYS[1], 'NX', ends, name) end
"""
)
