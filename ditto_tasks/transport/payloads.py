"""Inputs and outputs over the message limit: kept in Redis beside the call, which carries a reference
instead.

They are there only where `transport.largePayloads` asks for it; otherwise what is too large is refused.
"""

from typing import Any

from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.transport.connection import RedisClient
from ditto_tasks.transport.keys import Keys

__all__ = ["OUTPUT_REFERENCE", "PAYLOAD_HEADER", "PayloadMissing", "Payloads"]

PAYLOAD_HEADER = "ditto_payload"  # of a message whose input is kept apart
OUTPUT_REFERENCE = "outputReference"  # of a stored result whose output is: the key under which it lies
_LONGER_THAN_RESULTS = 2  # so many times as long as results they are kept


class PayloadMissing(Exception):
    """What a reference names is not there any more."""


class Payloads:
    """Keeps large inputs and outputs, each once.

    Args:
        client: of the server that keeps the results.
        keys: the key names.
        expires: seconds that results are kept; payloads are kept longer.
    """

    def __init__(self, client: RedisClient, keys: Keys, expires: int) -> None:
        self._client = client
        self._keys = keys
        self._expires = expires * _LONGER_THAN_RESULTS

    def keep_input(self, execution_id: str, input: Any) -> None:
        """Keep an input until its call has ended."""
        self._client.set(self._keys.input(execution_id), encode_json(input), ex=self._expires)

    def input(self, execution_id: str) -> Any:
        """Return the input of a call.

        Raises:
            PayloadMissing: it has expired.
        """
        return self._read(self._keys.input(execution_id))

    def keep_output(self, execution_id: str, output: Any) -> str:
        """Keep an output; returns its reference."""
        reference = self._keys.output(execution_id)
        self._client.set(reference, encode_json(output), ex=self._expires)
        return reference

    def output(self, reference: str) -> Any:
        """Return the output that a reference names.

        Raises:
            PayloadMissing: it has expired.
        """
        return self._read(reference)

    def _read(self, key: str) -> Any:
        stored = self._client.get(key)
        if stored is None:
            raise PayloadMissing(key)
        return decode_json(stored)
