"""Records as every index keeps them: the text of one, what it is filtered by, and filters of a search."""

from collections.abc import Mapping
from typing import Any

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.errors import MemoryNodeError, RetrievalError
from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.contracts.memory import MemoryItem
from providers.stores._paging import checked_filter

__all__ = ["FILTER_FIELDS", "filter_values", "index_filter", "read_record", "record_text"]

FILTER_FIELDS = ("key", "namespace", "kind")


def record_text(record: MemoryItem) -> str:
    """Write a record as compact JSON; control characters in it are escaped, NUL among them."""
    return encode_json(record.to_wire()).decode()


def read_record(text: str | bytes) -> MemoryItem:
    """Read what `record_text` wrote; it was checked when it was made, so it is not checked again."""
    return trusted(MemoryItem, decode_json(text))


def filter_values(record: MemoryItem) -> dict[str, str | None]:
    """Return what filters compare: a string for each of `FILTER_FIELDS`, or None, which none matches."""
    metadata = record.metadata or {}
    values = {"key": record.key, "namespace": metadata.get("namespace"), "kind": metadata.get("kind")}
    return {field: value if isinstance(value, str) else None for field, value in values.items()}


def index_filter(filter: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the filter of a search, empty when there is none.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for a field or a value that cannot be filtered by.
    """
    try:
        return checked_filter(filter)
    except MemoryNodeError as error:
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", error.message) from None
