"""Filters, orders and cursors of MEMORY.QUERY: checked here once, turned into SQL or Python by each store.

The order of values is the same in every store: missing and null first; then numbers, compared as doubles,
with false as 0 and true as 1; then strings by code point; then lists and objects by their compact JSON text.
Ties are broken by id, ascending.
"""

import base64
import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ditto_tasks.contracts.errors import MemoryNodeError
from ditto_tasks.contracts.json_value import canonical_json, decode_json, encode_json
from ditto_tasks.contracts.memory import MemoryOrder, MemoryQueryInput

__all__ = [
    "BY_ID",
    "COLUMNS",
    "Paging",
    "SortField",
    "SortValue",
    "checked_filter",
    "is_sortable",
    "later_than",
    "order_key",
]

COLUMNS = ("id", "key")  # what an order may name beside fields of the metadata
FILTER_FIELDS = ("key", "namespace", "kind")

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")

V = TypeVar("V")

SortValue = str | bytes  # ids and keys (an absent one is "") as they are, metadata by `order_key`


@dataclass(frozen=True, slots=True)
class SortField:
    """One field of an order."""

    name: str
    descending: bool = False

    @property
    def is_column(self) -> bool:
        """Whether it is a field of the record, not of its metadata."""
        return self.name in COLUMNS


BY_ID = (SortField("id"),)


@dataclass(frozen=True, slots=True)
class Paging:
    """How one listing goes on.

    Attributes:
        filter: field to the one value that it must have; `namespace` and `kind` are metadata's.
        fields: the order; ends with `id`, so that no two records are equal in it.
        after: the sort values of the last record of the page before; None: from the start.
    """

    filter: dict[str, str]
    fields: tuple[SortField, ...]
    after: tuple[SortValue, ...] | None

    @classmethod
    def of(cls, request: MemoryQueryInput) -> "Paging":
        """Read a request.

        Raises:
            MemoryNodeError: INVALID_INPUT, naming what no store knows or the cursor.
        """
        filter = checked_filter(request.filter)
        fields = _sort_fields(request.order_by or ())
        if request.cursor is None:
            return cls(filter, fields, None)
        return cls(filter, fields, _read_cursor(request.cursor, filter, fields))

    def cursor(self, last: Sequence[SortValue]) -> str:
        """Return the cursor of the page after the record with these sort values.

        In the order of ids it is the id itself; in another one it carries the order and the filter with it.
        """
        if self.fields == BY_ID:
            return str(last[0])
        values = [value.hex() if isinstance(value, bytes) else value for value in last]
        text = encode_json([_signature(self.filter, self.fields), *values])
        return base64.urlsafe_b64encode(text).decode()


def checked_filter(filter: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the filter, empty when there is none.

    Raises:
        MemoryNodeError: INVALID_INPUT for a field or a value that cannot be filtered by.
    """
    for field, value in (filter or {}).items():
        if field not in FILTER_FIELDS:
            known = ", ".join(FILTER_FIELDS)
            raise _invalid(f"filter: {field!r:.80} cannot be filtered by: use {known}")
        if not isinstance(value, str):
            raise _invalid(f"filter.{field}: must be a string, not {value!r:.80}")
    return dict(filter or {})


def is_sortable(field: str) -> bool:
    """Tell whether a field of metadata may be named in an order."""
    return _FIELD.match(field) is not None


def later_than(
    fields: Sequence[SortField], expressions: Sequence[str], values: Sequence[V], placeholder: str
) -> tuple[str, list[V]]:
    """Say in SQL "later in the order than these values"; none of the expressions is ever NULL.

    Args:
        expressions: of the fields, in their order; no value of a caller is part of one.
        placeholder: how the driver marks a bound value.

    Returns:
        The condition, and the values that are bound in it.
    """
    alternatives: list[str] = []
    bound: list[V] = []
    for place, field in enumerate(fields):
        equal = [f"{expression} = {placeholder}" for expression in expressions[:place]]
        later = f"{expressions[place]} {'<' if field.descending else '>'} {placeholder}"
        alternatives.append(" AND ".join((*equal, later)))
        bound += values[: place + 1]
    return f"({' OR '.join(alternatives)})", bound


def order_key(value: Any) -> bytes:
    """Return bytes that sort as the JSON value does; None stands for a missing one, too."""
    if value is None:
        return b"\x00"
    if isinstance(value, int | float):
        return b"\x01" + _number_key(value)
    if isinstance(value, str):
        return b"\x02" + value.encode()
    return b"\x03" + encode_json(value)


def _number_key(value: float) -> bytes:
    """Return the double with its bits turned so that bytes sort as numbers (negative ones inverted)."""
    try:
        (bits,) = struct.unpack(">q", struct.pack(">d", value + 0.0))  # -0.0 becomes 0.0
    except OverflowError:  # an integer beyond all doubles
        return _number_key(float("inf") if value > 0 else float("-inf"))
    return struct.pack(">Q", bits + (1 << 63) if bits >= 0 else ~bits)


def _sort_fields(order_by: Sequence[MemoryOrder]) -> tuple[SortField, ...]:
    fields: list[SortField] = []
    for order in order_by:
        if not is_sortable(order.field):
            raise _invalid(
                f"orderBy: {order.field!r:.80} is not a field name: use letters, digits, '_' and '-'"
            )
        fields.append(SortField(order.field, order.direction == "desc"))
        if order.field == "id":
            return tuple(fields)  # no two records are equal by now
    return (*fields, *BY_ID)


def _signature(filter: Mapping[str, str], fields: Sequence[SortField]) -> str:
    order = [[field.name, field.descending] for field in fields]
    return hashlib.sha256(canonical_json([order, dict(filter)]).encode()).hexdigest()[:16]


def _read_cursor(
    cursor: str, filter: Mapping[str, str], fields: tuple[SortField, ...]
) -> tuple[SortValue, ...]:
    if fields == BY_ID:
        if not _ID.match(cursor):
            raise _invalid("cursor: is not one that a listing by id gave")
        return (cursor,)
    try:
        signature, *values = decode_json(base64.b64decode(cursor, altchars=b"-_", validate=True))
        after = tuple(_sort_value(field, value) for field, value in zip(fields, values, strict=True))
    except (ValueError, TypeError):
        raise _invalid("cursor: is not one that this store gave") from None
    if signature != _signature(filter, fields):
        raise _invalid("cursor: belongs to another filter or order: start again without it")
    return after


def _sort_value(field: SortField, value: Any) -> SortValue:
    if not isinstance(value, str):
        raise TypeError("a cursor carries text")
    value.encode()  # a lone surrogate is a ValueError here, and not in a driver later
    return value if field.is_column else bytes.fromhex(value)


def _invalid(message: str) -> MemoryNodeError:
    return MemoryNodeError("INVALID_INPUT", message)
