"""Points of Qdrant: their ids, the payload that carries a record, and filters on it.

The payload is the record in its wire form. Where a payload cannot carry it, or would be filtered otherwise
than records are, its exact text stands beside it, under `ditto`.
"""

import uuid
from collections.abc import Mapping
from typing import Any

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.json_value import decode_json
from ditto_tasks.contracts.memory import MemoryItem
from providers.stores._qdrant_driver import models
from providers.stores._rows import json_text
from providers.stores._stable_id import is_record_id

__all__ = [
    "FILTER_PATHS",
    "MANIFEST_ID",
    "first_id_after",
    "is_point_id",
    "matching",
    "matching_vectors",
    "payload_of",
    "record_of",
]

MANIFEST_ID = "00000000-0000-5000-8000-000000000001"
FILTER_PATHS = {"key": "key", "namespace": "metadata.namespace", "kind": "metadata.kind"}

_ASIDE = "ditto"
_FIELDS = tuple(MemoryItem.model_fields)
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1  # integers that a payload holds


def is_point_id(id: str) -> bool:
    """Tell whether a record can have this id: a UUID in lower case, not the manifest's."""
    return is_record_id(id) and id != MANIFEST_ID


def first_id_after(text: str) -> str | None:
    """Return the least UUID that sorts after a text; None when there is none."""
    low, high = 0, 1 << 128
    while low < high:
        middle = (low + high) // 2
        if str(uuid.UUID(int=middle)) > text:
            high = middle
        else:
            low = middle + 1
    return None if low == 1 << 128 else str(uuid.UUID(int=low))


def payload_of(record: MemoryItem) -> dict[str, Any]:
    """Make the payload of a record."""
    wire = record.to_wire()
    lists = [field for field in ("namespace", "kind") if isinstance((record.metadata or {}).get(field), list)]
    if not lists and not _is_inexact(wire):
        return wire
    carried = _rounded(wire)
    for field in lists:  # a condition on a list holds when one of its items matches
        del carried["metadata"][field]
    return {**carried, _ASIDE: {"exact": json_text(wire)}}


def record_of(payload: Mapping[str, Any] | None) -> MemoryItem:
    """Read the record of a payload; content and metadata were checked when they were written.

    Raises:
        ValueError: the payload holds none.
    """
    exact = ((payload or {}).get(_ASIDE) or {}).get("exact")
    wire: Any = payload if exact is None else decode_json(exact)
    if not _is_record(wire):
        raise ValueError("a payload that holds no record")
    return trusted(MemoryItem, {field: wire[field] for field in _FIELDS if field in wire})


def matching(filter: Mapping[str, str]) -> models.Filter:
    """Make the condition of a checked filter; it never holds for the manifest."""
    return models.Filter(must=_equal_to(filter), must_not=[models.HasIdCondition(has_id=[MANIFEST_ID])])


def matching_vectors(filter: Mapping[str, str]) -> models.Filter | None:
    """Make the condition of a checked filter for a search by vectors; None: it holds for all.

    The manifest has no vector, so that no search finds it. Naming it here would cost: without a server each
    point is held against each condition in Python, which takes longer than to compare the vectors.
    """
    return models.Filter(must=_equal_to(filter)) if filter else None


def _is_record(wire: Any) -> bool:
    return (
        isinstance(wire, dict)
        and "content" in wire
        and _is_text(wire.get("id"))
        and ("key" not in wire or _is_text(wire["key"]))
        and ("metadata" not in wire or isinstance(wire["metadata"], dict))
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _equal_to(filter: Mapping[str, str]) -> list[models.Condition]:
    return [
        models.FieldCondition(key=FILTER_PATHS[field], match=models.MatchValue(value=value))
        for field, value in filter.items()
    ]


def _is_inexact(value: Any) -> bool:
    """Tell whether a number in it may be another one after a server has read and written it."""
    if isinstance(value, dict):
        return any(map(_is_inexact, value.values()))
    if isinstance(value, list):
        return any(map(_is_inexact, value))
    return isinstance(value, float) or (isinstance(value, int) and not _SMALLEST <= value <= _LARGEST)


def _rounded(value: Any) -> Any:
    """Copy with integers beyond the range as doubles, beyond those as text."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        try:
            return float(value)
        except OverflowError:
            return str(value)
    return value
