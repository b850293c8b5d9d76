"""How a run changes which generation of an index is searched: under its lease, and by one update each."""

import logging
import time

from ditto_tasks.contracts.errors import NodeError
from ditto_tasks.contracts.retrieval import RetrievalCall
from ditto_tasks.transport.runs import RunLost
from providers.indexes.generations import Generation, Generations
from providers.retrieval.generations import IndexGenerations, OpenGeneration

__all__ = ["GenerationSwitch"]

logger = logging.getLogger(__name__)


class GenerationSwitch:
    """The generations of one target, in the hands of the run that has its lease.

    Args:
        token: of the lease; what a run with a greater one has written is left as it is.
    """

    def __init__(self, generations: IndexGenerations, call: RetrievalCall, token: int) -> None:
        self._generations = generations
        self._call = call
        self._token = token

    @property
    def state(self) -> Generations:
        """The generations as they are now."""
        return self._generations.read(self._call)

    def with_identity(self, identity: str) -> OpenGeneration | None:
        """Find the generation of an index among those that are brought up; None: it is not one of them."""
        for generation in self.state.written:
            opened = self._generations.opened(generation)
            if opened.identity == identity:
                return opened
        return None

    @property
    def active(self) -> OpenGeneration:
        """The one that is searched."""
        return self._generations.opened(self.state.active)

    def is_active(self, generation: OpenGeneration) -> bool:
        """Tell whether this one is searched."""
        return self.state.active.number == generation.number

    def is_building(self, generation: OpenGeneration) -> bool:
        """Tell whether this one is being built."""
        return _is(self.state.building, generation)

    def is_wanted(self, generation: OpenGeneration) -> bool:
        """Tell whether this one, searched or being built, is what the configuration asks for."""
        state = self.state
        wanted = self._generations.wanted(state)
        if _is(state.building, generation):
            return generation.index.manifest == wanted
        return not state.wants(wanted)

    def build(self, since: str | None) -> OpenGeneration:
        """Begin one with the configured identity; it is empty, and nobody searches it.

        Args:
            since: up to where the active one follows the store's changes.
        """
        state = self.state
        begun = state.begun(self._generations.wanted(state), since=since, now=time.time())
        self._write(state, begun)
        assert begun.building is not None
        return self._generations.made(begun.building, self._call)

    def stay(self) -> OpenGeneration:
        """Go on with the one that is searched; what was being built is left."""
        state = self.state
        if state.building is not None:
            self._write(state, state.stayed(time.time()))
        return self._generations.opened(state.active)

    def switch(self, generation: OpenGeneration) -> None:
        """Have this one, which was being built, searched from now on.

        Raises:
            RetrievalError: RETRIEVAL_PROVIDER_UNAVAILABLE when nobody knows of it any more.
        """
        state = self.state
        if not _is(state.building, generation):
            raise self._generations.was_left(generation.number)
        self._write(state, state.switched(time.time()))

    def roll_back(self, since: str | None) -> Generation:
        """Have the previous one searched from now on, unless this call has seen to that; returns it.

        Args:
            since: up to where the active one follows the store's changes.

        Raises:
            NodeError: REINDEX_NO_PREVIOUS when there is none, RETRIEVAL_PROVIDER_UNAVAILABLE when its model
                is not known.
            IndexMismatch, InvalidDefinition, StoreUnavailable: its index cannot be opened.
        """
        state = self.state
        if state.rolled_back_by == self._call.execution_id:  # delivered again
            return state.active
        if state.previous is None:
            raise NodeError(
                "REINDEX_NO_PREVIOUS",
                f"{self._generations.name} has no previous generation: none was built, or it was not kept",
            )
        self._generations.check_model(state.previous)
        self._generations.opened(state.previous)
        self._write(state, state.rolled_back(self._call.execution_id, since=since, now=time.time()))
        return state.previous

    def sweep(self, keep: float) -> None:
        """Leave what is older than `keep` seconds, and drop what was left long ago.

        What cannot be dropped now is left to the next run.
        """
        state = self.state
        swept = state.without_old(time.time(), keep=keep)
        stuck = [left for left in state.leaving if left not in swept.leaving and not self._is_dropped(left)]
        swept = swept.model_copy(update={"leaving": (*stuck, *swept.leaving)})
        if swept != state:
            self._write(state, swept)

    def _is_dropped(self, generation: Generation) -> bool:
        """Drop one; tells whether that could be done."""
        try:
            self._generations.drop(generation, self._call)
        except Exception:
            name = generation.index_name(self._generations.name)
            logger.warning("index %s cannot be dropped now: the next run tries again", name, exc_info=True)
            return False
        return True

    def _write(self, state: Generations, changed: Generations) -> None:
        """Put them in the place of those that this run has read, unless another has written since."""
        if state.token > self._token or self.state != state:
            raise RunLost
        self._generations.write(changed.model_copy(update={"token": self._token}), self._call)


def _is(one: Generation | None, opened: OpenGeneration) -> bool:
    return one is not None and one.number == opened.number
