"""One run of REINDEX.RUN: takes the target's lease, walks it, keeps its place, and reports."""

import hashlib
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.errors import DeadlineExceeded, InvocationCancelled, NodeError
from ditto_tasks.contracts.json_value import canonical_json
from ditto_tasks.contracts.reindex import Mode, ReindexRunInput
from ditto_tasks.contracts.retrieval import RetrievalCall
from ditto_tasks.transport.runs import RunLost, Runs, Wanted
from providers.indexes.walk import Step, Walk
from providers.retrieval.records import RecordTarget
from workers.checkpoint import Checkpoint, Checkpoints, State
from workers.pages import Pages, SentPage

__all__ = ["Run", "is_overrun"]

SAVED = 0.5  # seconds between two checkpoints while pages are in flight: the broker remembers those
SIGN = 5.0  # seconds between two signs of life while a page is waited for
MAY_FAIL = 20  # records, however few there are


class Run:
    """Brings one target up.

    Args:
        page_size: records in a page.
        max_failed_share: of the records that may fail; see `is_overrun`.
    """

    def __init__(
        self,
        request: ReindexRunInput,
        target: RecordTarget,
        runs: Runs,
        call: RetrievalCall,
        *,
        page_size: int,
        max_failed_share: float,
    ) -> None:
        self._name = request.target
        self._mode = request.mode
        self._target = target
        self._runs = runs
        self._call = call
        self._page_size = page_size
        self._max_failed_share = max_failed_share
        self._checkpoints = Checkpoints(target.store, request.target)
        self._pages = Pages(request.target, target, call, self._live)
        self._checkpoint: Checkpoint
        self._token = 0
        self._signed_at = 0.0
        self._saved_at = 0.0

    def run(self) -> dict[str, Any]:
        """Return the report; or that a run which goes on already covers this call.

        Raises:
            NodeError: REINDEX_TOO_MANY_FAILURES; REINDEX_SUPERSEDED when this process was silent for so long
                that another took the run over; of the store, the embedding or the index.
            InvocationCancelled, DeadlineExceeded: the checkpoint is kept.
        """
        last = self._checkpoints.read(self._call)
        above = last.token if last else 0
        token = self._runs.take(self._name, self._call.execution_id, self._mode, above=above)
        if token is None:
            return {"covered": True}
        self._token = token
        try:
            self._checkpoint = self._begun(self._checkpoints.read(self._call))
            self._passes()
        except RunLost:
            raise NodeError("REINDEX_SUPERSEDED", "another call has taken this run over") from None
        except BaseException as error:
            self._interrupted(error)
            raise
        return self._checkpoint.report().to_wire()

    def _begun(self, last: Checkpoint | None) -> Checkpoint:
        """Take the last run up where it was interrupted, or begin one."""
        mine: dict[str, Any] = {"execution": self._call.execution_id, "token": self._token}
        if last is not None and self._is_same_index(last):
            if last.state == "finished" and last.execution == self._call.execution_id:
                return last.with_fields(**mine)  # only its answer was not told
            if last.is_open and last.mode in (self._mode, "full"):
                resumed = last.with_fields(**mine, state="running")
                return resumed.at(self._walk(last.mode).resume(last.place))
        now = time.time()
        begun = Checkpoint(
            run=str(uuid.uuid4()),
            target=self._name,
            mode=self._mode,
            index=self._target.index_identity,
            started_at=now,
            updated_at=now,
            **mine,
        )
        self._checkpoints.write(begun, self._call)  # before the walk, which is to pass this record over
        followed = last.followed if last is not None and self._is_same_index(last) else None
        return begun.at(self._walk(self._mode).begin(followed))

    def _is_same_index(self, last: Checkpoint) -> bool:
        """Tell whether the index is the one that the last run brought up; one made anew there is empty."""
        is_named = last.index == self._target.index_identity
        return is_named and (not last.embedded or self._target.index.count(self._call) > 0)

    def _walk(self, mode: Mode) -> Walk:
        return self._target.walk(
            mode, page_size=self._page_size, skipped=self._checkpoints.id, call=self._call
        )

    def _passes(self) -> None:
        """Walk the target until no other run of it is wanted."""
        while True:
            if self._checkpoint.state != "finished":
                self._pass()
                self._save("finished")
            wanted = self._runs.settle(self._name, self._token)
            if not wanted.count:
                return
            self._again(wanted)

    def _again(self, wanted: Wanted) -> None:
        done = self._checkpoint
        place = self._walk(wanted.mode).begin(done.followed)
        self._checkpoint = done.at(place).with_fields(
            state="running", mode=wanted.mode, passes=done.passes + 1, answered=done.answered + wanted.count
        )

    def _pass(self) -> None:
        self._save("running")
        in_flight: deque[SentPage] = deque()
        for step in self._walk(self._checkpoint.mode).steps(self._checkpoint.place):
            in_flight.append(self._sent(step, in_flight))
            while in_flight and (in_flight[0].is_done or len(in_flight) > self._pages.width):
                self._receive(in_flight.popleft())
        while in_flight:
            self._receive(in_flight.popleft())

    def _sent(self, step: Step, in_flight: deque[SentPage]) -> SentPage:
        """Have a page done: elsewhere, or here while all others are at work; one at a time, so that one at
        most is done again when this process dies before those ahead of it are done."""
        if len(in_flight) < self._pages.width or any(page.was_done_here for page in in_flight):
            return self._pages.send(step, self._key(step))
        return self._pages.do_here(step)

    def _key(self, step: Step) -> str:
        """Name a page: what it looks at, and where; the same only for a run that was killed there."""
        page = canonical_json([asdict(step.place), step.ids])
        digest = hashlib.sha256(page.encode()).hexdigest()
        return f"{self._checkpoint.run}:{self._checkpoint.passes}:{digest}"

    def _receive(self, page: SentPage) -> None:
        done = self._pages.receive(page)
        self._checkpoint = self._checkpoint.after(page.step, done)
        if is_overrun(self._checkpoint, self._max_failed_share):
            raise NodeError(
                "REINDEX_TOO_MANY_FAILURES",
                f"{self._checkpoint.failed_count} of {self._checkpoint.scanned} records could not be "
                f"embedded, the first because: {self._checkpoint.failed[0].reason}",
            )
        is_only_here = page.was_done_here and page.step.anew  # neither broker nor index know that it was done
        if is_only_here or time.monotonic() - self._saved_at > SAVED:
            self._save("running")

    def _save(self, state: State) -> None:
        """Keep the place, if the run is still ours."""
        self._runs.renew(self._name, self._call.execution_id, self._token)
        self._signed_at = time.monotonic()
        self._checkpoint = self._checkpoint.with_fields(state=state, updated_at=time.time())
        self._checkpoints.write(self._checkpoint, self._call)
        self._runs.publish(self._name, self._checkpoint.to_json())
        self._saved_at = time.monotonic()

    def _live(self) -> None:
        """Go on waiting for a page, if the run is still wanted and still ours."""
        self._call.check()
        if time.monotonic() - self._signed_at > SIGN:
            self._runs.renew(self._name, self._call.execution_id, self._token)
            self._signed_at = time.monotonic()

    def _interrupted(self, error: BaseException) -> None:
        """Keep the place and give the lease back, as far as that can be done now."""
        with suppress(Exception):  # the error that interrupted the run is the one to tell
            if hasattr(self, "_checkpoint"):
                stopped = self._checkpoint.with_fields(state=_state_after(error), updated_at=time.time())
                self._checkpoints.write(stopped, NO_CALL)
                self._runs.publish(self._name, stopped.to_json())
        with suppress(Exception):
            self._runs.release(self._name, self._token)


def is_overrun(checkpoint: Checkpoint, share: float) -> bool:
    """Tell whether more records failed than may: a share of those looked at, and 20 in any case."""
    return checkpoint.failed_count > max(MAY_FAIL, share * checkpoint.scanned)


def _state_after(error: BaseException) -> State:
    if isinstance(error, InvocationCancelled | DeadlineExceeded):
        return "cancelled"
    return "failed" if getattr(error, "code", "") == "REINDEX_TOO_MANY_FAILURES" else "stopped"
