"""The records of a memory store as a target: searched by words, by meaning, and by both."""

import hashlib
from types import TracebackType
from typing import Any, Self

from ditto_tasks.contracts.index import IndexManifest, VectorIndex
from ditto_tasks.contracts.reindex import Mode, ReindexPageOutput, TargetStatus
from ditto_tasks.contracts.retrieval import IdentifiedEmbedding, RetrievalCall, RetrievalSearchInput
from providers.embedding.batching import embed_contents
from providers.embedding.records import RecordEmbedding
from providers.indexes import open_index
from providers.indexes._manifest import manifest_text
from providers.indexes.sync import Differences, bring_up, differences, drift
from providers.indexes.walk import Walk
from providers.retrieval.bridges import MemoryAsRetrieval, namespace_as_filter
from providers.retrieval.hybrid import HybridBranch, HybridSearch
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
_ANY_TEXT = "text"  # embedded to learn how long a vector is


class RecordTarget:
    """One store with one index, and the three ways of searching them.

    Strategies: `keyword`, the store's own search for the words of a question; `vector`, the nearest in the
    index; `hybrid`, both, fused and smoothed (docs/retrieval.md has the figures that chose this). A target's
    namespace narrows a search to the records with that namespace in their metadata.

    Args:
        store: closed with the target.
        index: of the store's records; closed with the target.
        embedding: made the index's vectors, and makes those of queries.
        location: of the index; only told apart from others.

    Attributes:
        index_identity: names the index, so that a run notices that it has another before it.
    """

    def __init__(
        self, store: Store, index: VectorIndex, embedding: IdentifiedEmbedding, *, location: str = ""
    ) -> None:
        self.store = store
        self.index = index
        self.index_identity = _identity(index.manifest, location)
        self._embedding = RecordEmbedding(embedding)
        keyword = TextSearch(MemoryAsRetrieval(store, _keyword_request))
        vector = VectorSearch(IndexSearch(index), embedding=self._embedding)
        self._fused = HybridSearch(
            [
                HybridBranch(keyword, "keyword", KEYWORD_WEIGHT),
                HybridBranch(vector, "vector", VECTOR_WEIGHT),
            ],
            fusion="min-max",
        )
        hybrid = RerankSearch(self._fused, Smoothing(index), candidate_limit=POOL)
        self.target = Target("hybrid", {"keyword": keyword, "vector": vector, "hybrid": hybrid})

    @classmethod
    def open(cls, name: str, store: Store, index_url: str, embedding: IdentifiedEmbedding) -> Self:
        """Open the index of a store's records, made by this embedding, and make it if it is missing.

        Raises:
            IndexMismatch: the index holds another embedding's vectors.
            InvalidDefinition, StoreUnavailable: as `open_index`; the store is left open.
            RetrievalError: of an embedding that does not say how long its vectors are, and cannot make one.
        """
        records = RecordEmbedding(embedding)
        dimensions = embedding.dimensions
        if dimensions is None:
            dimensions = embed_contents(embedding, [_ANY_TEXT], "document").shape[1]
        manifest = IndexManifest(embedding.identity, dimensions, records.preprocessing)
        index = open_index(index_url, name=name, manifest=manifest)
        return cls(store, index, embedding, location=f"{index_url} {name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def bring_up(self, ids: tuple[str, ...], call: RetrievalCall, *, anew: bool = False) -> ReindexPageOutput:
        """Make the index's entries of these records what the records are; see `providers.indexes.sync`."""
        return bring_up(self.store, self.index, self._embedding, ids, call, anew=anew)

    def walk(self, mode: Mode, *, page_size: int, skipped: str | None, call: RetrievalCall) -> Walk:
        """Plan how to bring the whole index up; see `providers.indexes.walk`."""
        return Walk(self.store, self.index, mode=mode, page_size=page_size, skipped=skipped, call=call)

    def compare(self, call: RetrievalCall) -> Differences:
        """Tell which entries are not what their records are; reads store and index whole."""
        return differences(self.store, self.index, call)

    def status(self, name: str, call: RetrievalCall) -> TargetStatus:
        """Tell how store and index stand; reads both whole."""
        records, difference = drift(self.store, self.index, call)
        manifest = self.index.manifest
        return TargetStatus(
            name=name,
            strategies=tuple(self.target.providers),
            default_strategy=self.target.default_strategy,
            records=records,
            indexed=self.index.count(call),
            model=manifest.model,
            dimensions=manifest.dimensions,
            drift=difference,
        )

    def close(self) -> None:
        """Close search, index and store; closing twice does nothing."""
        self._fused.close()
        self.index.close()
        self.store.close()


def _identity(manifest: IndexManifest, location: str) -> str:
    """Name an index; its location, which may hold a password, cannot be told from that."""
    return hashlib.sha256(f"{manifest_text(manifest)} {location}".encode()).hexdigest()


def _keyword_request(request: RetrievalSearchInput) -> dict[str, Any]:
    """Make the memory search of a request: the words of its question, its namespace as a filter."""
    asked = namespace_as_filter(request)
    return {**asked, "query": keyword_query(str(asked["query"]))}
