"""The Celery app of both sides: JSON only, UTC, one queue a node, results in Redis."""

from typing import Any

from celery import Celery
from kombu import Queue

from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.catalog import NODE_SPECS
from ditto_tasks.contracts.errors import ConfigError
from ditto_tasks.contracts.node import NODE_NAME
from ditto_tasks.queues import queue_name
from ditto_tasks.transport.connection import (
    CONNECT_TIMEOUT,
    SOCKET_TIMEOUT,
    broker_errors,
    connect,
    sentinel_master,
)
from ditto_tasks.transport.control import NodeControl
from ditto_tasks.transport.serializer import SERIALIZER, register_serializer
from ditto_tasks.transport.streams import SCHEME, SENTINEL_SCHEME, register_transport, server_name

__all__ = ["create_app", "node_queue", "queues_of", "redis_url", "refuse_cluster", "uses_streams"]

_REDIS_SCHEMES = ("redis", "rediss", "redis+socket", "unix", "sentinel")
_STORE_TIMEOUT = 600.0  # seconds that a worker tries to store a result; then it gives the call back
_BACKENDS = "ditto_tasks.transport.backend"


def create_app(config: DittoConfig, *, name: str = "ditto") -> Celery:
    """Make a Celery app from the configuration; connects when first used.

    Raises:
        ConfigError: no broker is configured, or none that can keep results.
    """
    if config.broker_url is None:
        raise ConfigError(
            "no broker: set DITTO_BROKER_URL, for example redis://127.0.0.1:6379/0, or run `ditto-tasks up`"
        )
    register_serializer()
    register_transport()
    app = Celery(name, set_as_current=False, control=f"{NodeControl.__module__}:{NodeControl.__name__}")
    app.conf.update(_settings(config))
    return app


def redis_url(config: DittoConfig) -> str:
    """Return the URL of the Redis server that keeps results, tombstones and announcements.

    Raises:
        ConfigError: there is none.
    """
    if config.result_url is None:
        raise ConfigError(
            "no result backend: set DITTO_RESULT_URL to a Redis server, since DITTO_BROKER_URL is none"
        )
    return config.result_url


def refuse_cluster(config: DittoConfig) -> None:
    """See that the servers are no Redis Cluster: the scripts that keep the promises span many keys.

    Raises:
        ConfigError: one of them is.
        BrokerUnavailable: one of them does not answer.
    """
    urls = {redis_url(config)} | ({str(config.broker_url)} if uses_streams(config) else set())
    for url in urls:
        with broker_errors("asking the server what it is"), connect(url) as client:
            if client.info("cluster").get("cluster_enabled"):
                raise ConfigError(
                    "the Redis server is part of a Redis Cluster, which cannot keep what is promised: set "
                    "DITTO_BROKER_URL and DITTO_RESULT_URL to a single server, or one under Sentinel"
                )


def node_queue(config: DittoConfig, node: str) -> str:
    """Name the queue of a node under this configuration."""
    spec = NODE_SPECS.get(node)
    overrides = config.worker(spec.capability).queues if spec else None
    return queue_name(node, prefix=config.transport.prefix, overrides=overrides)


def uses_streams(config: DittoConfig) -> bool:
    """Tell whether calls travel in streams: they do, with a Redis broker, unless lists were asked for."""
    scheme = (config.broker_url or "").partition("://")[0]
    return config.transport.broker == "streams" and scheme in _REDIS_SCHEMES


def _is_one_server(config: DittoConfig) -> bool:
    return config.broker_url == config.result_url


def _broker(config: DittoConfig) -> dict[str, Any]:
    """Name broker and transport; a socket's URL names its transport itself."""
    url = _celery_url(config.broker_url)
    if not uses_streams(config):
        return {"broker_url": url}
    if url.startswith("redis+socket://"):
        return {"broker_url": url.replace("redis+", f"{SCHEME}+", 1)}
    if url.startswith("sentinel://"):
        return {"broker_url": url, "broker_transport": SENTINEL_SCHEME}
    return {"broker_url": url, "broker_transport": SCHEME}


def _backend(url: str) -> str:
    if url.startswith("sentinel://"):
        return f"{_BACKENDS}:SentinelNodeResultBackend+{_celery_url(url)}"
    return f"{_BACKENDS}:NodeResultBackend+{_celery_url(url).removeprefix('redis+')}"


def _master_of(url: str | None) -> dict[str, str]:
    """Name the master for Celery, which does not read it from the URL."""
    return {"master_name": sentinel_master(url)} if url and url.startswith("sentinel://") else {}


def _celery_url(url: str | None) -> str:
    """Write a Redis URL as Celery does: it knows sockets by another scheme than redis-py."""
    url = url or ""
    if url.startswith("unix://"):
        url = url.replace("unix://", "redis+socket://", 1).replace("db=", "virtual_host=", 1)
    return url.split("?")[0] if url.startswith("sentinel://") else url


def _settings(config: DittoConfig) -> dict[str, Any]:
    transport = config.transport

    def route(name: str, *_: Any, **__: Any) -> dict[str, str] | None:
        return {"queue": node_queue(config, name)} if NODE_NAME.fullmatch(name) else None

    return {
        **_broker(config),
        "result_backend": _backend(redis_url(config)),
        "ditto_prefix": transport.prefix,
        "ditto_limits": {},
        "ditto_settles_with_result": uses_streams(config) and _is_one_server(config),
        "task_serializer": SERIALIZER,
        "result_serializer": SERIALIZER,
        "accept_content": [SERIALIZER, "json"],
        "result_accept_content": [SERIALIZER, "json"],
        "enable_utc": True,
        "timezone": "UTC",
        "task_default_queue": transport.prefix,
        "task_routes": (route,),
        "task_acks_late": True,
        "worker_prefetch_multiplier": 1,
        "result_expires": int(transport.result_expires),
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # a worker waits for its broker as long as it takes
        "broker_transport_options": {
            **_master_of(config.broker_url),
            "ditto_server": server_name(config.broker_url or ""),
            "ditto_prefix": transport.prefix,
            "ditto_lease": transport.lease,
            "ditto_begins": int(transport.result_expires) if _is_one_server(config) else None,
            "visibility_timeout": int(transport.visibility_timeout),
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "socket_timeout": SOCKET_TIMEOUT,
            "socket_keepalive": True,
            "max_retries": 0,  # of one publish: the caller's deadline is near, and it knows better
        },
        "redis_socket_connect_timeout": CONNECT_TIMEOUT,
        "redis_socket_timeout": SOCKET_TIMEOUT,
        "result_backend_transport_options": {
            **_master_of(config.result_url),
            "retry_policy": {"timeout": _STORE_TIMEOUT, "max_retries": None},
        },
    }


def queues_of(config: DittoConfig, nodes: list[str]) -> list[Queue]:
    """Make the queues that a worker for these nodes reads, one a name, in the order of the nodes."""
    names = dict.fromkeys(node_queue(config, node) for node in nodes)
    return [Queue(name, routing_key=name) for name in names]
