"""The pages of a run: sent to whichever workers are free, or done here where nobody is."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from ditto_tasks.contracts.errors import DittoError, InvocationTimeout
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.contracts.reindex import ReindexFailure, ReindexPageOutput
from ditto_tasks.contracts.retrieval import RetrievalCall
from ditto_tasks.invocation import Invocation
from ditto_tasks.local import WorkerInfo
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.runs import Runs
from providers.indexes.walk import Step
from providers.retrieval.generations import OpenGeneration
from providers.retrieval.records import RecordTarget

__all__ = ["Pages", "SentPage", "wait_for_turn"]

PAGE_NODE = "REINDEX.PAGE"
POLL = 0.5  # seconds between two looks whether the run is still wanted
PATIENCE = 5.0  # seconds after which a page that nobody has begun is done here
LOOK = 2.0  # seconds for which the number of slots is trusted
_LEFT = "its run does it itself"


@runtime_checkable
class Queue(Protocol):
    """A runtime that queues calls, for the part of it that is bound to the run's own call."""

    def submit(self, node: str, input: Any, *, idempotency_key: str | None = None) -> Invocation: ...

    def workers(self) -> list[WorkerInfo]: ...


@dataclass(frozen=True, slots=True)
class SentPage:
    """A page that is being done, or was.

    Attributes:
        sent: what goes on elsewhere, or what was done here.
    """

    step: Step
    sent: Invocation | ReindexPageOutput

    @property
    def is_done(self) -> bool:
        """Whether waiting for it takes no time."""
        return not isinstance(self.sent, Invocation) or self.sent.future.done()


class Pages:
    """Has the pages of a run's steps done.

    Args:
        name: of the target.
        generation: that which they bring up.
        most: pages at once over all workers, with that which the run does; None: as many as there are slots.
        on_wait: called now and then while a page is waited for; may raise, to end the wait.
        before_page: called before a page is done here; may wait, and raise.
    """

    def __init__(
        self,
        name: str,
        target: RecordTarget,
        generation: OpenGeneration,
        call: RetrievalCall,
        *,
        most: int | None,
        on_wait: Callable[[], None],
        before_page: Callable[[], None],
    ) -> None:
        self._name = name
        self._target = target
        self._generation = generation.number
        self._is_parallel = generation.embedding.is_parallel
        self._call = call
        self._most = most
        self._on_wait = on_wait
        self._before_page = before_page
        self._queue = call.runtime if isinstance(call.runtime, Queue) else None
        self._slots = 0
        self._looked_at = float("-inf")

    @property
    def width(self) -> int:
        """How many pages may be under way elsewhere: two a slot that is free for them, at least 2."""
        return max(2, 2 * self._free_slots())

    def send(self, step: Step, key: Callable[[Step], str]) -> SentPage:
        """Have a page done.

        Args:
            key: gives the same for the same page: it is done once, also when it is sent by a run that was
                killed, and by the one that took it up.
        """
        if not step.ids:
            return SentPage(step, ReindexPageOutput())
        if self._queue is None or not self._free_slots():
            return self.do_here(step)
        input = {"target": self._name, "ids": list(step.ids), "generation": self._generation}
        try:
            sent = self._queue.submit(PAGE_NODE, input, idempotency_key=key(step))
        except DittoError:  # the queue is full or away
            self._call.check()
            return self.do_here(step)
        return SentPage(replace(step, seen=None), sent)  # by the time that it might be needed it is old

    def do_here(self, step: Step) -> SentPage:
        """Do a page in this process, now.

        Raises:
            NodeError: of the store, the embedding or the index.
        """
        done = self._here(step) if step.ids else ReindexPageOutput()
        return SentPage(replace(step, seen=None), done)

    def receive(self, page: SentPage) -> ReindexPageOutput:
        """Wait until a page is done; one that nobody begins, or that failed elsewhere, is done here.

        Raises:
            NodeError: what doing it here raises.
        """
        if not isinstance(page.sent, Invocation):
            return page.sent
        result = self._result(page.sent)
        if result is not None and result.status == "success":
            return ReindexPageOutput.from_wire(result.output)
        if result is not None and result.error is not None and result.error.code == "WORKER_LOST":
            return _lost(page.step.ids, result.error.message)
        return self._here(page.step)

    def _here(self, step: Step) -> ReindexPageOutput:
        self._before_page()
        return self._target.bring_up(step.ids, self._call, generation=self._generation, seen=step.seen)

    def _result(self, invocation: Invocation) -> NodeResult | None:
        """Wait for a result; None: nobody had begun it, and it was called back."""
        patient_until = time.monotonic() + PATIENCE
        try:
            while True:
                try:
                    return invocation.result(POLL)
                except InvocationTimeout as late:
                    self._on_wait()
                    if late.started is False and time.monotonic() > patient_until:
                        invocation.cancel(_LEFT)
                        return None
        finally:
            invocation.forget()

    def _free_slots(self) -> int:
        """Count the slots of live workers that serve pages, less the one that the run itself has.

        Where threads of one process embed no faster than one, those beside the run count for nothing. A limit
        over all workers counts the run, too.
        """
        if self._queue is not None and time.monotonic() - self._looked_at > LOOK:
            announced = [worker for worker in self._queue.workers() if _is_announced(worker)]
            here = sum(_slots(worker) for worker in announced if worker.is_local)
            taken = 1 if self._is_parallel else max(1, here)
            free = sum(map(_slots, announced)) - taken
            self._slots = max(0, free if self._most is None else min(free, self._most - 1))
            self._looked_at = time.monotonic()
        return self._slots


def wait_for_turn(runs: Runs, limit: Limit, call: RetrievalCall, on_wait: Callable[[], None]) -> None:
    """Wait until a page may begin within another call, as a call of its own would have to."""
    while wait := runs.may_begin(limit):
        call.cancel.wait(min(wait, POLL))
        on_wait()


def _is_announced(worker: WorkerInfo) -> bool:
    """Tell whether calls of REINDEX.PAGE reach a worker through the queue."""
    return PAGE_NODE in worker.nodes and worker.active is None


def _slots(worker: WorkerInfo) -> int:
    return worker.concurrency or 0


def _lost(ids: Sequence[str], reason: str) -> ReindexPageOutput:
    return ReindexPageOutput(failed=tuple(ReindexFailure(id=id, reason=reason) for id in ids))
