"""Ids that follow from keys, for engines that know a record by its id alone."""

import hashlib
import re
import uuid

__all__ = ["is_record_id", "stable_id"]

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")


def stable_id(text: str) -> str:
    """Return the UUID of a text: the first half of its SHA-256, marked as version 5."""
    number = bytearray(hashlib.sha256(text.encode()).digest()[:16])
    number[6] = number[6] & 0x0F | 0x50
    number[8] = number[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(number)))


def is_record_id(id: str) -> bool:
    """Tell whether this is a UUID in lower case."""
    return _ID.match(id) is not None
