"""Connections to Redis by URL, with waits that end."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from kombu.exceptions import OperationalError
from redis.backoff import ConstantBackoff, NoBackoff
from redis.retry import Retry

from ditto_tasks.contracts.errors import BrokerUnavailable

__all__ = ["CONNECT_TIMEOUT", "REDIS_ERRORS", "SOCKET_TIMEOUT", "RedisClient", "broker_errors", "connect"]

RedisClient = Any  # redis-py annotates its answers otherwise in each release; `redis.Redis` where it is made

REDIS_ERRORS = (redis.RedisError, OSError)  # what a server that is away or restarting makes a client raise
CONNECT_TIMEOUT = 2.0  # seconds; a server on the same network answers in milliseconds
SOCKET_TIMEOUT = 3.0  # seconds; for commands that do not block
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
        url: `redis://`, `rediss://`, `unix://` or Celery's `redis+socket://`.
        socket_timeout: seconds that an answer may take; over the block time of commands that block.
        health_check_interval: seconds of silence after which a connection is tried before use; 0: never.
        retries: whether a command is sent once more when the connection turns out to be closed; not for those
            that must not run twice.
    """
    url = url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=", 1)
    options = {} if url.startswith("unix://") else {"socket_connect_timeout": CONNECT_TIMEOUT}
    return redis.Redis.from_url(
        url,
        socket_timeout=socket_timeout,
        retry=_RETRY if retries else _NO_RETRY,
        health_check_interval=health_check_interval,
        **options,
    )


@contextmanager
def broker_errors(doing: str) -> Iterator[None]:
    """Turn what broker and result backend clients raise into BrokerUnavailable; says what was being done.

    Their own messages may hold addresses, so only the kind of error is repeated.
    """
    try:
        yield
    except (*REDIS_ERRORS, OperationalError) as error:
        raise BrokerUnavailable(
            f"{doing} failed ({type(error).__name__}): "
            "see that the server of DITTO_BROKER_URL (or DITTO_RESULT_URL) runs and can be reached"
        ) from error
