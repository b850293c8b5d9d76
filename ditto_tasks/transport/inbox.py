"""The inbox: one connection and one thread through which a process receives all results it waits for.

Workers push each result into the list of the process that asked; the thread takes them out and completes the
futures. When the connection was lost, what arrived meanwhile is read from the result backend itself.
"""

import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from ditto_tasks.contracts.errors import RuntimeClosed
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.transport.connection import REDIS_ERRORS, RedisClient
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.line import Line
from ditto_tasks.transport.payloads import Payloads
from ditto_tasks.transport.results import read_result

__all__ = ["BLOCK_TIME", "Inbox"]

logger = logging.getLogger(__name__)

BLOCK_TIME = 5  # seconds a blocking read lasts
_BATCH = 100  # results taken out at once
_MANY = 32  # results waited for; from there on they are gathered
_GATHER = 0.001  # seconds between two reads then: workers have more use for the time than one read a result
_NOTHING = b"-"  # pushed to wake the thread
_RECONNECT_PAUSE = 0.2  # seconds between attempts to reach the server

ResultFuture = Future[NodeResult]


class Inbox:
    """Completes futures with results as they arrive.

    Args:
        commands: a client for commands that do not block; stays the caller's to close.
        reader: a client for blocking reads, its socket timeout over `BLOCK_TIME`; closed with the inbox.
        keys: the key names.
        payloads: where outputs lie that are too large for a result.
    """

    def __init__(self, commands: RedisClient, reader: RedisClient, keys: Keys, payloads: Payloads) -> None:
        self._payloads = payloads
        self._commands = commands
        self._reader = reader
        self._line = Line(reader, sends_again=False)  # what was taken out is not there a second time
        self._keys = keys
        self._futures: dict[str, list[ResultFuture]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._wanted = threading.Event()
        self._is_resting = False
        self._thread: threading.Thread | None = None
        self.key = keys.inbox(uuid.uuid4().hex)

    def expect(self, execution_id: str) -> ResultFuture:
        """Return a future for one result; expect before sending, or the result may pass unseen."""
        future: ResultFuture = Future()
        with self._lock:
            if self._closing.is_set():
                raise RuntimeClosed("the runtime is closed: it waits for no more results")
            self._futures.setdefault(execution_id, []).append(future)
            if self._thread is None:
                self._thread = threading.Thread(target=self._read, name="ditto-inbox", daemon=True)
                self._thread.start()
            if self._is_resting:
                self._wanted.set()
        return future

    def forget(self, execution_id: str, future: ResultFuture) -> None:
        """Wait no longer for this future."""
        with self._lock:
            waiting = self._futures.get(execution_id, [])
            if future in waiting:
                waiting.remove(future)
            if not waiting:
                self._futures.pop(execution_id, None)

    def deliver(self, stored: bytes) -> None:
        """Complete the futures that wait for this stored result."""
        execution_id, result = read_result(stored, self._payloads)
        with self._lock:
            waiting = self._futures.pop(execution_id, [])
        for future in waiting:
            _complete(future, lambda future: future.set_result(result))

    def close(self) -> None:
        """Fail the futures that still wait and end the thread; within `BLOCK_TIME` without a server."""
        with self._lock:
            self._closing.set()
            waiting = [future for futures in self._futures.values() for future in futures]
            self._futures.clear()
        for future in waiting:
            _complete(future, lambda future: future.set_exception(RuntimeClosed("the runtime was closed")))
        self._wanted.set()
        if self._thread is not None:
            self._wake()
            self._thread.join(BLOCK_TIME + 1)
        self._line.close()
        self._reader.close()

    def _wake(self) -> None:
        try:
            self._commands.pipeline().rpush(self.key, _NOTHING).expire(self.key, BLOCK_TIME).execute()
        except REDIS_ERRORS:
            logger.debug("no server to wake the inbox through: its read ends by itself")

    def _read(self) -> None:
        while not self._closing.is_set():
            if len(self._futures) > _MANY:
                self._closing.wait(_GATHER)
            try:
                popped = self._line.execute("BLMPOP", BLOCK_TIME, 1, self.key, "LEFT", "COUNT", _BATCH)
            except REDIS_ERRORS as error:
                self._recover(error)
                continue
            if popped is None:
                self._rest()
            for stored in popped[1] if popped else ():
                if stored != _NOTHING:
                    self._deliver_safely(stored)

    def _rest(self) -> None:
        """Leave the server alone while nothing is waited for."""
        with self._lock:
            if self._futures or self._closing.is_set():
                return
            self._wanted.clear()
            self._is_resting = True
        self._wanted.wait()
        self._is_resting = False

    def _recover(self, error: Exception) -> None:
        """Wait for the server, then look for results that were pushed while nobody read."""
        while not self._closing.wait(_RECONNECT_PAUSE):
            try:
                with self._lock:
                    expected = list(self._futures)
                results = self._commands.mget([self._keys.result(id) for id in expected]) if expected else []
            except REDIS_ERRORS:
                continue
            logger.info("reading results again after %s", type(error).__name__)
            for stored in results:
                if stored is not None:
                    self._deliver_safely(stored)
            return

    def _deliver_safely(self, stored: bytes) -> None:
        try:
            self.deliver(stored)
        except Exception:
            logger.exception("a stored result cannot be read")


def _complete(future: ResultFuture, complete: Callable[[ResultFuture], None]) -> None:
    try:
        complete(future)
    except InvalidStateError:
        logger.debug("a result came for a future that its owner had cancelled")
