"""The directory of live workers: each says what it serves, for as long as its heart beats."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count

from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.local import WorkerInfo
from ditto_tasks.transport.connection import REDIS_ERRORS, RedisClient
from ditto_tasks.transport.keys import Keys

__all__ = ["EXPIRY", "HEARTBEAT", "Announcement", "Announcer", "Directory"]

logger = logging.getLogger(__name__)

HEARTBEAT = 4.0  # seconds between two announcements of a worker
EXPIRY = 13  # seconds until a silent worker counts as dead; several heartbeats
_NAMED_EVERY = 3  # heartbeats between two that list the worker's name, should somebody have struck it off
_CACHED = 1.0  # seconds a caller trusts what it has read


@dataclass(frozen=True, slots=True)
class Announcement:
    """What one worker process says of itself."""

    name: str
    type: str
    nodes: Sequence[str]
    concurrency: int


class Announcer:
    """Announces a worker until it is stopped; survives a server that is away."""

    def __init__(self, client: RedisClient, keys: Keys, announcement: Announcement) -> None:
        self._client = client
        self._keys = keys
        self._name = announcement.name
        self._body = encode_json(asdict(announcement))
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="ditto-announcer", daemon=True)

    def start(self) -> None:
        """Announce at once, then with every heartbeat."""
        self._thread.start()

    def stop(self) -> None:
        """Take the announcement back."""
        self._stopping.set()
        self._thread.join(HEARTBEAT)
        try:
            pipeline = self._client.pipeline()
            pipeline.delete(self._keys.worker(self._name)).srem(self._keys.workers, self._name).execute()
        except REDIS_ERRORS as error:
            logger.warning("the announcement of %s runs out by itself: %s", self._name, type(error).__name__)

    def _beat(self) -> None:
        for number in count():
            try:
                earlier = self._client.set(self._keys.worker(self._name), self._body, ex=EXPIRY, get=True)
                if earlier is None or number % _NAMED_EVERY == 0:
                    self._client.sadd(self._keys.workers, self._name)
            except REDIS_ERRORS as error:
                logger.warning("%s could not announce itself: %s", self._name, type(error).__name__)
            if self._stopping.wait(HEARTBEAT):
                return


class Directory:
    """Reads the announcements; what was read is trusted for a moment."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self._served: frozenset[str] = frozenset()
        self._read_at = float("-inf")

    def serves(self, node: str) -> bool:
        """Tell whether a live worker serves the node; a no is never from memory."""
        if node in self._served and time.monotonic() - self._read_at < _CACHED:
            return True
        self.list()
        return node in self._served

    def list(self) -> list[WorkerInfo]:
        """Read all announcements, sorted by name; forget the workers that fell silent."""
        names = sorted(name.decode() for name in self._client.smembers(self._keys.workers))
        bodies = self._client.mget([self._keys.worker(name) for name in names]) if names else []
        silent = [name for name, body in zip(names, bodies, strict=True) if body is None]
        if silent:
            self._client.srem(self._keys.workers, *silent)
        workers = [_info(decode_json(body)) for body in bodies if body is not None]
        self._served = frozenset(node for worker in workers for node in worker.nodes)
        self._read_at = time.monotonic()
        return workers


def _info(announced: dict[str, object]) -> WorkerInfo:
    announcement = Announcement(**announced)  # type: ignore[arg-type]  # JSON that `Announcer` wrote
    return WorkerInfo(
        announcement.name,
        announcement.type,
        tuple(announcement.nodes),
        active=None,
        concurrency=announcement.concurrency,
        is_local=False,
    )
