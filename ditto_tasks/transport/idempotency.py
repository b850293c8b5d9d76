"""Idempotency keys: whoever sends a call again under its key gets the execution that was sent first."""

from ditto_tasks.transport.connection import RedisClient
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.port import OutgoingCall

__all__ = ["IdempotencyKeys"]

_UNCONFIRMED = 60  # seconds a key is kept whose call may not have been sent


class IdempotencyKeys:
    """Remembers keys beside the broker, for brokers that cannot do both in one step.

    A process that dies between noting a key and sending the call blocks the key for a minute.
    """

    def __init__(self, client: RedisClient, keys: Keys, remembered: int) -> None:
        self._client = client
        self._keys = keys
        self._remembered = remembered

    def knows(self, call: OutgoingCall) -> bool:
        """Tell whether the call's key stands for an execution."""
        if call.idempotency_key is None:
            return False
        return bool(self._client.exists(self._keys.idempotency(call.node, call.idempotency_key)))

    def claim(self, call: OutgoingCall) -> tuple[str, bool]:
        """Return the execution id that the call's key stands for, and whether the call is to be sent.

        It is when its key is new; or, for a call that comes again under its own execution id, when nobody
        knows whether it was sent.
        """
        if call.idempotency_key is None:
            return call.execution_id, True
        key = self._keys.idempotency(call.node, call.idempotency_key)
        earlier = self._client.set(key, call.execution_id, nx=True, get=True, ex=_UNCONFIRMED)
        if earlier is None:
            return call.execution_id, True
        is_own = earlier.decode() == call.execution_id
        return earlier.decode(), is_own and self._client.ttl(key) <= _UNCONFIRMED

    def confirm(self, call: OutgoingCall) -> None:
        """Note that the call was sent: its key is remembered from now on."""
        if call.idempotency_key is not None:
            self._client.expire(self._keys.idempotency(call.node, call.idempotency_key), self._remembered)
