"""The result backend: Celery's for Redis, which also wakes those who wait.

A result is written once, under Celery's own key, so that any Celery client can read it. In the same step it
is pushed into the inboxes of the processes that wait for it: no subscription, no polling.
"""

from typing import Any

from celery.backends.redis import RedisBackend
from celery.states import READY_STATES

from ditto_tasks.transport.keys import INBOX_MARK, Keys

__all__ = ["INBOX_EXPIRY", "NodeResultBackend"]

INBOX_EXPIRY = 600  # seconds that results stay in the inbox of a process that reads no more

# KEYS: result, waiters. ARGV: the result, its expiry, the sender's inbox or "", the inboxes' expiry.
# The first final state stands: a second one, of a call that ran twice, changes nothing and wakes nobody. The
# state is the first field of what Celery stores.
_STORE = """
local stored = redis.call('GETRANGE', KEYS[1], 0, 20)
for _, final in ipairs({'SUCCESS', 'FAILURE', 'REVOKED'}) do
  if string.find(stored, '{"status":"' .. final, 1, true) == 1 then return 0 end
end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
redis.call('PUBLISH', KEYS[1], ARGV[1])
local inboxes = redis.call('SMEMBERS', KEYS[2])
if ARGV[3] ~= '' then inboxes[#inboxes + 1] = ARGV[3] end
for _, inbox in ipairs(inboxes) do
  redis.call('RPUSH', inbox, ARGV[1])
  redis.call('EXPIRE', inbox, ARGV[4])
end
redis.call('DEL', KEYS[2])
return 1
"""


class NodeResultBackend(RedisBackend):
    """Celery's Redis backend with one write a result; every node's task is done in one state, SUCCESS."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._keys = Keys(self.app.conf.ditto_prefix)
        self._store = self.client.register_script(_STORE)

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:
        """Subscribe to nothing: results come through the inbox."""
        return {}

    def _store_result(
        self,
        task_id: str,
        result: Any,
        state: str,
        traceback: Any = None,
        request: Any = None,
        **kwargs: Any,
    ) -> Any:
        if state not in READY_STATES:
            return super()._store_result(task_id, result, state, traceback, request, **kwargs)
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = task_id
        reply_to = getattr(request, "reply_to", None) or ""
        inbox = reply_to if INBOX_MARK in reply_to else ""
        self._store(
            keys=[self._keys.result(task_id), self._keys.waiters(task_id)],
            args=[self.encode(meta), int(self.expires or 0) or INBOX_EXPIRY, inbox, INBOX_EXPIRY],
        )
        return result
