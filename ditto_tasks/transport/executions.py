"""The calls that run in this process, and the ear that hears when one of them is cancelled.

The truth is a tombstone in Redis; the channel only makes it quick. After a lost connection the tombstones of
all running calls are read again, so that no cancel is missed.
"""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from ditto_tasks.contracts.cancellation import Cancellation, CancelToken
from ditto_tasks.contracts.json_value import decode_json
from ditto_tasks.transport.connection import REDIS_ERRORS, RedisClient
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.process import own_pid

__all__ = ["Executions"]

logger = logging.getLogger(__name__)

_LISTEN_TIME = 1.0  # seconds a read of the channel lasts; so long may a stop take
_RECONNECT_PAUSE = 0.2  # seconds between attempts to reach the server
_REMEMBERED = 1000  # cancels; one may be heard between the fetch of its call and the start


class Executions:
    """Gives each running call its token, and sets it when the call is cancelled from anywhere.

    Args:
        connect: makes a client of this process's own, for the channel and the tombstones.
        keys: the key names.
    """

    def __init__(self, connect: Callable[[], RedisClient], keys: Keys) -> None:
        self._connect = connect
        self._keys = keys
        self._running: dict[str, Cancellation] = {}
        self._heard: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()
        self._here: set[str] = set()
        self._left = threading.Condition()
        self._listener_pid = 0

    def track(self, execution_id: str) -> "Tracked":
        """Give a call its token, within a `with` block around the run."""
        return Tracked(self, execution_id)

    def _start(self, execution_id: str) -> Cancellation:
        cancellation = Cancellation()
        with self._lock:
            self._running[execution_id] = cancellation
            reason = self._heard.pop(execution_id, None)
            if self._listener_pid != own_pid():
                self._listen_in_this_process()
        if reason is not None:
            cancellation.cancel(reason)
        return cancellation

    def _end(self, execution_id: str) -> None:
        with self._lock:
            self._running.pop(execution_id, None)

    def enter(self, execution_id: str) -> None:
        """Wait until no other delivery of the call is in this process; it is in until `leave`.

        A broker may deliver a call again while it runs, to the very process that runs it.
        """
        with self._left:
            self._left.wait_for(lambda: execution_id not in self._here)
            self._here.add(execution_id)

    def leave(self, execution_id: str) -> None:
        """Let another delivery of the call in: the result of this one is stored, or could not be."""
        with self._left:
            self._here.discard(execution_id)
            self._left.notify_all()

    def cancel(self, execution_id: str, reason: str) -> bool:
        """Set the token of a call if it runs here, or once it does; tell whether it does."""
        with self._lock:
            cancellation = self._running.get(execution_id)
            if cancellation is None:
                self._heard[execution_id] = reason
                if len(self._heard) > _REMEMBERED:
                    self._heard.popitem(last=False)
        if cancellation is None:
            return False
        cancellation.cancel(reason)
        return True

    def _listen_in_this_process(self) -> None:
        """Start the listener; once a process, since threads do not survive a fork."""
        self._listener_pid = own_pid()
        threading.Thread(target=self._listen, name="ditto-cancels", daemon=True).start()

    def _listen(self) -> None:
        client = self._connect()
        pause = threading.Event()
        while True:
            try:
                self._follow(client)
            except REDIS_ERRORS as error:
                logger.warning("cancels are not heard (%s); connecting again", type(error).__name__)
            except Exception:
                logger.exception("cancels are not heard; connecting again")
            pause.wait(_RECONNECT_PAUSE)

    def _follow(self, client: RedisClient) -> None:
        with client.pubsub(ignore_subscribe_messages=True) as channel:
            channel.subscribe(self._keys.cancel_channel)
            self._read_tombstones(client)
            while True:
                message = channel.get_message(timeout=_LISTEN_TIME)
                if message is not None:
                    self._hear(message["data"])

    def _hear(self, told: bytes) -> None:
        try:
            execution_id, reason = decode_json(told)
            self.cancel(str(execution_id), str(reason))
        except (ValueError, TypeError):
            logger.warning("something that is no cancel was told on the channel of cancels")

    def _read_tombstones(self, client: RedisClient) -> None:
        with self._lock:
            running = list(self._running)
        if not running:
            return
        pipeline = client.pipeline(transaction=False)
        for execution_id in running:
            pipeline.hget(self._keys.call(execution_id), "cancelled")
        for execution_id, reason in zip(running, pipeline.execute(), strict=True):
            if reason is not None:
                self.cancel(execution_id, reason.decode())


class Tracked:
    """The block in which a call runs."""

    def __init__(self, executions: Executions, execution_id: str) -> None:
        self._executions = executions
        self._execution_id = execution_id

    def __enter__(self) -> CancelToken:
        return self._executions._start(self._execution_id)

    def __exit__(self, *raised: object) -> None:
        self._executions._end(self._execution_id)
