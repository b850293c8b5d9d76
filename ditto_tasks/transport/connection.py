"""Connections to Redis by URL, with waits that end."""

from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from kombu.exceptions import OperationalError
from redis.backoff import ConstantBackoff, NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from ditto_tasks.contracts.errors import BrokerUnavailable, ConfigError

__all__ = [
    "CONNECT_TIMEOUT",
    "REDIS_ERRORS",
    "SOCKET_TIMEOUT",
    "RedisClient",
    "broker_errors",
    "connect",
    "is_passing",
    "sentinel_master",
]

RedisClient = Any  # redis-py annotates its answers otherwise in each release; `redis.Redis` where it is made

REDIS_ERRORS = (redis.RedisError, OSError)  # what a server that is away or restarting makes a client raise
SENTINEL_PORT = 26379
CONNECT_TIMEOUT = 2.0  # seconds; a server on the same network answers in milliseconds
SOCKET_TIMEOUT = 3.0  # seconds; for commands that do not block
_PASSING = ("MISCONF ", "NOREPLICAS ", "BUSY ")  # how an error begins with which a server refuses for now
_RETRY_PAUSE = 0.02  # seconds; one retry: the server may have closed an idle connection

# A server that did not answer in time is not asked again: the caller's deadline is near.
_NO_RETRY = Retry(NoBackoff(), retries=0)
_RETRY = Retry(ConstantBackoff(_RETRY_PAUSE), retries=1, supported_errors=(redis.ConnectionError,))


def connect(
    url: str,
    *,
    socket_timeout: float = SOCKET_TIMEOUT,
    health_check_interval: float = 0,
    retries: bool = True,
) -> RedisClient:
    """Make a client for a Redis URL as Celery writes them; connects when first used.

    Args:
        url: `redis://`, `rediss://`, `unix://`, Celery's `redis+socket://`, or `sentinel://` addresses
        parted by
            semicolons, the last one with the database and `?master=NAME`.
        socket_timeout: seconds that an answer may take; over the block time of commands that block.
        health_check_interval: seconds of silence after which a connection is tried before use; 0: never.
        retries: whether a command is sent once more when the connection turns out to be closed; not for those
            that must not run twice.
    """
    options: dict[str, Any] = {
        "socket_timeout": socket_timeout,
        "retry": _RETRY if retries else _NO_RETRY,
        "health_check_interval": health_check_interval,
    }
    if url.startswith("sentinel://"):
        return _connect_to_master(url, options)
    url = url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=", 1)
    if not url.startswith("unix://"):
        options["socket_connect_timeout"] = CONNECT_TIMEOUT
    return redis.Redis.from_url(url, **options)


def is_passing(error: Exception) -> bool:
    """Tell whether a server refuses for now only: its memory is full, say, or it cannot write to its disk."""
    return isinstance(error, redis.exceptions.OutOfMemoryError) or str(error).startswith(_PASSING)


def sentinel_master(url: str) -> str:
    """Return the name of the master that a Sentinel URL asks for with `?master=`.

    Raises:
        ConfigError: it asks for none.
    """
    names = parse_qs(urlsplit(url.split(";")[-1]).query).get("master", [])
    if len(names) != 1:
        raise ConfigError("a sentinel:// URL must end with the master's name: ...:26379/0?master=NAME")
    return names[0]


def _connect_to_master(url: str, options: dict[str, Any]) -> RedisClient:
    """Make a client that asks the sentinels for the present master whenever it connects."""
    parts = [urlsplit(part) for part in url.split(";")]
    sentinels = [(part.hostname or "", part.port or SENTINEL_PORT) for part in parts]
    options |= {"db": int(parts[-1].path.strip("/") or 0), "socket_connect_timeout": CONNECT_TIMEOUT}
    if parts[0].password:
        options["password"] = unquote(parts[0].password)
    asking = {"socket_timeout": SOCKET_TIMEOUT, "socket_connect_timeout": CONNECT_TIMEOUT}
    sentinel: Any = Sentinel(sentinels, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    return sentinel.master_for(sentinel_master(url), **options)


def broker_errors(doing: str) -> "_BrokerErrors":
    """Turn what broker and result backend clients raise into BrokerUnavailable; says what was being done.

    Their own messages may hold addresses, so only the kind of error is repeated.
    """
    return _BrokerErrors(doing)


class _BrokerErrors:
    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and isinstance(error, (*REDIS_ERRORS, OperationalError)):
            raise BrokerUnavailable(
                f"{self._doing} failed ({type(error).__name__}): "
                "see that the server of DITTO_BROKER_URL (or DITTO_RESULT_URL) runs and can be reached"
            ) from error
