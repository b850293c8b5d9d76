"""Runs of long work, one a target at a time: who does it, what was asked for meanwhile, how it stands."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.contracts.reindex import Mode
from ditto_tasks.transport.connection import RedisClient, broker_errors
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.limits import LIMIT_FUNCTIONS, Limit

__all__ = ["RUN_LEASE", "LocalRuns", "RedisRuns", "RunLost", "Runs", "Wanted"]

RUN_LEASE = 60.0  # seconds that a run is another's after its last sign; over the time that a page takes
_WANTED_KEPT = 7 * 86_400  # seconds; far over any run
_NOT_RUNNING = 0  # as a token; those of runs are greater

# A call that finds another's run notes that one is wanted, and gets no token. Tokens only rise, also beyond
# `above`, which the caller read where the last run kept its place: Redis may have forgotten everything.
_TAKE = """
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner and owner ~= ARGV[1] then
  if ARGV[2] == '' then return 0 end
  redis.call('HINCRBY', KEYS[2], 'count', 1)
  if ARGV[2] == 'full' then redis.call('HSET', KEYS[2], 'mode', 'full') end
  redis.call('EXPIRE', KEYS[2], ARGV[5])
  return 0
end
local known = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
local token = math.max(known, tonumber(ARGV[3])) + 1
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', token)
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return token
"""
_RENEW = """
local token = redis.call('HGET', KEYS[1], 'token')
if token and token ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
_SETTLE = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return false end
local wanted = redis.call('HMGET', KEYS[2], 'count', 'mode')
if wanted[1] then return {tonumber(wanted[1]), wanted[2] or 'incremental'} end
redis.call('DEL', KEYS[1])
return {0, 'incremental'}
"""
# One whose call comes between the two scripts is answered by yet another pass, of the greater mode at worst.
_ANSWERED = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if redis.call('HINCRBY', KEYS[2], 'count', -ARGV[2]) <= 0 then redis.call('DEL', KEYS[2]) end
return 1
"""
# ARGV: the limit, what all keys begin with. Returns in how many ms it is worth asking again; 0: it may begin.
_BEGIN = (
    LIMIT_FUNCTIONS
    + """
local limit, prefix, time = cjson.decode(ARGV[1]), ARGV[2], redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local free, wait = room(prefix, limit, 1, now, prefix)
if free == 0 then return wait end
spend(prefix, limit, 1, now)
return 0
"""
)
_RELEASE = "if redis.call('HGET', KEYS[1], 'token') == ARGV[1] then return redis.call('DEL', KEYS[1]) end"


class RunLost(Exception):
    """Another call has taken the run over: this one must stop."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for while a run went on.

    Attributes:
        count: of the calls; 0: none, and the run is released.
        mode: full if one of them asked for that.
    """

    count: int = 0
    mode: Mode = "incremental"


class Runs(Protocol):
    """Keeps one run a target, under a lease that its owner renews. Called from many threads."""

    def take(self, target: str, owner: str, mode: Mode | None, *, above: int) -> int | None:
        """Begin a run, or take it up again for the same owner; returns its token.

        None when another owner's goes on; it is noted then that another run is wanted.

        Args:
            owner: the execution id: the same for each delivery of a call.
            mode: of the run that is wanted; None: none is, if another goes on.
            above: the token is greater.
        """
        ...

    def renew(self, target: str, owner: str, token: int) -> None:
        """Keep the lease.

        Raises:
            RunLost: another has taken it.
        """
        ...

    def settle(self, target: str, token: int) -> Wanted:
        """End the run, unless others are wanted: then it goes on, and is to answer them.

        Raises:
            RunLost: another has taken it.
        """
        ...

    def answered(self, target: str, token: int, wanted: Wanted) -> None:
        """Forget those that `settle` has told: it is kept elsewhere now that the run answers them.

        Raises:
            RunLost: another has taken it.
        """
        ...

    def release(self, target: str, token: int) -> None:
        """Give the run up; does nothing if another has it by now."""
        ...

    def may_begin(self, limit: Limit) -> float:
        """Count work of a run as a call that begins now, where a limit says how many may in a second.

        Returns 0.0, or, when too many did, the seconds after which it is worth asking again.
        """
        ...

    def publish(self, target: str, progress: Mapping[str, Any]) -> None:
        """Tell how the run stands."""
        ...

    def progress(self, target: str) -> Mapping[str, Any] | None:
        """Return what was told last; None: nothing, or long ago."""
        ...


class RedisRuns:
    """Keeps runs in Redis, for the processes of many machines.

    Args:
        client: stays the caller's to close.
        kept: seconds for which the progress of a run is remembered.

    Raises:
        BrokerUnavailable: by every method, when the server does not answer.
    """

    def __init__(self, client: RedisClient, keys: Keys, *, kept: int, lease: float = RUN_LEASE) -> None:
        self._client = client
        self._keys = keys
        self._kept = kept
        self._lease_ms = int(lease * 1000)

    def take(self, target: str, owner: str, mode: Mode | None, *, above: int) -> int | None:
        token = self._eval(_TAKE, target, owner, mode or "", above, self._lease_ms, _WANTED_KEPT)
        return None if token == _NOT_RUNNING else int(token)

    def renew(self, target: str, owner: str, token: int) -> None:
        if not self._eval(_RENEW, target, owner, token, self._lease_ms):
            raise RunLost

    def settle(self, target: str, token: int) -> Wanted:
        wanted = self._eval(_SETTLE, target, token)
        if wanted is None:
            raise RunLost
        count, mode = wanted
        return Wanted(int(count), mode.decode())

    def answered(self, target: str, token: int, wanted: Wanted) -> None:
        if not self._eval(_ANSWERED, target, token, wanted.count):
            raise RunLost

    def release(self, target: str, token: int) -> None:
        self._eval(_RELEASE, target, token)

    def may_begin(self, limit: Limit) -> float:
        if limit.per_second is None:
            return 0.0
        rate = Limit(limit.name, per_second=limit.per_second)
        with broker_errors("asking whether a page may begin"):
            wait = self._client.eval(_BEGIN, 0, rate.encode(), self._keys.prefix)
        return int(wait) / 1000

    def publish(self, target: str, progress: Mapping[str, Any]) -> None:
        with broker_errors("telling how the run stands"):
            self._client.set(self._keys.progress(target), encode_json(dict(progress)), ex=self._kept)

    def progress(self, target: str) -> Mapping[str, Any] | None:
        with broker_errors("asking how the run stands"):
            stored = self._client.get(self._keys.progress(target))
        return None if stored is None else dict(decode_json(stored))

    def _eval(self, script: str, target: str, *arguments: object) -> Any:
        with broker_errors("keeping the run's lease"):
            keys = (self._keys.run(target), self._keys.wanted(target))
            return self._client.eval(script, len(keys), *keys, *arguments)


@dataclass(slots=True)
class _LocalRun:
    owner: str = ""
    token: int = _NOT_RUNNING
    wanted: Wanted = field(default_factory=Wanted)
    progress: Mapping[str, Any] | None = None


class LocalRuns:
    """Keeps runs in this process, where there is no Redis, and so no limit over all processes either.

    A lease lasts until it is given back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, _LocalRun] = {}

    def take(self, target: str, owner: str, mode: Mode | None, *, above: int) -> int | None:
        with self._lock:
            run = self._runs.setdefault(target, _LocalRun())
            if run.owner not in ("", owner):
                if mode is None:
                    return None
                run.wanted = Wanted(run.wanted.count + 1, "full" if mode == "full" else run.wanted.mode)
                return None
            run.owner, run.token = owner, max(run.token, above) + 1
            return run.token

    def renew(self, target: str, owner: str, token: int) -> None:
        with self._lock:
            self._own(target, token)

    def settle(self, target: str, token: int) -> Wanted:
        with self._lock:
            run = self._own(target, token)
            if not run.wanted.count:
                run.owner = ""
            return run.wanted

    def answered(self, target: str, token: int, wanted: Wanted) -> None:
        with self._lock:
            run = self._own(target, token)
            more = run.wanted.count - wanted.count
            run.wanted = Wanted(more, run.wanted.mode) if more else Wanted()

    def release(self, target: str, token: int) -> None:
        with self._lock:
            run = self._runs[target]
            if run.token == token:
                run.owner = ""

    def may_begin(self, limit: Limit) -> float:
        return 0.0

    def publish(self, target: str, progress: Mapping[str, Any]) -> None:
        with self._lock:
            self._runs[target].progress = progress

    def progress(self, target: str) -> Mapping[str, Any] | None:
        with self._lock:
            return self._runs.setdefault(target, _LocalRun()).progress

    def _own(self, target: str, token: int) -> _LocalRun:
        run = self._runs[target]
        if run.token != token:
            raise RunLost
        return run
