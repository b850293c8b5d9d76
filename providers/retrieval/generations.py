"""The generations of a target's index, opened as they are needed; which of them is searched."""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError, RetrievalError, StoreUnavailable
from ditto_tasks.contracts.index import IndexManifest, IndexMismatch, VectorIndex
from ditto_tasks.contracts.memory import MemoryStore
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    IdentifiedEmbedding,
    Purpose,
    RetrievalCall,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSearchProvider,
)
from providers.embedding.batching import embed_contents
from providers.embedding.records import RECORD_TEXT, RecordEmbedding
from providers.indexes._manifest import manifest_text
from providers.indexes.generations import Generation, Generations, GenerationsRecord

__all__ = ["EmbeddingOf", "IndexGenerations", "OpenGeneration", "OpenIndex", "SearchOfActive"]

_IDLE = 300.0  # seconds after which a generation that is not used is closed; far over any call
_ANY_TEXT = "text"  # embedded to learn how long a vector is

OpenIndex = Callable[[str, IndexManifest], VectorIndex]
"""Opens the index by a name, and makes it if it is missing; raises as `providers.indexes.open_index`."""

EmbeddingOf = Callable[[str], IdentifiedEmbedding | None]
"""Opens the embedding with an identity; None: it is not known how."""


@dataclass(slots=True)
class OpenGeneration:
    """One generation, opened.

    Attributes:
        identity: tells its index from any other, also from one by the same name elsewhere.
        embedding: makes its vectors, and those of queries.
        is_known: whether it can; else the configuration does not tell how to open it, and it refuses.
        searches: what finds records in it, by strategy.
        close_searches: lets go of what those hold.
        used_at: when it was asked for last, by the monotonic clock.
    """

    number: int
    identity: str
    index: VectorIndex
    embedding: RecordEmbedding
    is_known: bool
    searches: Mapping[str, RetrievalSearchProvider]
    close_searches: Callable[[], None]
    used_at: float = 0.0

    def close(self) -> None:
        """Close searches and index."""
        self.close_searches()
        self.index.close()


class IndexGenerations:
    """Opens and remembers the generations of one target.

    Args:
        name: of the target: that of its first index, with which those of the later ones begin.
        store: whose records they index; stays the caller's to close.
        embedding: the one that is configured.
        open_index: opens their indexes.
        searching: makes the searches of an index with its embedding, and what lets go of them.
        embedding_of: opens embeddings that are not configured any more.
        location: of the indexes; only told apart from others.
    """

    def __init__(
        self,
        name: str,
        store: MemoryStore,
        embedding: IdentifiedEmbedding,
        open_index: OpenIndex,
        searching: Callable[
            [VectorIndex, RecordEmbedding], tuple[Mapping[str, RetrievalSearchProvider], Callable[[], None]]
        ],
        *,
        embedding_of: EmbeddingOf,
        location: str,
    ) -> None:
        self.name = name
        self._embedding = embedding
        self._open_index = open_index
        self._searching = searching
        self._embedding_of = embedding_of
        self._location = location
        self._record = GenerationsRecord(store, name)
        self._lock = threading.Lock()
        self._opened: dict[int, OpenGeneration] = {}
        self._unrecorded: Generations | None = None
        self._seen: tuple[Generations, float] | None = None  # and when they were asked for

    @property
    def record_id(self) -> str | None:
        """Of the record in which they are kept; None: it was not seen."""
        return self._record.id

    def read(self, call: Call) -> Generations:
        """Return them as they are now.

        Raises:
            RetrievalError, MemoryNodeError: they cannot be read.
            InvalidDefinition, StoreUnavailable: there are none yet, and the first index cannot be opened.
        """
        asked_at = time.monotonic()
        generations = self._record.read(call) or self._first()
        self._seen = (generations, asked_at)
        self._close_idle(generations)
        return generations

    def write(self, generations: Generations, call: Call) -> None:
        """Put them in the place of those that were read last."""
        self._record.write(generations, call)
        self._seen = None

    def active(self, call: Call = NO_CALL) -> OpenGeneration:
        """Return the one that is searched; for as long as `Generations.trusted_for` says that which was."""
        seen = self._seen
        if seen is not None and time.monotonic() - seen[1] < seen[0].trusted_for:
            return self.opened(seen[0].active)
        return self.opened(self.read(call).active)

    def opened(self, generation: Generation) -> OpenGeneration:
        """Open a generation, unless it is.

        Raises:
            IndexMismatch, InvalidDefinition, StoreUnavailable: as `providers.indexes.open_index`.
        """
        with self._lock:
            found = self._opened.get(generation.number)
            if found is None:
                found = self._opened[generation.number] = self._open(generation)
            found.used_at = time.monotonic()
            return found

    def made(self, generation: Generation, call: Call) -> OpenGeneration:
        """Open one that is to be built: whatever has its name is of a record that was lost, and is dropped.

        Raises:
            RetrievalError: that cannot be dropped.
            InvalidDefinition, StoreUnavailable: as `opened`.
        """
        try:
            made = self.opened(generation)
            if not made.index.count(call):
                return made
            left = generation
        except IndexMismatch as mismatch:
            if mismatch.kept is None:
                raise
            left = Generation.of(generation.number, mismatch.kept)
        self.drop(left, call)
        return self.opened(generation)

    def drop(self, generation: Generation, call: Call) -> None:
        """Remove the index of a generation that nobody uses any more."""
        dropped = self.opened(generation)
        with self._lock:
            self._opened.pop(generation.number, None)
        try:
            dropped.index.drop(call)
        finally:
            dropped.close()

    def wanted(self, generations: Generations) -> IndexManifest:
        """Return what makes vectors by the configuration.

        Raises:
            RetrievalError: of an embedding that does not say how long its vectors are, has made no generation
                that would, and cannot make one now.
        """
        known = {made.model: made.dimensions for made in reversed(generations.known)}
        return self._configured(self._embedding.dimensions or known.get(self._embedding.identity))

    def was_left(self, number: int) -> RetrievalError:
        """Make the error of a call for a generation that is neither searched nor being built."""
        return RetrievalError(
            "RETRIEVAL_PROVIDER_UNAVAILABLE",
            f"generation {number} of {self.name} was left: another run has begun anew",
        )

    def check_model(self, generation: Generation) -> None:
        """Go on only if it is known how to open what makes this one's vectors.

        Raises:
            RetrievalError: RETRIEVAL_PROVIDER_UNAVAILABLE, naming both models.
        """
        made_by = self._made_by(generation.manifest)
        if isinstance(made_by, _AbsentEmbedding):
            raise made_by.refusal()

    def close(self) -> None:
        """Close all that are open; closing twice does nothing."""
        with self._lock:
            while self._opened:
                self._opened.popitem()[1].close()

    def _first(self) -> Generations:
        """Take the index by the target's own name for the first, whatever made it."""
        if self._unrecorded is None:
            manifest = self._configured(self._embedding.dimensions)
            try:
                self.opened(Generation.of(1, manifest))
            except IndexMismatch as mismatch:
                if mismatch.kept is None:
                    raise
                manifest = mismatch.kept
            self._unrecorded = Generations.first(manifest)
        return self._unrecorded

    def _configured(self, dimensions: int | None) -> IndexManifest:
        if dimensions is None:
            dimensions = embed_contents(self._embedding, [_ANY_TEXT], "document").shape[1]
        return IndexManifest(self._embedding.identity, dimensions, RECORD_TEXT)

    def _open(self, generation: Generation) -> OpenGeneration:
        manifest, name = generation.manifest, generation.index_name(self.name)
        made_by = self._made_by(manifest)
        embedding = RecordEmbedding(made_by)
        index = self._open_index(name, manifest)
        searches, close_searches = self._searching(index, embedding)
        identity = hashlib.sha256(f"{manifest_text(manifest)} {self._location} {name}".encode()).hexdigest()
        is_known = not isinstance(made_by, _AbsentEmbedding)
        return OpenGeneration(
            generation.number, identity, index, embedding, is_known, searches, close_searches
        )

    def _made_by(self, manifest: IndexManifest) -> IdentifiedEmbedding:
        if manifest.preprocessing == RECORD_TEXT:
            if manifest.model == self._embedding.identity:
                return self._embedding
            if (found := self._embedding_of(manifest.model)) is not None:
                return found
        return _AbsentEmbedding(manifest, self._embedding.identity, self.name)

    def _close_idle(self, generations: Generations) -> None:
        """Close those that nobody has asked for in a long time, but for those that are brought up: a run may
        read one for long."""
        idle_since = time.monotonic() - _IDLE
        in_use = {generation.number for generation in generations.written}
        with self._lock:
            idle = [
                number
                for number, opened in self._opened.items()
                if opened.used_at < idle_since and number not in in_use
            ]
            for number in idle:
                self._opened.pop(number).close()


class SearchOfActive:
    """Searches by one strategy whichever generation is active: each search one of them, whole."""

    def __init__(self, generations: IndexGenerations, strategy: str) -> None:
        self._generations = generations
        self._strategy = strategy

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput | Mapping[str, Any]:
        """Search.

        Raises:
            RetrievalError: RETRIEVAL_PROVIDER_UNAVAILABLE when the index cannot be opened, or its embedding
                is not known; RETRIEVAL_BACKEND_ERROR when the store does not tell which one is active; of
                the search.
        """
        try:
            active = self._generations.active(call)
        except MemoryNodeError as error:
            raise RetrievalError("RETRIEVAL_BACKEND_ERROR", "The store cannot be read") from error
        except (IndexMismatch, InvalidDefinition, StoreUnavailable) as error:
            raise RetrievalError("RETRIEVAL_PROVIDER_UNAVAILABLE", str(error)) from error
        return active.searches[self._strategy].search(request, call)


class _AbsentEmbedding:
    """Stands for what made an index, where the configuration does not tell how to open that."""

    def __init__(self, manifest: IndexManifest, configured: str, target: str) -> None:
        self.identity = manifest.model
        self.dimensions: int | None = manifest.dimensions
        self._made_by = f"{manifest.model} ({manifest.preprocessing})"
        self._configured = configured
        self._target = target

    def embed(
        self, contents: object, purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> list[list[float]]:
        """Refuse."""
        raise self.refusal()

    def refusal(self) -> RetrievalError:
        """Make the error, which names both models."""
        return RetrievalError(
            "RETRIEVAL_PROVIDER_UNAVAILABLE",
            f"the index of {self._target} was made by {self._made_by}, and {self._configured} is configured: "
            f"build another by `ditto-tasks reindex {self._target}`, or set the model back",
        )
