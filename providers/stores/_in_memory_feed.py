"""What changed in a store in memory: a log of revisions, and the tombstones of what was deleted."""

import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from ditto_tasks.contracts.memory import ChangePage
from providers.stores._feed import ChangeCursor, change_page, last_to_forget

__all__ = ["ChangeLog"]

SLACK = 1_000  # entries of the log that no record stands behind any more, beside as many as there are records


class ChangeLog:
    """Names records in the order of their last changes; its owner lets one thread in at a time."""

    def __init__(self) -> None:
        self._store = uuid.uuid4().hex
        self._following = 1  # the next revision
        self._log: list[tuple[int, str]] = []  # in the order of revisions; an id may be there more than once
        self._last: dict[str, int] = {}  # by id, of records and of tombstones
        self._tombstones: deque[tuple[int, str]] = deque()
        self._buried = 0  # tombstones that there ever were
        self._forgotten = 0  # the greatest revision of one that is gone

    def changed(self, id: str) -> None:
        """Note that a record was written or updated."""
        self._last[id] = self._following
        self._log.append((self._following, id))
        self._following += 1
        if len(self._log) > 2 * len(self._last) + SLACK:
            self._log = list(self._told(self._log))

    def deleted(self, ids: Iterable[str]) -> None:
        """Note that these records are gone."""
        former = self._buried
        for id in ids:
            self._tombstones.append((self._following, id))
            self._buried += 1
            self.changed(id)
        oldest = self._buried - len(self._tombstones) + 1
        for _ in range(oldest, last_to_forget(oldest, self._buried, self._buried - former) + 1):
            self._forgotten, id = self._tombstones.popleft()
            del self._last[id]

    def cursor(self) -> str:
        """Return the cursor of the present."""
        return ChangeCursor(self._store, self._following).text()

    def page(self, cursor: str, limit: int) -> ChangePage:
        """Return what changed, as `ChangeFeed` says."""
        since = ChangeCursor.read(cursor, limit=limit)
        since.check(self._store, is_known=self._forgotten < since.revision <= self._following)
        start = bisect_left(self._log, (since.revision,))
        rows = islice(self._told(islice(self._log, start, None)), limit + 1)
        return change_page(since, list(rows), limit)

    def _told(self, log: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        """Leave out all but the last change of a record."""
        return ((revision, id) for revision, id in log if self._last.get(id) == revision)
