"""One run of a target: takes its lease, walks it, keeps the place, switches generations, and reports."""

import hashlib
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.errors import DeadlineExceeded, InvocationCancelled, NodeError
from ditto_tasks.contracts.json_value import canonical_json
from ditto_tasks.contracts.reindex import Mode
from ditto_tasks.contracts.retrieval import RetrievalCall
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.runs import RunLost, Runs, Wanted
from providers.indexes.generations import SEEN, SOON
from providers.indexes.walk import Place, Step, Walk
from providers.retrieval.generations import OpenGeneration
from providers.retrieval.records import RecordTarget
from workers.checkpoint import Checkpoint, Checkpoints, State
from workers.generations import GenerationSwitch
from workers.pages import Pages, SentPage, wait_for_turn

__all__ = ["Run", "is_overrun"]

logger = logging.getLogger(__name__)

SAVED = 0.5  # seconds between two checkpoints while pages are in flight: the broker remembers those
SIGN = 5.0  # seconds between two signs of life while a page is waited for
AHEAD = 4  # times the pages under way: so many may be done behind one that takes long
MAY_FAIL = 20  # records, however few there are


class Run:
    """Brings one target up.

    Args:
        name: of the target.
        page_size: records in a page.
        max_failed_share: of the records that may fail; see `is_overrun`.
        keep: seconds for which a generation that is not searched any more can be gone back to.
        limit: of the calls of REINDEX over all workers, of which the run itself is one.
    """

    def __init__(
        self,
        name: str,
        target: RecordTarget,
        runs: Runs,
        call: RetrievalCall,
        *,
        page_size: int,
        max_failed_share: float,
        keep: float,
        limit: Limit,
    ) -> None:
        self._name = name
        self._target = target
        self._runs = runs
        self._call = call
        self._page_size = page_size
        self._max_failed_share = max_failed_share
        self._keep = keep
        self._limit = limit
        self._checkpoints = Checkpoints(target.store, name)
        self._generations: GenerationSwitch
        self._generation: OpenGeneration
        self._taken_at = 0.0  # when the run knew its generation to be begun, by the monotonic clock
        self._pages: Pages
        self._checkpoint: Checkpoint
        self._token = 0
        self._signed_at = 0.0
        self._saved_at = 0.0

    def run(self, mode: Mode) -> dict[str, Any]:
        """Return the report; or that a run which goes on already covers this call.

        Raises:
            NodeError: REINDEX_TOO_MANY_FAILURES; REINDEX_SUPERSEDED when this process was silent for so long
                that another took the run over; of the store, the embedding or the index.
            InvocationCancelled, DeadlineExceeded: the checkpoint is kept.
        """
        if not self._take(mode):
            return {"covered": True}
        return self._finished(lambda last: self._begun(mode, last))

    def roll_back(self) -> dict[str, Any]:
        """Have the previous generation searched, bring it up, and return the report of that.

        Raises:
            NodeError: REINDEX_NO_PREVIOUS, or REINDEX_RUNNING while another call has the lease: nothing was
                changed; else as `run`.
        """
        if not self._take(None):
            raise _is_running(self._name)
        return self._finished(self._rolled_back)

    def rebuild(self) -> dict[str, Any]:
        """Build a generation of the configured identity, have it searched, and return the report of that.

        Raises:
            NodeError: REINDEX_RUNNING while another call has the lease: nothing was changed; else as `run`.
        """
        if not self._take(None):
            raise _is_running(self._name)
        return self._finished(lambda last: self._begun("full", last))

    def _take(self, mode: Mode | None) -> bool:
        """Take the lease; where another has it, note that a run of this mode is wanted."""
        last = self._checkpoints.read(self._call)
        above = max(last.token if last else 0, self._target.generations.read(self._call).token)
        token = self._runs.take(self._name, self._call.execution_id, mode, above=above)
        if token is not None:
            self._token = token
            self._generations = GenerationSwitch(self._target.generations, self._call, token)
        return token is not None

    def _finished(self, begin: Callable[[Checkpoint | None], Checkpoint]) -> dict[str, Any]:
        """Do all passes from what `begin` makes of the last checkpoint, and report."""
        try:
            self._checkpoint = begin(self._checkpoints.read(self._call))
            self._passes()
        except RunLost:
            raise NodeError("REINDEX_SUPERSEDED", "another call has taken this run over") from None
        except BaseException as error:
            self._interrupted(error)
            raise
        return self._checkpoint.report().to_wire()

    def _rolled_back(self, last: Checkpoint | None) -> Checkpoint:
        self._generations.roll_back(self._followed(last))
        time.sleep(SEEN)  # until every search has seen it
        return self._taken_up("incremental", last) or self._new("incremental", self._stay(last))

    def _begun(self, mode: Mode, last: Checkpoint | None) -> Checkpoint:
        """Take the last run up where it was interrupted, or begin one."""
        return self._taken_up(mode, last) or self._new(mode, self._choose(mode, last))

    def _taken_up(self, mode: Mode, last: Checkpoint | None) -> Checkpoint | None:
        """Go on with the last run; None: it has ended, or is not what is wanted now."""
        if last is None or (found := self._generations.with_identity(last.index)) is None:
            return None
        self._use(found)
        mine = last.with_fields(execution=self._call.execution_id, token=self._token)
        if last.state == "finished" and last.execution == self._call.execution_id:
            return mine  # only its answer was not told
        is_enough = last.mode in (mode, "full") or self._generations.is_building(found)
        if last.is_open and is_enough and self._generations.is_wanted(found) and self._is_as_left(last):
            return mine.with_fields(state="running").at(self._walk().resume(last.place))
        return None

    def _new(self, mode: Mode, since: str | None) -> Checkpoint:
        now = time.time()
        begun = Checkpoint(
            run=str(uuid.uuid4()),
            target=self._name,
            mode=mode,
            execution=self._call.execution_id,
            token=self._token,
            generation=self._generation.number,
            index=self._generation.identity,
            started_at=now,
            updated_at=now,
        ).at(Place("records" if since is None else "changes", since=since))
        self._checkpoints.write(begun, self._call)  # before the walk, which is to pass this record over
        return self._at_begin(begun, since)

    def _at_begin(self, checkpoint: Checkpoint, since: str | None) -> Checkpoint:
        place = self._walk().begin(since)
        known = self._generations.active.index.count(self._call) if place.phase == "records" else 0
        return checkpoint.at(place).with_fields(expected=checkpoint.scanned + known if known else 0)

    def _choose(self, mode: Mode, last: Checkpoint | None) -> str | None:
        """Choose the generation to bring up, a new one if need be; returns since when it has changes."""
        if mode == "incremental" and self._generations.is_wanted(self._generations.active):
            return self._stay(last)
        followed = self._followed(last)
        self._generations.sweep(self._keep)  # builds that fail must not pile up
        self._use(self._generations.build(followed))
        return None

    def _stay(self, last: Checkpoint | None) -> str | None:
        """Bring the active generation up; returns since when it has changes."""
        self._use(self._generations.stay())
        return self._followed(last)

    def _use(self, generation: OpenGeneration) -> None:
        self._generation = generation
        self._taken_at = time.monotonic()
        self._pages = Pages(
            self._name,
            self._target,
            generation,
            self._call,
            most=self._limit.concurrency,
            on_wait=self._live,
            before_page=self._wait_for_turn,
        )

    def _followed(self, last: Checkpoint | None) -> str | None:
        """Return up to where the active generation follows the store's changes; None: that is not known."""
        active = self._generations.active
        is_of_active = last is not None and last.index == active.identity
        since = last.followed if last is not None and is_of_active else self._generations.state.active.since
        return since if self._is_filled(active) else None

    def _is_as_left(self, last: Checkpoint) -> bool:
        """Tell whether the index is not one made anew since."""
        return last.has_found_nothing or self._is_filled(self._generation)

    def _is_filled(self, generation: OpenGeneration) -> bool:
        return bool(generation.index.page(None, limit=1, call=self._call))

    def _walk(self) -> Walk:
        kept = (self._checkpoints.id, self._target.generations.record_id)
        return self._target.walk(
            self._generation,
            page_size=self._page_size,
            skipped=frozenset(id for id in kept if id is not None),
            call=self._call,
        )

    def _passes(self) -> None:
        """Walk the target until no other run of it is wanted."""
        while True:
            if self._checkpoint.state != "finished":
                self._pass()
                self._switch()
                self._save("finished")
            self._generations.sweep(self._keep)
            wanted = self._runs.settle(self._name, self._token)
            if not wanted.count:
                return
            logger.warning(
                "%s: %d more runs were asked for in the %.0f s that this one has taken; if a schedule does, "
                "its slots are closer than a run takes",
                self._name,
                wanted.count,
                time.time() - self._checkpoint.started_at,
            )
            self._again(wanted)

    def _again(self, wanted: Wanted) -> None:
        done = self._checkpoint
        begun = self._at_begin(done, self._choose(wanted.mode, done))
        if begun.phase == "records":  # all are tried again
            begun = begun.with_fields(failed=(), failed_count=0)
        self._checkpoint = begun.with_fields(
            state="running",
            mode=wanted.mode,
            generation=self._generation.number,
            index=self._generation.identity,
            passes=done.passes + 1,
            answered=done.answered + wanted.count,
        )
        self._save("running")
        self._runs.answered(self._name, self._token, wanted)

    def _switch(self) -> None:
        """Have a generation that is complete now searched, and follow what changed until it was."""
        if self._generations.is_active(self._generation):
            return
        self._save("running")  # renews the lease, too
        self._generations.switch(self._generation)
        # whoever read that it is being built, or has read anything since then, looks again soon
        seen_at = max(time.monotonic() + SOON, self._taken_at + SEEN)
        self._pass()
        time.sleep(max(0.0, seen_at - time.monotonic()))  # until every search has seen it

    def _pass(self) -> None:
        self._save("running")
        in_flight: deque[SentPage] = deque()
        for step in self._walk().steps(self._checkpoint.place):
            in_flight.append(self._sent(step, in_flight))
            while in_flight and (in_flight[0].is_done or len(in_flight) > AHEAD * self._pages.width):
                self._receive(in_flight.popleft())
        while in_flight:
            self._receive(in_flight.popleft())

    def _sent(self, step: Step, in_flight: deque[SentPage]) -> SentPage:
        """Have a page done: elsewhere, or here while all others are at work.

        What is done behind a page that is not yet is read again when this process dies, and found unchanged.
        """
        self._live()
        under_way = sum(not page.is_done for page in in_flight)
        if under_way < self._pages.width:
            return self._pages.send(step, self._key)
        return self._pages.do_here(step)

    def _key(self, step: Step) -> str:
        """Name a page: what it looks at, and where; the same only for a run that was killed there."""
        page = canonical_json([self._generation.number, asdict(step.place), step.ids])
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
        if time.monotonic() - self._saved_at > SAVED:
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
        """Go on, also waiting for a page, if the run is still wanted and still ours."""
        self._call.check()
        if time.monotonic() - self._signed_at > SIGN:
            self._runs.renew(self._name, self._call.execution_id, self._token)
            self._signed_at = time.monotonic()

    def _wait_for_turn(self) -> None:
        wait_for_turn(self._runs, self._limit, self._call, self._live)

    def _interrupted(self, error: BaseException) -> None:
        """Keep the place and give the lease back, as far as that can be done now."""
        with suppress(Exception):  # the error that interrupted the run is the one to tell
            if hasattr(self, "_checkpoint") and self._checkpoint.state != "finished":
                stopped = self._checkpoint.with_fields(state=_state_after(error), updated_at=time.time())
                self._checkpoints.write(stopped, NO_CALL)
                self._runs.publish(self._name, stopped.to_json())
        with suppress(Exception):
            self._runs.release(self._name, self._token)


def is_overrun(checkpoint: Checkpoint, share: float) -> bool:
    """Tell whether more records failed than may: a share of those looked at, and 20 in any case."""
    return checkpoint.failed_count > max(MAY_FAIL, share * checkpoint.scanned)


def _is_running(target: str) -> NodeError:
    """Make the error of a call that needs the lease which another one has."""
    return NodeError(
        "REINDEX_RUNNING",
        f"a run of {target} goes on: wait for its end, or stop it by `ditto-tasks reindex cancel {target}`",
    )


def _state_after(error: BaseException) -> State:
    if isinstance(error, InvocationCancelled | DeadlineExceeded):
        return "cancelled"
    return "failed" if getattr(error, "code", "") == "REINDEX_TOO_MANY_FAILURES" else "stopped"
