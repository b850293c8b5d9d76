"""The records of a memory store as a target: searched by words, by meaning, and by both."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from ditto_tasks.contracts.index import IndexManifest, VectorIndex
from ditto_tasks.contracts.reindex import ReindexPageOutput, TargetStatus
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    IdentifiedEmbedding,
    RetrievalCall,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSearchProvider,
)
from providers.embedding.records import RecordEmbedding
from providers.indexes import open_index
from providers.indexes.generations import Generations
from providers.indexes.kept import WithoutKept
from providers.indexes.look import Look
from providers.indexes.sync import Differences, bring_up, differences, drift
from providers.indexes.walk import Walk
from providers.retrieval.bridges import MemoryAsRetrieval, namespace_as_filter
from providers.retrieval.generations import (
    EmbeddingOf,
    IndexGenerations,
    OpenGeneration,
    OpenIndex,
    SearchOfActive,
)
from providers.retrieval.hybrid import HybridBranch, HybridSearch, only_returned
from providers.retrieval.index import IndexSearch
from providers.retrieval.keywords import keyword_query
from providers.retrieval.registry import Target
from providers.retrieval.rerank import RerankSearch
from providers.retrieval.smoothing import POOL, Smoothing
from providers.retrieval.text import TextSearch
from providers.retrieval.vector import VectorSearch
from providers.stores import Store

__all__ = ["RecordTarget"]

KEYWORD_WEIGHT, VECTOR_WEIGHT = 0.65, 0.35


def _no_other(identity: str) -> None:
    """Open no embedding but the one that is configured."""


class RecordTarget:
    """One store with the generations of its index, and the three ways of searching them.

    Strategies: `keyword`, the store's own search for the words of a question; `vector`, the nearest in the
    index; `hybrid`, both, fused and smoothed (docs/retrieval.md has the figures that chose this). A target's
    namespace narrows a search to the records with that namespace in their metadata.

    Args:
        name: of the target's first index; the later ones have a number after it.
        store: closed with the target.
        embedding: the one that is configured.
        open_index: opens an index by name; those that it opened are closed with the target.
        embedding_of: opens embeddings that made an index and are not configured any more.
        location: of the indexes; only told apart from others.

    Attributes:
        store: whose records are searched.
        generations: those of the index.
        target: the strategies, for a registry.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        embedding: IdentifiedEmbedding,
        open_index: OpenIndex,
        *,
        embedding_of: EmbeddingOf = _no_other,
        location: str = "",
    ) -> None:
        self.store = store
        self._keyword = TextSearch(MemoryAsRetrieval(WithoutKept(store), _keyword_request))
        self.generations = IndexGenerations(
            name,
            store,
            embedding,
            open_index,
            self._searches,
            embedding_of=embedding_of,
            location=location,
        )
        self.target = Target(
            "hybrid",
            {
                "keyword": self._keyword,
                "vector": SearchOfActive(self.generations, "vector"),
                "hybrid": SearchOfActive(self.generations, "hybrid"),
            },
        )

    @classmethod
    def open(
        cls,
        name: str,
        store: Store,
        index_url: str,
        embedding: IdentifiedEmbedding,
        *,
        embedding_of: EmbeddingOf = _no_other,
    ) -> Self:
        """Open the index of a store's records that is searched now, and make the first if there is none.

        Raises:
            IndexMismatch: the index is not the one that was built.
            InvalidDefinition, StoreUnavailable: as `open_index`; the store is left open.
            MemoryNodeError: the store cannot be read.
            RetrievalError: of an embedding that does not say how long its vectors are, and cannot make one.
        """

        def opened(index_name: str, manifest: IndexManifest) -> VectorIndex:
            return open_index(index_url, name=index_name, manifest=manifest)

        target = cls(name, store, embedding, opened, embedding_of=embedding_of, location=index_url)
        target.generations.active()
        return target

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def bring_up(
        self,
        ids: tuple[str, ...],
        call: RetrievalCall,
        *,
        generation: int | None = None,
        seen: Look | None = None,
    ) -> ReindexPageOutput:
        """Make the entries of these records what the records are; see `providers.indexes.sync`.

        Args:
            generation: the one to be brought up; None: that which is searched, of which the answer tells, and
                one being built, unless its model is not known here: its run finds at its end what is missing.
            seen: a look at just these records and their entries in that generation, had before.

        Raises:
            RetrievalError: RETRIEVAL_PROVIDER_UNAVAILABLE when there is no such generation any more.
        """
        generations = self.generations.read(call)
        if generation is not None:
            return self._bring_up(self._numbered(generations, generation), ids, call, seen)
        active, *building = map(self.generations.opened, generations.written)
        output = self._bring_up(active, ids, call)
        for other in building:
            if other.is_known:
                self._bring_up(other, ids, call)
        return output

    def walk(
        self, generation: OpenGeneration, *, page_size: int, skipped: frozenset[str], call: RetrievalCall
    ) -> Walk:
        """Plan how to bring a generation up; see `providers.indexes.walk`."""
        return Walk(self.store, generation.index, page_size=page_size, skipped=skipped, call=call)

    def compare(self, call: RetrievalCall) -> Differences:
        """Tell which entries of the active generation are not what their records are; reads both whole."""
        generations = self.generations.read(call)
        found = differences(self.store, self.generations.opened(generations.active).index, call)
        found.generation = generations.active.number
        found.is_of_wrong_generation = self._is_wrong(generations)
        return found

    def status(self, name: str, call: RetrievalCall) -> TargetStatus:
        """Tell how store and index stand; reads both whole."""
        generations = self.generations.read(call)
        active = generations.active
        index = self.generations.opened(active).index
        records, difference = drift(self.store, index, call)
        indexed = index.count(call)
        others = {"building": generations.building, "previous": generations.previous}
        return TargetStatus(
            name=name,
            strategies=tuple(self.target.providers),
            default_strategy=self.target.default_strategy,
            records=records,
            indexed=indexed,
            generation=active.number,
            model=active.model,
            dimensions=active.dimensions,
            drift=difference,
            wrong_generation=indexed if self._is_wrong(generations) else 0,
            **{role: other.number for role, other in others.items() if other is not None},
        )

    def close(self) -> None:
        """Close searches, indexes and store; closing twice does nothing."""
        self.generations.close()
        self.store.close()

    def _is_wrong(self, generations: Generations) -> bool:
        return generations.active.manifest != self.generations.wanted(generations)

    def _numbered(self, generations: Generations, number: int) -> OpenGeneration:
        for generation in generations.written:
            if generation.number == number:
                return self.generations.opened(generation)
        raise self.generations.was_left(number)

    def _bring_up(
        self,
        generation: OpenGeneration,
        ids: tuple[str, ...],
        call: RetrievalCall,
        seen: Look | None = None,
    ) -> ReindexPageOutput:
        call = _of_any_length(call)
        return bring_up(self.store, generation.index, generation.embedding, ids, call, seen=seen)

    def _searches(
        self, index: VectorIndex, embedding: RecordEmbedding
    ) -> tuple[Mapping[str, RetrievalSearchProvider], Callable[[], None]]:
        """Make the searches of one generation; its vectors come from its own embedding."""
        vector = VectorSearch(IndexSearch(index), embedding=embedding, dimensions=index.manifest.dimensions)
        fused = HybridSearch(
            [
                HybridBranch(self._keyword, "keyword", KEYWORD_WEIGHT),
                HybridBranch(vector, "vector", VECTOR_WEIGHT),
            ],
            fusion="min-max",
        )
        hybrid = _SmoothedSearch(fused, Smoothing(index), candidate_limit=POOL)
        return {"vector": vector, "hybrid": hybrid}, fused.close


class _SmoothedSearch(RerankSearch):
    """Tells of the candidates that it returns, and not of its whole pool, which is several times as long."""

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        return only_returned(super().search(request, call))


def _of_any_length(call: RetrievalCall) -> RetrievalCall:
    """Leave the configured length out: the index, maybe of another embedding, knows its own."""
    embedding = call.embedding.model_copy(update={"dimensions": None})
    return RetrievalCall.of(call, call.defaults.model_copy(update={"embedding": embedding}))


def _keyword_request(request: RetrievalSearchInput) -> dict[str, Any]:
    """Make the memory search of a request: the words of its question, its namespace as a filter."""
    asked = namespace_as_filter(request)
    return {**asked, "query": keyword_query(str(asked["query"]))}
