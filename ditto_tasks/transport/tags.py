"""Delivery tags: all that is needed to settle a message or give it back, from any process."""

__all__ = ["split_tag", "tag_of"]


def tag_of(id: str, stream: str, key: str) -> str:
    """Make the delivery tag of an entry."""
    return f"{id} {stream} {key}" if key else f"{id} {stream}"


def split_tag(tag: str) -> tuple[str, str, str]:
    """Take a delivery tag apart: entry, stream, and concurrency key or an empty string."""
    entry, stream, *key = tag.split(" ", 2)
    return entry, stream, key[0] if key else ""
