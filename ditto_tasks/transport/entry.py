"""Messages as they lie in streams."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ditto_tasks.transport.ledger import Begun
from ditto_tasks.transport.tags import tag_of

__all__ = ["Entry", "Fetched", "read_entries"]


@dataclass(frozen=True, slots=True)
class Entry:
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

    entries: Sequence[Entry]
    is_more: bool = False
    again_in: float | None = None


def read_entries(answer: Iterable[Any], *, is_taken_over: bool = False) -> list[Entry]:
    """Read entries as the server gives them: stream, id, fields, and how their call was begun if it was."""
    return [
        _entry(stream.decode(), id.decode(), _pairs(fields), begun[0] if begun else None, is_taken_over)
        for stream, id, fields, *begun in answer
    ]


def _entry(stream: str, id: str, fields: dict[str, bytes], begun: Any, is_taken_over: bool) -> Entry:
    key = fields["k"].decode(errors="replace") if "k" in fields else ""  # anybody may write into a stream
    tag = tag_of(id, stream, key)
    return Entry(stream, id, fields, key, tag, Begun.of(begun) if begun else None, is_taken_over)


def _pairs(fields: Any) -> dict[str, bytes]:
    if isinstance(fields, dict):
        return {name.decode(errors="replace"): value for name, value in fields.items()}
    return {fields[index].decode(errors="replace"): fields[index + 1] for index in range(0, len(fields), 2)}
