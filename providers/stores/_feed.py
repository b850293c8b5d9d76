"""Change feeds: their cursors, and how long deletions are remembered; shared by the stores that have one.

Each change has a revision, and later ones have greater ones. A record keeps the revision of its last change;
one that is deleted leaves it in a tombstone.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from ditto_tasks.contracts.errors import MemoryNodeError
from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.contracts.memory import ChangePage

__all__ = [
    "MAX_TOMBSTONES",
    "ChangeCursor",
    "change_page",
    "last_to_forget",
    "most_to_forget",
    "not_a_cursor",
    "tombstones_beside",
]

MAX_TOMBSTONES = 1_000_000  # the newest are kept; a follower that is further behind reads all records
_LARGEST = 2**63 - 1  # revision; that of a signed integer of SQL


@dataclass(frozen=True, slots=True)
class ChangeCursor:
    """Where a follower goes on.

    Attributes:
        store: names the store that gave it.
        revision: the first whose changes were not all told.
        rest: what a store needs beside it.
    """

    store: str
    revision: int
    rest: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str, *, limit: int, rest: int = 0) -> "ChangeCursor":
        """Read what `changes` was asked for; `rest` is how many texts a cursor of this store has beside.

        Raises:
            MemoryNodeError: INVALID_INPUT.
        """
        if limit < 1:
            raise MemoryNodeError("INVALID_INPUT", f"limit: must be 1 or more, not {limit}")
        try:
            store, revision, *texts = decode_json(base64.b64decode(text, altchars=b"-_", validate=True))
            cursor = cls(_text(store), _revision(revision), tuple(map(_text, texts)))
        except (ValueError, TypeError):
            raise not_a_cursor() from None
        if len(cursor.rest) != rest:
            raise not_a_cursor()
        return cursor

    def text(self) -> str:
        """Write the cursor."""
        return base64.urlsafe_b64encode(encode_json([self.store, self.revision, *self.rest])).decode()

    def check(self, store: str, *, is_known: bool) -> None:
        """See that this store can go on from here.

        Args:
            is_known: whether no tombstone is gone that comes after, and no revision is still to come that was
                there before.

        Raises:
            MemoryNodeError: INVALID_INPUT or CURSOR_EXPIRED.
        """
        if self.store != store:
            raise not_a_cursor()
        if not is_known:
            raise MemoryNodeError(
                "CURSOR_EXPIRED", "the store does not know any more what changed since: read all records"
            )


def change_page(cursor: ChangeCursor, rows: Sequence[tuple[int, str]], limit: int) -> ChangePage:
    """Make a page of revisions, none there twice, with their records; one more than `limit` if there are."""
    page = rows[:limit]
    following = ChangeCursor(cursor.store, page[-1][0] + 1) if page else cursor
    return ChangePage(tuple(id for _, id in page), following.text(), len(rows) <= limit)


def last_to_forget(oldest: int, newest: int, added: int) -> int:
    """Return the number of the last tombstone that is to go; below `oldest` if none is.

    Args:
        oldest, newest: numbers of tombstones, which rise by one with each.
        added: how many of them are new.
    """
    return min(newest - MAX_TOMBSTONES, oldest - 1 + most_to_forget(added))


def most_to_forget(added: int) -> int:
    """Return how many tombstones may go at once: so many that no delete has much more to do than its own."""
    return 2 * added


def tombstones_beside(added: int) -> int:
    """Return how many tombstones stay beside new ones."""
    return max(0, MAX_TOMBSTONES - added)


def not_a_cursor() -> MemoryNodeError:
    """Make the error of a cursor that is none, or another store's."""
    return MemoryNodeError("INVALID_INPUT", "cursor: is not one that the changes of this store gave")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    value.encode()  # a lone surrogate is a ValueError here, and not in a driver later
    return value


def _revision(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise TypeError("not a revision")
    return value
