"""The strict JSON that tasks and results travel in, as a kombu serializer.

A content type of its own keeps it apart from kombu's JSON, which turns some objects into dates and the like.
"""

from typing import Any

from kombu.serialization import register

from ditto_tasks.contracts.errors import InvalidPayload
from ditto_tasks.contracts.json_value import NotJson, decode_json, encode_json, strict_json

__all__ = ["CONTENT_TYPE", "SERIALIZER", "register_serializer"]

SERIALIZER = "ditto-json"
CONTENT_TYPE = "application/x-ditto+json"


def register_serializer() -> None:
    """Make the serializer known to kombu; may be called again."""
    register(SERIALIZER, _encode, decode_json, content_type=CONTENT_TYPE, content_encoding="utf-8")


def _encode(value: Any) -> bytes:
    try:
        return encode_json(strict_json(value))
    except NotJson as error:
        raise InvalidPayload(f"{error}; the call was not sent") from None
