"""How calls get into their queues: written into the streams directly, or sent the way Celery does.

The direct way builds the same message in a fraction of the time. Celery's own is taken with other brokers,
and when somebody listens to its signals or asks for its sent-events, which the direct way does not give.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from celery import Celery
from celery._state import _task_stack, get_current_worker_task
from celery.signals import after_task_publish, before_task_publish
from celery.utils.nodenames import anon_nodename

from ditto_tasks.contracts.errors import QueueFull
from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.transport.connection import SOCKET_TIMEOUT, RedisClient
from ditto_tasks.transport.idempotency import IdempotencyKeys
from ditto_tasks.transport.keys import Keys, stream_name
from ditto_tasks.transport.line import Line, LineScript
from ditto_tasks.transport.payloads import PAYLOAD_HEADER
from ditto_tasks.transport.port import OutgoingCall
from ditto_tasks.transport.serializer import CONTENT_TYPE
from ditto_tasks.transport.task import DEADLINE_HEADER

__all__ = ["KEY_HEADER", "Admission", "CeleryPublisher", "Publisher", "StreamPublisher", "queue_full"]

_HIDDEN = "(...)"  # shown for arguments in events and logs: content does not belong there
KEY_HEADER = "ditto_key"  # of a message sent Celery's way: the concurrency key
Admit = Callable[[Sequence[tuple[str, OutgoingCall]]], None]
_IN_ONE_GO = 500  # messages in one pipeline
_ANY_ID = "00000000-0000-0000-0000-000000000000"  # an id that no call has
_AFTER_INPUT = b'],{},{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]'  # in a body


# KEYS: for each call the key of its idempotency key or its stream. ARGV: group, how many may wait in a queue
# or 0, how long idempotency keys are remembered; then for each call queue, stream, idempotency key or "",
# fields as JSON lists. Sends all or, when a queue has no room, none. Returns a queue without room and how
# many wait there, or for each call the execution id under which it is known.
_SUBMIT = """
local function waiting(queue)
  local count = 0
  for _, priority in ipairs({'high', 'normal', 'low'}) do
    local stream = queue .. ':' .. priority
    count = count + (redis.call('HGET', ARGV[1] .. ':parked', stream) or 0)
    if redis.call('EXISTS', stream) == 1 then
      local groups = redis.call('XINFO', 'GROUPS', stream)
      local pending = groups[1] and redis.call('XPENDING', stream, ARGV[1])[1] or 0
      count = count + redis.call('XLEN', stream) - pending
    end
  end
  return count
end
local known, wanted = {}, {}
for index = 1, #KEYS do
  local base = 4 + (index - 1) * 4
  local earlier = ARGV[base + 2] ~= '' and redis.call('GET', KEYS[index])
  known[index] = earlier or ''
  if not earlier then wanted[ARGV[base]] = (wanted[ARGV[base]] or 0) + 1 end
end
if ARGV[2] ~= '0' then
  for queue, count in pairs(wanted) do
    local now = waiting(queue)
    if now + count > tonumber(ARGV[2]) then return {queue, now} end
  end
end
for index = 1, #KEYS do
  local base = 4 + (index - 1) * 4
  if known[index] == '' then
    local fields = cjson.decode(ARGV[base + 3])
    if ARGV[base + 2] ~= '' then redis.call('SET', KEYS[index], fields[2], 'EX', ARGV[3]) end
    redis.call('XADD', ARGV[base + 1], '*', unpack(fields))
    known[index] = fields[2]
  end
end
return {known}
"""


@dataclass(frozen=True, slots=True)
class Admission:
    """What is asked of a call before it is sent.

    Attributes:
        max_pending: calls that may wait in one queue; None: no bound.
        remembered: seconds that idempotency keys are remembered.
    """

    max_pending: int | None
    remembered: int


class Publisher(Protocol):
    """Puts calls into their queues."""

    def publish(self, calls: Sequence[tuple[str, OutgoingCall]], reply_to: str) -> list[str]:
        """Send each call to its queue; returns the ids under which they are known.

        Raises:
            QueueFull: one of the queues has no room; none is sent then.
            Exception: what the client library raises.
        """
        ...

    def close(self) -> None:
        """Let go of connections that are its own."""
        ...


class CeleryPublisher:
    """Sends calls through the app, with whatever broker it has."""

    def __init__(
        self, app: Celery, keys: IdempotencyKeys, admit: Admit, priorities: Mapping[str, int]
    ) -> None:
        self._app = app
        self._idempotency = keys
        self._admit = admit
        self._priorities = priorities

    def publish(self, calls: Sequence[tuple[str, OutgoingCall]], reply_to: str) -> list[str]:
        self._admit([pair for pair in calls if not self._idempotency.knows(pair[1])])  # or a key is used up
        claims = [self._idempotency.claim(call) for _, call in calls]
        fresh = [pair for pair, (_, is_fresh) in zip(calls, claims, strict=True) if is_fresh]
        self._send(fresh, reply_to)
        for _, call in fresh:
            self._idempotency.confirm(call)
        return [id for id, _ in claims]

    def _send(self, calls: Sequence[tuple[str, OutgoingCall]], reply_to: str) -> None:
        with self._app.producer_pool.acquire(block=True, timeout=SOCKET_TIMEOUT) as producer:
            send = partial(
                self._app.send_task, producer=producer, reply_to=reply_to, argsrepr=_HIDDEN, kwargsrepr="{}"
            )
            for queue, call in calls:
                headers = _headers(call)
                if call.concurrency_key is not None:
                    headers[KEY_HEADER] = call.concurrency_key
                send(
                    call.node,
                    args=(call.input,),
                    task_id=call.execution_id,
                    queue=queue,
                    headers=headers,
                    priority=self._priorities[call.priority],
                    retry=False,  # redis-py replaces idle connections that were closed; more takes too long
                )

    def close(self) -> None:
        """Do nothing: the connections are the app's."""


class StreamPublisher:
    """Writes calls into the streams of `StreamTransport`, in one round trip however many they are."""

    def __init__(
        self, app: Celery, client: RedisClient, keys: Keys, admission: Admission, celery: CeleryPublisher
    ) -> None:
        self._app = app
        self._client = client
        self._keys = keys
        self._admission = admission
        self._celery = celery
        self._origin = anon_nodename()
        self._sends_sent_events = bool(app.conf.task_send_sent_event)
        self._kept: dict[tuple[str, str, str], list[bytes]] = {}
        self._line = Line(client)
        self._submit = LineScript(self._line, client, _SUBMIT)

    def publish(self, calls: Sequence[tuple[str, OutgoingCall]], reply_to: str) -> list[str]:
        if self._somebody_listens():
            return self._celery.publish(calls, reply_to)
        if self._admission.max_pending or any(call.idempotency_key is not None for _, call in calls):
            return self._publish_admitted(calls, reply_to)
        parent = _task_at_hand()
        commands = [
            ("XADD", stream_name(queue, call.priority), "*", *self._fields(queue, call, reply_to, parent))
            for queue, call in calls
        ]
        for start in range(0, len(commands), _IN_ONE_GO):
            self._write(commands[start : start + _IN_ONE_GO])
        return [call.execution_id for _, call in calls]

    def _write(self, commands: Sequence[Sequence[Any]]) -> None:
        for answer in self._line.execute_all(commands):
            if isinstance(answer, Exception):
                raise answer

    def _publish_admitted(self, calls: Sequence[tuple[str, OutgoingCall]], reply_to: str) -> list[str]:
        keys, arguments = [], [self.group, self._admission.max_pending or 0, self._admission.remembered]
        parent = _task_at_hand()
        for queue, call in calls:
            stream = stream_name(queue, call.priority)
            has_key = call.idempotency_key is not None
            keys.append(self._keys.idempotency(call.node, call.idempotency_key or "") if has_key else stream)
            fields = self._fields(queue, call, reply_to, parent)
            texts = [part.decode() if isinstance(part, bytes) else part for part in fields]
            arguments += [queue, stream, "key" if has_key else "", encode_json(texts)]
        answer = self._submit(keys=keys, args=arguments)
        if len(answer) == 2:
            raise queue_full(answer[0].decode(), answer[1], self._admission.max_pending or 0)
        return [id.decode() for id in answer[0]]

    @property
    def group(self) -> str:
        """The consumer group that reads the streams."""
        return self._keys.prefix

    def close(self) -> None:
        self._line.close()
        self._client.close()

    def _somebody_listens(self) -> bool:
        return bool(before_task_publish.receivers or after_task_publish.receivers or self._sends_sent_events)

    def _fields(self, queue: str, call: OutgoingCall, reply_to: str, parent: Any) -> list[Any]:
        """Build the message of Celery's task protocol, version 2, as names and values of a stream entry."""
        rest = self._rest(queue, call, reply_to, parent)
        fields = ["i", call.execution_id, "m", rest, "b", b"[[" + encode_json(call.input) + _AFTER_INPUT]
        return fields if call.concurrency_key is None else [*fields, "k", call.concurrency_key]

    def _rest(self, queue: str, call: OutgoingCall, reply_to: str, parent: Any) -> bytes:
        """Build all of the message but the body.

        Of two calls of a node it differs in the execution id alone, unless they say more: it is kept.
        """
        if parent or call.expires_at is not None or call.is_kept_apart:
            return encode_json(self._parts(queue, call, reply_to, parent))
        between_ids = self._kept.get((queue, call.node, reply_to))
        if between_ids is None:
            unnamed = call._replace(execution_id=_ANY_ID)
            between_ids = encode_json(self._parts(queue, unnamed, reply_to, None)).split(_ANY_ID.encode())
            self._kept[queue, call.node, reply_to] = between_ids
        return call.execution_id.encode().join(between_ids)

    def _parts(self, queue: str, call: OutgoingCall, reply_to: str, parent: Any) -> dict[str, Any]:
        headers = {
            "lang": "py",
            "task": call.node,
            "id": call.execution_id,
            "root_id": (parent.request.root_id if parent else None) or call.execution_id,
            "parent_id": parent.request.id if parent else None,
            "group": None,
            "retries": 0,
            "eta": None,
            "expires": None,
            "timelimit": [None, None],
            "argsrepr": _HIDDEN,
            "kwargsrepr": "{}",
            "origin": self._origin,
            "ignore_result": False,
            **_headers(call),
        }
        return {
            "content-type": CONTENT_TYPE,
            "content-encoding": "utf-8",
            "headers": headers,
            "properties": {
                "correlation_id": call.execution_id,
                "reply_to": reply_to,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": queue},
                "priority": 0,
                "body_encoding": None,
                "delivery_tag": "",
            },
        }


def _task_at_hand() -> Any:
    """Return the Celery task that a worker runs in this thread; None outside one.

    Celery looks for it by way of errors that it catches: a tenth of what sending takes. It is asked where any
    thread of this process runs a task; and always if Celery was told to keep its stacks another way.
    """
    stacks = getattr(_task_stack, "_local", None)
    return None if stacks is not None and not stacks.__storage__ else get_current_worker_task()


def _headers(call: OutgoingCall) -> dict[str, Any]:
    """Give the headers of ours that a message of the call has."""
    deadline = {} if call.expires_at is None else {DEADLINE_HEADER: call.expires_at}
    return deadline | {PAYLOAD_HEADER: True} if call.is_kept_apart else deadline


def queue_full(queue: str, waiting: int, limit: int) -> QueueFull:
    """Make the error that says that a queue has no room."""
    return QueueFull(
        f"{waiting} calls wait in {queue}, which takes {limit}: try again later, or start more workers"
    )
