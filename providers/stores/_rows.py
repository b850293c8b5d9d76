"""What stores that keep records as rows of JSON text share: a row and its record, and when they agree."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.errors import MemoryNodeError
from ditto_tasks.contracts.json_value import canonical_json, decode_json, encode_json
from ditto_tasks.contracts.memory import MemoryDraft, MemoryItem, MemoryPatch, MemorySearchInput

__all__ = [
    "Row",
    "checked_query",
    "checked_reuse",
    "created",
    "item",
    "json_text",
    "metadata_text",
    "patched",
    "refuse_repeated",
]


class Row(NamedTuple):
    """A record as it is kept: content and metadata as compact JSON text, None where a field is absent."""

    id: str
    key: str | None
    content: str
    metadata: str | None


def json_text(value: Any) -> str:
    """Write a JSON value compactly, with characters beyond ASCII as they are."""
    return encode_json(value).decode()


def metadata_text(metadata: dict[str, Any] | None) -> str | None:
    """Write metadata; absent metadata stays absent, and is another value than an empty object."""
    return None if metadata is None else json_text(metadata)


def item(row: Iterable[Any]) -> MemoryItem:
    """Make the record of a row; it was checked when it was written, so it is not checked again."""
    id, key, content, metadata = row
    fields: dict[str, Any] = {"id": id, "content": decode_json(content)}
    if key is not None:
        fields["key"] = key
    if metadata is not None:
        fields["metadata"] = decode_json(metadata)
    return trusted(MemoryItem, fields)


def created(id: str, draft: MemoryDraft) -> MemoryItem:
    """Make the record of a draft, with the draft's own values: they were copied when it was checked."""
    fields: dict[str, Any] = {"id": id, "content": draft.content}
    if draft.key is not None:
        fields["key"] = draft.key
    if draft.metadata is not None:
        fields["metadata"] = draft.metadata
    return trusted(MemoryItem, fields)


def patched(row: Row, patch: MemoryPatch) -> Row:
    """Return the row with the patch's fields in place of its own."""
    return Row(
        row.id,
        row.key,
        json_text(patch.content) if patch.has_content else row.content,
        metadata_text(patch.metadata) if patch.has_metadata else row.metadata,
    )


def checked_reuse(row: Row, draft: MemoryDraft) -> MemoryItem:
    """Return the existing record of a draft's key, if it is what the draft says, compared as JSON values.

    Raises:
        MemoryNodeError: KEY_CONFLICT when content or metadata differ.
    """
    record = item(row)
    existing = (canonical_json(record.content), _canonical(record.metadata))
    if existing != (canonical_json(draft.content), _canonical(draft.metadata)):
        raise MemoryNodeError(
            "KEY_CONFLICT", f"the key {draft.key!r:.80} exists with other content or metadata: use UPDATE"
        )
    return record


def refuse_repeated(drafts: Iterable[MemoryDraft]) -> None:
    """Look for a key that is in one batch twice.

    Raises:
        MemoryNodeError: INVALID_INPUT, naming the key.
    """
    seen: set[str] = set()
    for draft in drafts:
        if draft.key is None:
            continue
        if draft.key in seen:
            raise MemoryNodeError("INVALID_INPUT", f"memories: the key {draft.key!r:.80} is there twice")
        seen.add(draft.key)


def checked_query(request: MemorySearchInput) -> str:
    """Return the text of a keyword search.

    Raises:
        MemoryNodeError: INVALID_INPUT for another strategy, options, or a query that is no string.
    """
    if request.strategy not in (None, "keyword"):
        raise MemoryNodeError(
            "INVALID_INPUT", f"strategy: {request.strategy!r:.80} is unknown: this store has 'keyword'"
        )
    if request.options:
        raise MemoryNodeError("INVALID_INPUT", "options: this store has none: leave them out")
    if not isinstance(request.query, str):
        raise MemoryNodeError("INVALID_INPUT", f"query: must be a string, not {request.query!r:.80}")
    return request.query


def _canonical(metadata: dict[str, Any] | None) -> str | None:
    return None if metadata is None else canonical_json(metadata)
