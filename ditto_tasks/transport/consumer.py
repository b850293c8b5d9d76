"""One process that takes calls from streams: its name, its lease, what it holds, and what it takes over.

What a process has fetched stays noted under its name until it is settled. While its lease is renewed, nobody
touches that; once the lease has run out, any other process takes the calls over.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.transport.connection import REDIS_ERRORS, RedisClient
from ditto_tasks.transport.keys import PRIORITIES, Keys, stream_name
from ditto_tasks.transport.ledger import BEGIN_FUNCTION, Begun

__all__ = ["Entry", "StreamConsumer"]

logger = logging.getLogger(__name__)

_TICK = 1.5  # seconds between two looks for dead processes and due messages
_TAKEN_OVER_AT_ONCE = 64  # calls a look takes over at most, slots permitting
_MOVED_AT_ONCE = 200  # messages a look moves at most: those that became due, those of plain Celery clients
_LIST_SEPARATOR = "\x06\x16"  # of kombu: between a queue's name and a priority in the key of a list
_LIST_SUFFIXES = ("", *(f"{_LIST_SEPARATOR}{priority}" for priority in (3, 6, 9)))
_STRAYS_INTERVAL = 30.0  # seconds between two looks for messages whose delivery was lost
_STRAY_AFTER = 15_000  # milliseconds since it was taken until a message that never arrived counts as that
_STRAYS_AT_ONCE = 1000  # messages one look gives back at most, a stream
_SUSPECT_FROM = 2  # deliveries; with that many processes a call has died
_COUNTED_EVERY = 3  # leases between two counts of those who hold messages
_RELEASED = "released"  # the owner of what was given back: always counted as dead

# KEYS: streams in order of urgency. ARGV: group, consumer, how many at most; and, where results are kept
# here, too, what the keys of results and of calls begin with, and the expiry of the latter: calls are begun
# then as they are fetched. A call's id is the first field of its entry.
_FETCH = (
    BEGIN_FUNCTION
    + """
local left, taken = tonumber(ARGV[3]), {}
for _, stream in ipairs(KEYS) do
  local read = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', left, 'STREAMS', stream, '>')
  if read then
    for _, entry in ipairs(read[1][2]) do
      local begun = {}
      if ARGV[4] and entry[2][1] == 'i' then
        begun = begin(ARGV[4] .. entry[2][2], ARGV[5] .. entry[2][2], ARGV[6])
      end
      taken[#taken + 1] = {stream, entry[1], entry[2], begun}
      left = left - 1
    end
  end
  if left <= 0 then break end
end
return taken
"""
)

# KEYS: leases, delayed, consumers, the lists of plain Celery clients. ARGV: consumer, lease in ms, how many
# messages to move at most, our streams as JSON, what follows a queue's name in the keys of lists of other
# priorities. A delayed message is the stream's name, a NUL, its id, a NUL, and the fields as a JSON list.
# Who lost its lease without noticing, being suspended, announces its streams again.
_TICK_SCRIPT = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1]) == 1 then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[4])
end
for _, due in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local stop = string.find(due, '\\0', 1, true)
  local id_stop = string.find(due, '\\0', stop + 1, true)
  local fields = cjson.decode(string.sub(due, id_stop + 1))
  redis.call('XADD', string.sub(due, 1, stop - 1), '*', unpack(fields))
  redis.call('ZREM', KEYS[2], due)
end
if #KEYS == 3 then return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now) end
local pop = {'LMPOP', #KEYS - 3, unpack(KEYS, 4)}
for _, word in ipairs({'RIGHT', 'COUNT', ARGV[3]}) do pop[#pop + 1] = word end
local popped = redis.call(unpack(pop))
if popped then
  local stop = string.find(popped[1], ARGV[5], 1, true)
  local stream = stop and string.sub(popped[1], 1, stop - 1) .. ':low' or popped[1] .. ':normal'
  for _, message in ipairs(popped[2]) do redis.call('XADD', stream, '*', 'r', message) end
end
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
"""

# KEYS: leases, consumers, the streams that we read. ARGV: group, the dead, us, how many at most, from how
# many deliveries on a call is a suspect, how many of those at most.
# Streams that the dead read and we do not are left to others; when none holds anything, the dead is
# forgotten.
_TAKE_OVER = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease = redis.call('ZSCORE', KEYS[1], ARGV[2])
if not lease or tonumber(lease) > now then return {} end
local left, suspects, taken = tonumber(ARGV[4]), tonumber(ARGV[6]), {}
for index = 3, #KEYS do
  if left <= 0 then break end
  local pending = redis.call('XPENDING', KEYS[index], ARGV[1], '-', '+', left, ARGV[2])
  for _, held in ipairs(pending) do
    local is_suspect = held[4] >= tonumber(ARGV[5])
    if not is_suspect or suspects > 0 then
      local claimed = redis.call('XCLAIM', KEYS[index], ARGV[1], ARGV[3], 0, held[1])
      for _, entry in ipairs(claimed) do
        taken[#taken + 1] = {KEYS[index], entry[1], entry[2], {}, held[4]}
        left = left - 1
        if is_suspect then suspects = suspects - 1 end
      end
    end
  end
end
local streams = redis.call('HGET', KEYS[2], ARGV[2])
for _, stream in ipairs(streams and cjson.decode(streams) or {}) do
  if redis.call('EXISTS', stream) == 1
      and #redis.call('XPENDING', stream, ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return taken end
end
for _, stream in ipairs(streams and cjson.decode(streams) or {}) do
  if redis.call('EXISTS', stream) == 1 then
    redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], ARGV[2])
  end
end
redis.call('ZREM', KEYS[1], ARGV[2])
redis.call('HDEL', KEYS[2], ARGV[2])
return taken
"""

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

# KEYS: leases, consumers, stream. ARGV: group, us, the released's name, entry.
# Given back only while it is ours; its count of deliveries is left as it was before this one.
_RELEASE = (
    _NOTE_FUNCTION
    + """
local held = redis.call('XPENDING', KEYS[3], ARGV[1], ARGV[4], ARGV[4], 1)[1]
if not held or held[2] ~= ARGV[2] then return 0 end
redis.call('XCLAIM', KEYS[3], ARGV[1], ARGV[3], 0, ARGV[4], 'RETRYCOUNT', math.max(held[4] - 1, 0), 'JUSTID')
redis.call('ZADD', KEYS[1], 0, ARGV[3])
note(KEYS[2], ARGV[3], KEYS[3])
return 1
"""
)

# KEYS: the stream of each entry. ARGV: group, us, the entries.
# An entry that another process has taken over is that one's to settle: it would be lost with it otherwise.
_SETTLE = """
for index, stream in ipairs(KEYS) do
  local entry = ARGV[index + 2]
  local held = redis.pcall('XPENDING', stream, ARGV[1], entry, entry, 1)[1]
  if held and held[2] == ARGV[2] then
    redis.call('XACK', stream, ARGV[1], entry)
    redis.call('XDEL', stream, entry)
  end
end
"""

# KEYS: leases, consumers, the streams that we read. ARGV: group, lease in ms.
# Who holds a message and has no lease, since a read of its was answered after it was forgotten, and who died
# before it had one: they get one that nobody but themselves renews.
_COUNT_ALL = (
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


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as it lies in a stream; `begun` if its call was begun with the fetch."""

    stream: str
    id: str
    fields: dict[str, bytes]
    begun: Begun | None = None
    is_taken_over: bool = False

    @property
    def tag(self) -> str:
        """Its delivery tag: enough to settle or release it from any process."""
        return f"{self.id} {self.stream}"


class StreamConsumer:
    """Takes calls from streams in the name of this process; usable from any of its threads.

    Args:
        client: of the broker's server; stays the caller's to close.
        keys: the key names; the prefix also names the consumer group.
        lease: seconds after which a silent process counts as dead.
        begins: seconds that notes on begun calls are kept, where results are kept on the same server; None:
            calls are not begun here.
    """

    def __init__(self, client: RedisClient, keys: Keys, lease: float, begins: int | None = None) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.group = keys.prefix
        self._client = client
        self._keys = keys
        self._lease = lease
        self._begin_arguments = [] if begins is None else [keys.result(""), keys.call(""), begins]
        self._streams: list[str] = []
        self._lists: list[str] = []
        self._looks_at_lists = False  # with every second look: an idle worker asks the server for little
        self._held: set[str] = set()
        self._suspect = ""
        self._unsettled: list[str] = []
        self._unreleased: list[str] = []
        self._overdue: list[str] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._fetch = client.register_script(_FETCH)
        self._tick = client.register_script(_TICK_SCRIPT)
        self._take_over = client.register_script(_TAKE_OVER)
        self._release = client.register_script(_RELEASE)
        self._count_all = client.register_script(_COUNT_ALL)
        self.on_overdue: Callable[[], None] = _do_nothing
        self.on_freed: Callable[[], None] = _do_nothing

    def read(self, queues: Sequence[str]) -> None:
        """Read these queues from now on: make their streams' groups, announce them, and hold a lease."""
        self._streams = [stream_name(queue, priority) for priority in PRIORITIES for queue in queues]
        self._lists = [f"{queue}{suffix}" for queue in queues for suffix in _LIST_SUFFIXES]
        self.make_groups()
        self._client.hset(self._keys.consumers, self.name, encode_json(self._streams))
        self._renew()  # announced before the lease, so that whoever finds it ended knows where to look
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_lease, name="ditto-lease", daemon=True)
            self._thread.start()

    def make_groups(self) -> None:
        """Make the consumer group of each stream; what was queued before belongs to it, too."""
        pipeline = self._client.pipeline(transaction=False)
        for stream in self._streams:
            pipeline.xgroup_create(stream, self.group, id="0", mkstream=True)
        for answer in pipeline.execute(raise_on_error=False):
            if isinstance(answer, Exception) and not str(answer).startswith("BUSYGROUP"):
                raise answer

    def fetch(self, count: int) -> list[Entry]:
        """Take up to `count` messages, the most urgent streams first; does not wait.

        What was settled since the last time is removed in the same round trip.
        """
        arguments = [self.group, self.name, count, *self._begin_arguments]
        try:
            return self._entries(self._after_settled(self._fetch, self._streams, arguments))
        except ResponseError as error:
            if not str(error).startswith("NOGROUP"):
                raise
            self.make_groups()  # the server lost its data
            return []

    def read_command(self, block: float) -> list[Any]:
        """Give the command that waits up to `block` seconds for one message of any stream."""
        arguments: list[Any] = ["XREADGROUP", "GROUP", self.group, self.name, "COUNT", 1]
        arguments += ["BLOCK", int(block * 1000), "STREAMS", *self._streams]
        return arguments + [">"] * len(self._streams)

    def read_reply(self, reply: Any) -> list[Entry]:
        """Read what the server answered to `read_command`."""
        by_stream = reply.items() if isinstance(reply, dict) else reply or ()
        return self._entries((stream, *entry) for stream, entries in by_stream for entry in entries)

    def take_overdue(self, count: int) -> list[Entry]:
        """Take up to `count` messages of processes whose lease has run out.

        Of those that two processes died with, this one holds one at a time: the innocent among them end.
        """
        taken: list[Entry] = []
        dead, self._overdue = self._overdue, []
        for name in dead:
            if len(taken) >= count:
                self._overdue.append(name)
                continue
            taken += self._take(name, min(count - len(taken), _TAKEN_OVER_AT_ONCE))
        if taken:
            logger.warning("took over %d calls of %d processes whose lease ran out", len(taken), len(dead))
        return taken

    def _take(self, name: str, count: int) -> list[Entry]:
        answer = self._take_over(
            keys=[self._keys.leases, self._keys.consumers, *self._streams],
            args=[self.group, name, self.name, count, _SUSPECT_FROM, int(self._suspect not in self._held)],
        )
        entries = self._entries(answer, is_taken_over=True)
        for entry, (*_, deliveries) in zip(entries, answer, strict=True):
            if deliveries >= _SUSPECT_FROM:
                self._suspect = entry.tag
        return entries

    @property
    def has_overdue(self) -> bool:
        """Whether the last look found processes whose lease has run out."""
        return bool(self._overdue)

    @property
    def held(self) -> int:
        """How many messages this process has fetched and not settled."""
        return len(self._held)

    def freed(self) -> None:
        """Tell whoever waits for it, once, that a message was settled or given back."""
        on_freed, self.on_freed = self.on_freed, _do_nothing
        on_freed()

    def settled(self, tag: str) -> bool:
        """Note that an entry is gone from its stream; False when this process did not hold it."""
        try:
            self._held.remove(tag)
        except KeyError:
            return False
        return True

    def settle(self, tag: str) -> None:
        """Have an entry removed from its stream with the next fetch or look, unless it is gone."""
        if self.settled(tag):
            self._unsettled.append(tag)

    def release(self, tag: str) -> None:
        """Give an entry back, for any process to take with its next look; later, if the server is away."""
        if self.settled(tag):
            self._unreleased.append(tag)
            self._release_all()

    def _release_all(self) -> None:
        while self._unreleased:
            tag = self._unreleased.pop()
            entry, stream = tag.split(" ", 1)
            try:
                self._release(
                    keys=[self._keys.leases, self._keys.consumers, stream],
                    args=[self.group, self.name, _RELEASED, entry],
                )
            except REDIS_ERRORS as error:
                self._unreleased.append(tag)
                logger.warning("%s cannot be given back yet: %s", tag, type(error).__name__)
                return

    def release_strays(self, idle: int = 0) -> None:
        """Give back what is noted under our name and never arrived: its reply was lost with a connection.

        Args:
            idle: milliseconds since it was taken; so much that a reply cannot be on its way any more.
        """
        for stream in self._streams:
            for held in self._client.xpending_range(
                stream, self.group, min="-", max="+", count=_STRAYS_AT_ONCE, consumername=self.name, idle=idle
            ):
                tag = f"{held['message_id'].decode()} {stream}"
                if tag not in self._held and tag not in self._unsettled:
                    self._held.add(tag)
                    self.release(tag)

    def count_all(self) -> None:
        """Give a lease to each process that holds messages of our streams without one, so that it can end."""
        keys = [self._keys.leases, self._keys.consumers, *self._streams]
        self._count_all(keys=keys, args=[self.group, int(self._lease * 1000)])

    def stop(self) -> None:
        """End the lease; what is still held is given back."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_TICK)
        pipeline = self._client.pipeline(transaction=False)
        self._remove_settled(pipeline)
        pipeline.execute(raise_on_error=False)
        for tag in list(self._held):
            self.release(tag)
        self._client.zadd(self._keys.leases, {self.name: 0})
        self._take(self.name, 0)  # nothing is left to take: that forgets us

    def _entries(self, answer: Iterable[Any], *, is_taken_over: bool = False) -> list[Entry]:
        entries = [
            Entry(
                stream.decode(),
                id.decode(),
                _pairs(fields),
                Begun.of(begun[0]) if begun and begun[0] else None,
                is_taken_over,
            )
            for stream, id, fields, *begun in answer
        ]
        self._held.update(entry.tag for entry in entries)
        return entries

    def _remove_settled(self, pipeline: RedisClient) -> None:
        settled: list[tuple[str, str]] = []
        while self._unsettled:
            entry, stream = self._unsettled.pop().split(" ", 1)
            settled.append((entry, stream))
        if settled:
            entries, streams = zip(*settled, strict=True)
            pipeline.eval(_SETTLE, len(streams), *streams, self.group, self.name, *entries)

    def _keep_lease(self) -> None:
        strays_looked_for = counted = time.monotonic()
        while not self._stopping.wait(min(_TICK, self._lease / 3)):
            try:
                self._renew()
                self._release_all()
                if time.monotonic() - strays_looked_for > _STRAYS_INTERVAL:
                    self.release_strays(idle=_STRAY_AFTER)
                    strays_looked_for = time.monotonic()
                if time.monotonic() - counted > _COUNTED_EVERY * self._lease:
                    self.count_all()
                    counted = time.monotonic()
                if self._overdue:
                    self.on_overdue()
            except REDIS_ERRORS as error:
                logger.warning("the lease could not be renewed: %s", type(error).__name__)

    def _renew(self) -> None:
        self._looks_at_lists = not self._looks_at_lists
        keys = [self._keys.leases, self._keys.delayed, self._keys.consumers]
        keys += self._lists if self._looks_at_lists else ()
        lease = int(self._lease * 1000)
        arguments = [self.name, lease, _MOVED_AT_ONCE, encode_json(self._streams), _LIST_SEPARATOR]
        self._overdue = [name.decode() for name in self._after_settled(self._tick, keys, arguments)]

    def _after_settled(self, script: Any, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script; what was settled since the last time is removed in the same round trip."""
        if not self._unsettled:
            return script(keys=keys, args=arguments)
        pipeline = self._client.pipeline(transaction=False)
        self._remove_settled(pipeline)
        pipeline.evalsha(script.sha, len(keys), *keys, *arguments)
        answer = pipeline.execute(raise_on_error=False)[-1]
        if isinstance(answer, NoScriptError):
            return script(keys=keys, args=arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _do_nothing() -> None: ...


def _pairs(fields: Any) -> dict[str, bytes]:
    if isinstance(fields, dict):
        return {name.decode(): value for name, value in fields.items()}
    return {fields[index].decode(): fields[index + 1] for index in range(0, len(fields), 2)}
