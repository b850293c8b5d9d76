"""The result backend: Celery's for Redis, which also wakes those who wait.

A result is written once, under Celery's own key, so that any Celery client can read it. In the same step it
is pushed into the inboxes of the processes that wait for it, and its message is removed from the queue.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from celery.backends.redis import RedisBackend, SentinelBackend
from celery.states import READY_STATES, SUCCESS

from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.transport.keys import INBOX_MARK, Keys, queue_of
from ditto_tasks.transport.ledger import Delivery, Ended, Ending, Ledger
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.streams import end_later, forget_delivery
from ditto_tasks.transport.tags import split_tag, stream_tag

__all__ = ["NodeResultBackend", "SentinelNodeResultBackend"]

_STORED = b'{"status":"SUCCESS","result":%b,"traceback":null,"children":%b,"date_done":"%b","task_id":%b%b}'


class NodeResultBackend(RedisBackend):
    """Celery's Redis backend with one write a result; every node's task is done in one state, SUCCESS."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settles: bool = self.app.conf.ditto_settles_with_result
        self._limits: Mapping[str, Limit] = self.app.conf.ditto_limits
        self._is_extended = bool(self.app.conf.result_extended)
        keys = Keys(self.app.conf.ditto_prefix)
        self._ledger = Ledger(self.client, keys, int(self.app.conf.result_expires))

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:
        """Subscribe to nothing: results come through the inbox."""
        return {}

    def cancel(self, execution_id: str, reason: str) -> None:
        """Cancel a call, wherever it is."""
        self._ledger.cancel(execution_id, reason)

    def ending(self, execution_id: str, request: Any) -> Ending:
        """Make ready the last step of the call that a message has brought."""
        reply_to = getattr(request, "reply_to", None)
        inbox = reply_to if isinstance(reply_to, str) and INBOX_MARK in reply_to else ""
        tag = stream_tag(request) if self._settles else ""
        return self._ledger.ending(execution_id, inbox=inbox, delivery=self._delivery(tag))

    def end(self, ending: Ending, result: bytes, request: Any) -> None:
        """Store a node's result, written as JSON, as `store_result` does, with less around it."""
        if self._is_extended:
            self.store_result(request.id, decode_json(result), SUCCESS, request=request)
            return
        children = encode_json(self.current_task_children(request)) if request.children else b"[]"
        parent = b',"parent_id":%b' % encode_json(request.parent_id) if request.parent_id else b""
        done = datetime.now(UTC).isoformat().encode()
        parts = (result, children, done, encode_json(request.id), parent)
        self._end(ending, _STORED % parts, request)

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
        self._end(self.ending(task_id, request), self.encode(meta), request)
        return result

    def _end(self, ending: Ending, stored: bytes, request: Any) -> None:
        ending.filled(stored, getattr(request, "ditto_attempt", None), getattr(request, "ditto_dead", b""))
        if ending.tag and end_later(ending):
            return
        ended = self._end_surely(ending)
        if ending.tag and ended != "known":
            forget_delivery(ending.tag)  # gone with the result, or another process's by now

    def _end_surely(self, ending: Ending) -> Ended:
        """End a call; again and again while the server is away: the work is done."""
        try:
            return self._ledger.end(ending)
        except self.connection_errors:
            ended: Ended = self.ensure(self._ledger.end, (ending,))
            return ended

    def _delivery(self, tag: str) -> Delivery | None:
        if not tag:
            return None
        limit = self._limits.get(queue_of(split_tag(tag)[1])) if self._limits else None
        return Delivery(tag, limit)


class SentinelNodeResultBackend(NodeResultBackend, SentinelBackend):
    """The same with whichever server the sentinels name as master."""
