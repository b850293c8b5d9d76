"""The workers of this process: who serves which node, and who has a slot free."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.worker import Replica, Worker

if TYPE_CHECKING:
    from ditto_tasks.config import DittoConfig

__all__ = ["LocalWorkers", "WorkerHandle", "WorkerInfo"]


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker as a directory shows it.

    Attributes:
        id: names the replica, or the Celery worker.
        type: the worker's type.
        nodes: what it serves.
        active: calls running now; None where another process counts them.
        concurrency: calls it runs at once; None: no limit.
        is_local: whether it lives in this process.
    """

    id: str
    type: str
    nodes: tuple[str, ...]
    active: int | None
    concurrency: int | None
    is_local: bool = True


class _Slot:
    """A replica with the count of the calls that it runs."""

    def __init__(self, id: str, replica: Replica) -> None:
        self.id = id
        self.replica = replica
        self.active = 0
        self.is_available = True

    def can_take(self, node: str) -> bool:
        worker = self.replica.worker
        has_room = worker.concurrency is None or self.active < worker.concurrency
        return self.is_available and has_room and node in worker.capabilities


class WorkerHandle:
    """What registering a worker returns."""

    def __init__(self, workers: "LocalWorkers", slot: _Slot) -> None:
        self._workers = workers
        self._slot = slot

    @property
    def id(self) -> str:
        """The id given at registration, or the one made up then."""
        return self._slot.id

    def set_available(self, is_available: bool) -> None:
        """Take calls, or take no more; running calls go on."""
        self._slot.is_available = is_available

    def unregister(self) -> bool:
        """Take the worker off the list, its resources left open; False when it was not on it."""
        return self._workers.remove(self._slot)

    def close(self) -> None:
        """Take no more calls, wait for those that run, then dispose of the resources; once."""
        self.set_available(False)
        self.unregister()
        self._workers.drain(self._slot)
        self._slot.replica.close()


class LocalWorkers:
    """Routes calls among the workers of this process: in turn for each node, past those that are full."""

    def __init__(self, config: "DittoConfig") -> None:
        self._config = config
        self._slots: list[_Slot] = []
        self._turn: dict[str, int] = {}
        self._changed = threading.Condition()

    def register(self, worker: Worker, id: str | None = None) -> WorkerHandle:
        """Open a replica of the worker.

        Raises:
            InvalidDefinition: the id is blank or taken.
        """
        name = str(uuid.uuid4()) if id is None else id
        with self._changed:
            if not name or any(slot.id == name for slot in self._slots):
                raise InvalidDefinition(f"the worker id {name!r} is blank or taken: choose another")
            slot = _Slot(name, Replica(worker, self._config))
            self._slots.append(slot)
        return WorkerHandle(self, slot)

    def remove(self, slot: _Slot) -> bool:
        """Take one entry off the list; False when it was not there."""
        with self._changed:
            if slot not in self._slots:
                return False
            self._slots.remove(slot)
            return True

    def drain(self, slot: _Slot) -> None:
        """Wait until the entry runs nothing any more."""
        with self._changed:
            self._changed.wait_for(lambda: slot.active == 0)

    def list(self) -> list[WorkerInfo]:
        """List the workers in the order in which they were registered."""
        with self._changed:
            return [
                WorkerInfo(
                    slot.id,
                    slot.replica.worker.type,
                    slot.replica.worker.capabilities,
                    slot.active,
                    slot.replica.worker.concurrency,
                )
                for slot in self._slots
            ]

    def serves(self, node: str) -> bool:
        """Tell whether any worker exposes the node, busy or not."""
        with self._changed:
            return any(node in slot.replica.worker.capabilities for slot in self._slots)

    def find(self, node: str) -> Replica | None:
        """Return a replica that implements the node, exposed or not, busy or not; None when there is none."""
        with self._changed:
            for slot in self._slots:
                if node in slot.replica.worker.nodes:
                    return slot.replica
        return None

    @contextmanager
    def claim(self, node: str, worker_id: str | None = None) -> Iterator[Replica | None]:
        """Hold a slot for one call of a node; None when no worker that serves it has one free."""
        slot = self._take(node, worker_id)
        try:
            yield slot.replica if slot else None
        finally:
            if slot:
                self._give_back(slot)

    def _take(self, node: str, worker_id: str | None) -> _Slot | None:
        with self._changed:
            pool = [slot for slot in self._slots if worker_id in (None, slot.id) and slot.can_take(node)]
            if not pool:
                return None
            turn = self._turn.get(node, 0) % len(pool)
            self._turn[node] = (turn + 1) % len(pool)
            pool[turn].active += 1
            return pool[turn]

    def _give_back(self, slot: _Slot) -> None:
        with self._changed:
            slot.active -= 1
            self._changed.notify_all()
