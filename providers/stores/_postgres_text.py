"""Text as PostgreSQL can hold it, which knows no NUL.

NUL is kept as \\x01\\x01 and \\x01 as \\x01\\x02: that can be undone, and keeps the order by code point.
JSON text needs none of it, for in JSON both are written as escapes.
"""

import hashlib

__all__ = ["key_digest", "lookup_text", "read_text", "stored_text"]

LONGEST_LOOKUP = 500  # characters; an index entry must stay below 2,704 bytes
_DIGEST = "\x01\x03"  # stands in front of the digest of a longer text; no stored text holds it


def stored_text(text: str) -> str:
    """Write text without NUL."""
    return text.replace("\x01", "\x01\x02").replace("\x00", "\x01\x01")


def read_text(stored: str) -> str:
    """Read what `stored_text` wrote."""
    return stored.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")


def lookup_text(text: str) -> str:
    """Write text for an index that only ever compares for equality: long text as its digest."""
    return stored_text(text) if len(text) <= LONGEST_LOOKUP else _DIGEST + key_digest(text).hex()


def key_digest(key: str) -> bytes:
    """Return what tells a key from all others, however long it is."""
    return hashlib.sha256(key.encode()).digest()
