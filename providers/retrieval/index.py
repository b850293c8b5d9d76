"""A vector index as a search: the nearest records to a vector."""

from typing import Any

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.index import IndexHit, VectorIndex
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSource,
)
from providers.retrieval.namespaces import namespaced_filter

__all__ = ["IndexSearch"]


class IndexSearch:
    """Finds records in an index by a query that is a vector; `VectorSearch` in front of it embeds text.

    A candidate is the whole record, its id and source as `MemoryAsRetrieval` gives them, so that a hybrid
    search knows one record found by both as one. The target's namespace narrows the search to records with
    that namespace in their metadata.

    Args:
        index: stays the caller's to close.
    """

    def __init__(self, index: VectorIndex) -> None:
        self._index = index

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        """Search; scores are cosine similarities.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for options, an unknown filter, or a filter by another
                namespace than the target's; RETRIEVAL_INVALID_EMBEDDING for a vector of another length.
        """
        if request.options:
            raise RetrievalError("RETRIEVAL_INVALID_INPUT", "options: this search has none: leave them out")
        hits = self._index.search(
            request.query.content, limit=call.limit(request), filter=namespaced_filter(request), call=call
        )
        fields: dict[str, Any] = {
            "candidates": tuple(_candidate(hit, request.target.name) for hit in hits),
            "target": request.target,
        }
        if request.strategy is not None:
            fields["strategy"] = request.strategy
        return trusted(RetrievalSearchOutput, fields)


def _candidate(hit: IndexHit, target: str) -> RetrievalCandidate:
    id = hit.record.id
    fields = {
        "id": id,
        "content": hit.record.to_wire(),
        "score": hit.score,
        "source": trusted(RetrievalSource, {"target": target, "ref": id}),
    }
    return trusted(RetrievalCandidate, fields)
