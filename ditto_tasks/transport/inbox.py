"""The inbox: one connection through which a process receives all results it waits for.

Workers push each result into the list of the process that asked. The thread that waits for one takes it out
itself, unless another one is reading already; a thread of our own reads for those who do not wait in `wait`.
When the connection was lost, what arrived meanwhile is read from the result backend itself.
"""

import logging
import threading
import time
import uuid
from contextlib import suppress

from ditto_tasks.contracts.errors import RuntimeClosed
from ditto_tasks.transport.connection import REDIS_ERRORS, SOCKET_TIMEOUT, RedisClient
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.line import BlockingRead
from ditto_tasks.transport.payloads import Payloads
from ditto_tasks.transport.pending import Pending
from ditto_tasks.transport.results import read_result

__all__ = ["BLOCK_TIME", "Inbox"]

logger = logging.getLogger(__name__)

BLOCK_TIME = 5  # seconds a blocking read lasts
_BATCH = 100  # results taken out at once
_MANY = 32  # results waited for; from there on they are gathered
_GATHER = 0.001  # seconds between two reads then: workers have more use for the time than one read a result
_UNTENDED = 0.05  # seconds that results may lie in the list before the thread reads them
_RECONNECT_PAUSE = 0.2  # seconds between attempts to reach the server


class Inbox:
    """Ends what is pending with results as they arrive.

    Args:
        commands: a client for commands that do not block; stays the caller's to close.
        reader: a client for blocking reads; closed with the inbox.
        keys: the key names.
        payloads: where outputs lie that are too large for a result.
    """

    def __init__(self, commands: RedisClient, reader: RedisClient, keys: Keys, payloads: Payloads) -> None:
        self.key = keys.inbox(uuid.uuid4().hex)
        self._payloads = payloads
        self._commands = commands
        self._reader = reader
        self._keys = keys
        self._expected: dict[str, tuple[Pending, ...]] = {}
        self._on_end = self._wake_reader  # one for all that is pending
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._reads = threading.Lock()  # held by the one thread that reads
        self._reading_thread = 0
        self._has_lost_some = False  # taken out of the list and not delivered: the backend has them
        self._wanted = threading.Event()  # tells the thread that somebody counts on it
        self._is_resting = False
        self._thread: threading.Thread | None = None
        command = ("BLMPOP", BLOCK_TIME, 1, self.key, "LEFT", "COUNT", _BATCH)
        self._taking = BlockingRead(reader, command, BLOCK_TIME + SOCKET_TIMEOUT)

    def expect(self, execution_id: str) -> Pending:
        """Await one result; expect before sending, or the result may pass unseen.

        It comes some 50 ms late unless somebody waits in `wait` or has asked for it with `listen`.
        """
        pending = Pending(self._on_end)
        with self._lock:
            if self._closing.is_set():
                raise RuntimeClosed("the runtime is closed: it waits for no more results")
            self._expected[execution_id] = (*self._expected.get(execution_id, ()), pending)
            if self._thread is None:
                self._thread = threading.Thread(target=self._tend, name="ditto-inbox", daemon=True)
                self._thread.start()
            if self._is_resting:
                self._wanted.set()
        return pending

    def wait(self, pending: Pending, seconds: float) -> None:
        """Wait for a result in the thread that wants it, and read meanwhile, for others as well.

        Returns when it is there or the time is up, and also when somebody else reads already, or the server
        is away: then it is to be waited for itself.
        """
        ends = time.monotonic() + seconds
        if pending.done() or self._has_lost_some or not self._reads.acquire(blocking=False):
            return
        try:
            self._reading_thread = threading.get_ident()
            while not (pending.done() or self._closing.is_set()) and (left := ends - time.monotonic()) > 0:
                self._read(left)
        except REDIS_ERRORS as error:
            logger.info("results cannot be read (%s): the thread of the inbox goes on", type(error).__name__)
        finally:
            self._leave()

    def listen(self) -> None:
        """Have results read from now on though nobody waits in `wait`, as long as any are expected."""
        self._wanted.set()

    def forget(self, execution_id: str, pending: Pending) -> None:
        """Wait no longer for this result."""
        with self._lock:
            waiting = tuple(one for one in self._expected.pop(execution_id, ()) if one is not pending)
            if waiting:
                self._expected[execution_id] = waiting

    def deliver(self, stored: bytes) -> None:
        """Give this stored result to those who wait for it."""
        execution_id, result = read_result(stored, self._payloads)
        with self._lock:
            waiting = self._expected.pop(execution_id, ())
        for pending in waiting:
            pending.end(result)

    def close(self) -> None:
        """Fail what is still pending, and end the thread."""
        with self._lock:
            self._closing.set()
            waiting = [pending for expected in self._expected.values() for pending in expected]
            self._expected.clear()
        for pending in waiting:
            pending.end(RuntimeClosed("the runtime was closed"))
        self._reader.close()
        self._wanted.set()
        self._taking.wake()
        if self._reading_thread == threading.get_ident():
            return  # called by what the reader has called: it closes what it reads from when it leaves
        if self._thread is not None:
            self._thread.join(BLOCK_TIME)
        with self._reads:  # whoever read has found its result there
            self._taking.close()

    def _read(self, seconds: float) -> None:
        """Wait for results, and deliver what comes; by the one thread that holds `_reads`."""
        try:
            answer = self._taking.answer(seconds)
            for stored in answer[1] if answer else ():
                self._deliver_safely(stored)
        except BaseException:
            self._has_lost_some = True
            raise

    def _leave(self) -> None:
        """Let others read; those who wait for their results themselves count on the thread from now on."""
        self._reading_thread = 0
        if self._closing.is_set():
            self._taking.close()
        self._reads.release()
        if self._expected or self._has_lost_some:
            self._wanted.set()

    def _wake_reader(self) -> None:
        """End the wait of whoever reads for a result that came otherwise: its call was cancelled, say."""
        if self._reading_thread not in (0, threading.get_ident()):
            self._taking.wake()

    def _tend(self) -> None:
        """Read what nobody waits for in `wait`, until the inbox is closed."""
        busy_at = time.monotonic()
        while not self._closing.is_set():
            is_wanted = self._wanted.wait(_UNTENDED)
            self._wanted.clear()
            if self._expected or is_wanted:
                busy_at = time.monotonic()
            elif time.monotonic() - busy_at > BLOCK_TIME:
                self._rest()
            if self._expected and self._reads.acquire(blocking=False):
                try:
                    self._read_for_all()
                finally:
                    self._leave()

    def _read_for_all(self) -> None:
        self._reading_thread = threading.get_ident()
        while self._expected and not self._closing.is_set():
            if self._has_lost_some:
                self._recover()
            elif len(self._expected) > _MANY:
                self._closing.wait(_GATHER)
            with suppress(*REDIS_ERRORS):  # then some are lost
                self._read(BLOCK_TIME)

    def _rest(self) -> None:
        """Look after nothing while nothing is waited for."""
        with self._lock:
            if self._expected or self._closing.is_set():
                return
            self._is_resting = True
        self._wanted.wait()
        self._is_resting = False

    def _recover(self) -> None:
        """Wait for the server, then look for results that were taken out and never arrived."""
        while not self._closing.wait(_RECONNECT_PAUSE):
            try:
                with self._lock:
                    expected = list(self._expected)
                results = self._commands.mget([self._keys.result(id) for id in expected]) if expected else []
            except REDIS_ERRORS:
                continue
            logger.info("reading results again")
            self._has_lost_some = False
            for stored in results:
                if stored is not None:
                    self._deliver_safely(stored)
            return

    def _deliver_safely(self, stored: bytes) -> None:
        try:
            self.deliver(stored)
        except Exception:
            logger.exception("a stored result cannot be read")
