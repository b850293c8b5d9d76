"""Many values in bounded parts, for whatever takes only so many at a time."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from ditto_tasks.contracts.call import NO_CALL, Call

__all__ = ["chunks"]

T = TypeVar("T")


def chunks(values: Sequence[T], size: int, call: Call = NO_CALL) -> Iterator[list[T]]:
    """Split into parts of at most `size`; ends the call between two of them if it is to end."""
    if 0 < len(values) <= size:
        return iter((list(values),))  # most are one part
    return _parts(values, size, call)


def _parts(values: Sequence[T], size: int, call: Call) -> Iterator[list[T]]:
    for start in range(0, len(values), size):
        if start:
            call.check()
        yield list(values[start : start + size])  # drivers take no other sequence
