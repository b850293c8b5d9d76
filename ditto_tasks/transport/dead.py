"""The dead letters: calls that were given up, kept for people to look at and send again."""

from dataclasses import asdict, dataclass
from typing import Any

from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.transport.connection import RedisClient
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.ledger import DEAD_KEPT

__all__ = ["DeadCall", "DeadLetters", "encode_dead"]


@dataclass(frozen=True, slots=True)
class DeadCall:
    """One call that was given up.

    Attributes:
        execution_id: its id; its result, too, says that it was given up.
        node: the node that was called.
        input: what with, in wire form.
        given_up_at: seconds since the epoch.
    """

    execution_id: str
    node: str
    input: Any
    given_up_at: float


def encode_dead(call: DeadCall) -> bytes:
    """Write a call as it is kept."""
    return encode_json(asdict(call))


class DeadLetters:
    """Keeps the calls that were given up, the newest first."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._key = keys.dead

    def add(self, call: DeadCall) -> None:
        """Keep a call."""
        pipeline = self._client.pipeline()
        pipeline.lpush(self._key, encode_dead(call)).ltrim(self._key, 0, DEAD_KEPT - 1).execute()

    def list(self) -> list[DeadCall]:
        """List all calls, the newest first."""
        return [DeadCall(**decode_json(stored)) for stored in self._client.lrange(self._key, 0, -1)]

    def remove(self, execution_id: str) -> DeadCall | None:
        """Take a call out; None when it is not there."""
        for stored in self._client.lrange(self._key, 0, -1):
            call = DeadCall(**decode_json(stored))
            if call.execution_id == execution_id:
                return call if self._client.lrem(self._key, 1, stored) else None
        return None
