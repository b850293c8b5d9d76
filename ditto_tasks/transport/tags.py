"""Delivery tags: all that is needed to settle a message or give it back, from any process."""

from typing import Any

__all__ = ["split_tag", "stream_tag", "tag_of"]


def tag_of(id: str, stream: str, key: str) -> str:
    """Make the delivery tag of an entry."""
    return f"{id} {stream} {key}" if key else f"{id} {stream}"


def split_tag(tag: str) -> tuple[str, str, str]:
    """Take a delivery tag apart: entry, stream, and concurrency key or an empty string."""
    entry, stream, *key = tag.split(" ", 2)
    return entry, stream, key[0] if key else ""


def stream_tag(request: Any) -> str:
    """Return the tag of the message that brought a task if it came from a stream, else an empty string."""
    tag = (getattr(request, "properties", None) or {}).get("delivery_tag")
    return tag if isinstance(tag, str) and " " in tag else ""  # other transports have no space in theirs
