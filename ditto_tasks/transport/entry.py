"""Messages as they lie in streams."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ditto_tasks.transport.ledger import Begun
from ditto_tasks.transport.tags import tag_of

__all__ = ["Entry", "Fetched", "read_entries", "read_entry"]


class Entry(NamedTuple):
    """A message as it lies in a stream.

    Attributes:
        key: the concurrency key that the caller gave; empty without one.
        tag: the delivery tag: enough to settle or release it from any process.
        begun: how its call was begun, if that was done with the fetch.
    """

    stream: str
    id: str
    fields: dict[str, bytes]
    key: str
    tag: str
    begun: Begun | None
    is_taken_over: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one look into the streams brought.

    Attributes:
        entries: the messages.
        is_more: whether another look at once may bring more, though not all slots were filled.
        again_in: seconds after which a limit has room again; None: nothing to wait for.
    """

    entries: list[Entry]
    is_more: bool = False
    again_in: float | None = None


def read_entries(answer: Iterable[Any], *, is_taken_over: bool = False) -> list[Entry]:
    """Read entries as the server gives them: stream, id, fields, and how their call was begun if it was."""
    return [
        read_entry(stream, id, fields, begun[0] if begun else None, is_taken_over=is_taken_over)
        for stream, id, fields, *begun in answer
    ]


def read_entry(
    stream: bytes, id: bytes, fields: Any, begun: Any = None, *, is_taken_over: bool = False
) -> Entry:
    """Read one entry."""
    named = _pairs(fields)
    key = named["k"].decode(errors="replace") if "k" in named else ""  # anybody may write into a stream
    name, entry = stream.decode(), id.decode()
    tag = tag_of(entry, name, key)
    return Entry(name, entry, named, key, tag, Begun.of(begun) if begun else None, is_taken_over)


def _pairs(fields: Any) -> dict[str, bytes]:
    if isinstance(fields, dict):
        return {name.decode(errors="replace"): value for name, value in fields.items()}
    parts = iter(fields)
    return {name.decode(errors="replace"): value for name, value in zip(parts, parts, strict=True)}
