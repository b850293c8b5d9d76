"""The scheduler that `celery beat` runs: a thin frame of Celery's around the dispatcher."""

from contextlib import suppress
from typing import Any

from celery.beat import Scheduler

from beat.dispatcher import LOOK_INTERVAL, Dispatcher
from beat.entry import Entry
from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.errors import BrokerUnavailable
from ditto_tasks.transport.app import redis_url, refuse_cluster
from ditto_tasks.transport.client import CeleryTransport
from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.slots import SlotBook

__all__ = ["SlotScheduler"]


_GOODBYE_TIMEOUT = 1.0  # seconds


class SlotScheduler(Scheduler):
    """Sends the schedules of the app's `ditto_config`; keeps what it must remember in Redis, and no file.

    A lazy one, of which `celery beat` makes another for its banner, connects to nothing.
    """

    max_interval = LOOK_INTERVAL
    _dispatcher: Dispatcher | None = None

    def setup_schedule(self) -> None:
        config: DittoConfig = self.app.conf.ditto_config
        with suppress(BrokerUnavailable):  # it is waited for, with each tick
            refuse_cluster(config)
        transport = CeleryTransport(config)
        self._book = transport.slots
        self._dispatcher = Dispatcher(
            [Entry.of(schedule) for schedule in config.schedules],
            self._book,
            lambda call: transport.post([call]),
            config.transport.prefix,
        )

    def tick(self, *_: Any, **__: Any) -> float:
        assert self._dispatcher is not None
        return min(self._dispatcher.tick(), self.max_interval)

    def close(self) -> None:
        """Let another beat take over at once.

        `celery beat` calls this in its handler of SIGTERM, in the middle of anything, even of itself: hence a
        connection of its own.
        """
        if self._dispatcher is not None and self._dispatcher.sends:
            with suppress(BrokerUnavailable):  # the lease ends by itself
                self._let_go()
            self._dispatcher = None

    def _let_go(self) -> None:
        config: DittoConfig = self.app.conf.ditto_config
        with connect(redis_url(config), socket_timeout=_GOODBYE_TIMEOUT, retries=False) as client:
            SlotBook(client, Keys(config.transport.prefix), self._book.holder).let_go()
