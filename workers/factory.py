"""Builds the Celery app of a worker from the workers that an application, or ditto.yaml, names."""

from collections.abc import Sequence
from dataclasses import asdict

from celery import Celery

from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.catalog import CAPABILITIES
from ditto_tasks.contracts.errors import ConfigError, InvalidDefinition
from ditto_tasks.transport.app import create_app, node_queue, queues_of, redis_url, uses_streams
from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.consumer import StreamConsumer
from ditto_tasks.transport.executions import Executions
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.ledger import Ledger
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.payloads import Payloads
from ditto_tasks.transport.task import NodeTask, TaskServices
from ditto_tasks.worker import Limits, Worker
from workers import lifecycle
from workers.health import health_worker
from workers.memory import memory_worker
from workers.resources import ProcessResources
from workers.urls import store_url

__all__ = ["configured_workers", "create_worker_app"]


_HEALTH_CHECK = 10.0  # seconds after which a silent connection is asked whether it is still one


def create_worker_app(config: DittoConfig, *, workers: Sequence[Worker], name: str = "ditto") -> Celery:
    """Make the Celery app that `celery -A your.module worker` runs.

    Its tasks are the exposed nodes of the workers, its queues theirs, its pool and concurrency those of the
    workers or, where they say nothing, of ditto.yaml. Stores given by URL are opened in each process that
    runs calls, and closed with it. Beside them stands a canary a capability, for `ditto-tasks health`.

    Raises:
        InvalidDefinition: no worker, or a node that two of them expose.
        ConfigError: no broker is configured, or none that can keep results or the limits that are set.
    """
    nodes = _nodes(workers)
    limits = _limits_by_queue(config, workers)
    app = create_app(config, name=name)
    keys = Keys(config.transport.prefix)
    health = health_worker(app, nodes)
    resources = ProcessResources(app, config, [*workers, health])
    redis = connect(redis_url(config))
    lease = None if uses_streams(config) else StreamConsumer(redis, keys, config.transport.lease)
    services = TaskServices(
        run=resources.run,
        ledger=Ledger(redis, keys, int(config.transport.result_expires)),
        executions=Executions(lambda: connect(redis_url(config), health_check_interval=_HEALTH_CHECK), keys),
        payloads=Payloads(redis, keys, int(config.transport.result_expires)),
        keeps_large_payloads=config.transport.large_payloads == "reference",
        max_body_bytes=config.transport.max_body_bytes,
        max_deliveries=config.transport.max_deliveries,
        owner="" if lease is None else lease.name,
    )
    repeatable = {node for worker in (*workers, health) for node in worker.repeatable}
    for node in (*nodes, *health.capabilities):
        app.register_task(NodeTask(node, services, is_repeatable=node in repeatable))
    app.conf.ditto_limits = limits
    app.conf.broker_transport_options["ditto_limits"] = {
        name: asdict(limit) for name, limit in limits.items()
    }
    sections = [_section(config, worker) for worker in workers]
    app.conf.update(
        task_queues=queues_of(config, [*nodes, *health.capabilities]),
        worker_concurrency=max(concurrency for concurrency, _ in sections),
        worker_pool=sections[0][1],
    )
    lifecycle.install(app, resources, nodes, config, lease)
    return app


def configured_workers(config: DittoConfig, capabilities: Sequence[str] = CAPABILITIES) -> list[Worker]:
    """Make the workers that configuration and environment describe, one a capability.

    Raises:
        ConfigError: a capability is unknown.
    """
    unknown = [capability for capability in capabilities if capability not in _FACTORIES]
    if unknown:
        raise ConfigError(f"no worker is called {unknown[0]!r}: there are {', '.join(_FACTORIES)}")
    return [_FACTORIES[capability](config) for capability in capabilities]


def _memory(config: DittoConfig) -> Worker:
    return memory_worker(store_url(config))


def _retrieval(config: DittoConfig) -> Worker:
    from workers.retrieval import retrieval_worker  # numpy and a model, which other workers do without
    from workers.targets import OpenedTargets

    return retrieval_worker(lambda: OpenedTargets(config))


def _reindex(config: DittoConfig) -> Worker:
    from workers.reindex import reindex_worker
    from workers.targets import open_targets

    return reindex_worker(lambda: open_targets(config))


_FACTORIES = {"memory": _memory, "retrieval": _retrieval, "reindex": _reindex}


def _nodes(workers: Sequence[Worker]) -> list[str]:
    nodes = [node for worker in workers for node in worker.capabilities]
    if not nodes:
        raise InvalidDefinition("a worker app needs at least one worker")
    twice = [node for node in nodes if nodes.count(node) > 1]
    if twice:
        raise InvalidDefinition(f"{twice[0]} is exposed by two workers: one app runs each node in one way")
    return nodes


def _limits_by_queue(config: DittoConfig, workers: Sequence[Worker]) -> dict[str, Limit]:
    """Return what limits each queue over all workers; only streams can keep it."""
    limited = [pair for worker in workers for pair in _limits(config, worker)]
    if limited and not uses_streams(config):
        name = limited[0][1].name
        raise ConfigError(
            f"workers.{name} has a limit over all workers, which needs transport.broker: streams and a Redis "
            "broker: set these, or remove globalConcurrency, keyConcurrency and ratePerSecond"
        )
    return {node_queue(config, node): limit for node, limit in limited}


def _limits(config: DittoConfig, worker: Worker) -> list[tuple[str, Limit]]:
    """Return the limit of each of a worker's nodes: the worker's own, else its capability's in ditto.yaml."""
    name = worker.type.lower()
    own = worker.limits
    if own == Limits() and name in CAPABILITIES:
        section = config.worker(name)
        own = Limits(section.global_concurrency, section.key_concurrency, section.rate_per_second)
    if own == Limits():
        return []
    limit = Limit(name, own.concurrency, own.per_key, own.per_second)
    return [(node, limit) for node in worker.capabilities]


def _section(config: DittoConfig, worker: Worker) -> tuple[int, str]:
    """Return concurrency and pool of a worker; a type of the application's own has the defaults of memory."""
    capability = worker.type.lower()
    section = config.worker(capability if capability in CAPABILITIES else "memory")
    return worker.concurrency or section.concurrency, section.pool
