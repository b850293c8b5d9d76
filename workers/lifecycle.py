"""When a worker process opens, announces itself and closes: Celery's signals and one step of its start-up."""

import gc
import logging
import os
from contextlib import suppress
from typing import Any

from celery import Celery, bootsteps, current_app, signals
from celery.worker import state

from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.errors import DittoError
from ditto_tasks.transport.app import node_queue, redis_url, refuse_cluster, uses_streams
from ditto_tasks.transport.connection import REDIS_ERRORS, connect
from ditto_tasks.transport.consumer import StreamConsumer
from ditto_tasks.transport.control import cancel_on_revoke
from ditto_tasks.transport.directory import Announcement, Announcer
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.streams import end_at_once, stop_consumers
from workers.prefork import keep_jobs
from workers.resources import ProcessResources

__all__ = ["install"]

logger = logging.getLogger(__name__)

_FAILED = 1  # exit status of a worker that could not open its resources


def install(
    app: Celery,
    resources: ProcessResources,
    nodes: list[str],
    config: DittoConfig,
    lease: StreamConsumer | None,
) -> None:
    """Make the workers of an app open their resources, announce themselves, and close when they stop.

    Args:
        lease: renewed while the worker runs, with a broker whose messages are not under a lease themselves.
    """
    app.conf.ditto_lease = lease
    app.conf.ditto_resources = resources
    app.conf.ditto_nodes = nodes
    app.conf.ditto_config = config
    app.steps["worker"].add(ServeNodes)
    cancel_on_revoke()


class ServeNodes(bootsteps.StartStopStep):
    """Opens the resources where the calls run; tells the directory what this worker serves once it reads."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._parent = parent
        self._announcer: Announcer | None = None

    def start(self, parent: Any) -> None:
        try:
            refuse_cluster(parent.app.conf.ditto_config)
            if not _forks(parent):
                parent.app.conf.ditto_resources.open()
        except DittoError as error:
            logger.critical("the worker cannot start: %s", error)
            raise SystemExit(_FAILED) from None
        if _forks(parent) and uses_streams(parent.app.conf.ditto_config):
            keep_jobs(parent.pool)
        _hold_lease(parent.app.conf.ditto_lease)
        signals.worker_ready.connect(self._announce)

    def _announce(self, **_: Any) -> None:
        """Begin to announce; the signal comes again after each lost connection."""
        if self._announcer is None:
            _spare_what_stays()
            self._announcer = _announcer(self._parent)
            self._announcer.start()

    def stop(self, parent: Any) -> None:
        signals.worker_ready.disconnect(self._announce)
        if self._announcer is not None:
            self._announcer.stop()
            self._announcer = None
        if _forks(parent):
            _let_calls_end(parent)
        with suppress(*REDIS_ERRORS):  # then each call waits for the server by itself
            end_at_once()

    terminate = stop


def _hold_lease(lease: StreamConsumer | None) -> None:
    if lease is not None:
        lease.on_change = lambda: _forget_dead(lease)
        lease.read([])


def _forget_dead(lease: StreamConsumer) -> None:
    lease.take_overdue(1)


def _let_calls_end(parent: Any) -> None:
    """Turn the event loop until the children have told that their calls ended.

    A call's result is seen before that: a pool that is stopped in between does not listen any more, and its
    children wait half a minute to be heard.
    """
    loop = parent.hub.create_loop()
    while state.reserved_requests and not state.should_terminate:
        next(loop)


def _forks(parent: Any) -> bool:
    return bool(parent.pool_cls.__module__ == "celery.concurrency.prefork")


def _announcer(parent: Any) -> Announcer:
    conf = parent.app.conf
    config = conf.ditto_config
    read = set(parent.app.amqp.queues.consume_from)  # narrower than all queues when -Q was given
    served = [node for node in conf.ditto_nodes if node_queue(config, node) in read]
    types = ",".join(sorted({node.partition(".")[0] for node in served}))
    announcement = Announcement(f"{parent.hostname}:{os.getpid()}", types, served, parent.concurrency)
    if not _forks(parent):
        conf.ditto_announced = announcement.name
    return Announcer(connect(redis_url(config)), Keys(config.transport.prefix), announcement)


def _spare_what_stays() -> None:
    """Leave what a process has loaded out of all garbage collections from now on.

    It stays to the end, and each look at all of it would stop the calls meanwhile.
    """
    gc.collect()
    gc.freeze()


def _resources_of(app: Any) -> ProcessResources | None:
    return app.conf.get("ditto_resources") if app is not None else None


@signals.worker_process_init.connect
def _open_in_child(**_: Any) -> None:
    """Open in a prefork child; what fails here fails again, and is told, with each call."""
    resources = _resources_of(current_app)
    if resources is not None:
        try:
            resources.open()
        except DittoError as error:
            logger.critical("a worker process cannot open its resources: %s", error)
    _spare_what_stays()


@signals.worker_process_shutdown.connect
def _close_in_child(**_: Any) -> None:
    resources = _resources_of(current_app)
    if resources is not None:
        resources.close()


@signals.worker_shutdown.connect
def _close_in_main(sender: Any, **_: Any) -> None:
    """Close after the pool has drained; in a prefork worker the main process has opened nothing."""
    resources = _resources_of(sender.app)
    if resources is not None:
        resources.close()
        with suppress(*REDIS_ERRORS):  # then the lease runs out by itself
            stop_consumers()
            if sender.app.conf.ditto_lease is not None:
                sender.app.conf.ditto_lease.stop()
