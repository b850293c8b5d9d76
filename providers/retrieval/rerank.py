"""A second look at a larger pool: ordering candidates anew, and cosine similarity as one way to do it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ditto_tasks.contracts.base import changed, expected, trusted
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    DEFAULT_CANDIDATE_LIMIT,
    NO_RETRIEVAL_CALL,
    EmbeddingProvider,
    Ranked,
    RerankProvider,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalQuery,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSearchProvider,
    checked_output,
)
from providers.embedding.batching import embed_contents
from providers.retrieval.explain import asks_why, explained_reranking, without_explain
from providers.retrieval.limits import checked_limit, first_given

__all__ = ["CosineReranker", "RerankSearch", "rerank_candidates"]

_LARGE = 1e200  # a sum of squares beyond it may have become infinite; below its inverse, part of it vanished
_ROWS = 128  # vectors compared at once: as doubles they stay in the processor's cache


class RerankSearch:
    """Asks a search for a larger pool, has it ranked anew, and cuts to what was asked for.

    Args:
        search: gives the pool; a hybrid one keeps its own floor beside ours.
        reranker: orders it.
        candidate_limit: the least size of the pool, never a cap; None: `rerank.candidateLimit` of the call's
            defaults, then 100.
    """

    explains = True

    def __init__(
        self,
        search: RetrievalSearchProvider,
        reranker: RerankProvider,
        *,
        candidate_limit: int | None = None,
    ) -> None:
        self._search = search
        self._reranker = reranker
        self._candidate_limit = candidate_limit

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        """Search, rerank, cut; with the option `explain` the output says where each candidate was before."""
        limit = call.limit(request)
        default = first_given(call.rerank.candidate_limit, DEFAULT_CANDIDATE_LIMIT)
        floor = checked_limit("candidate_limit", first_given(self._candidate_limit, default))
        explains, is_explained = asks_why(request), getattr(self._search, "explains", False)
        asked = request if is_explained else without_explain(request)
        asked = changed(asked, limit=max(limit, floor))
        found = checked_output(self._search.search(asked, call), asked, max(limit, floor))
        order = _ranked(self._reranker, request.query, found.candidates, limit, call)
        fields: dict[str, Any] = {"candidates": tuple(_in_order(found.candidates, order))}
        if explains:
            fields["metadata"] = explained_reranking(found, order, is_explained)
        return changed(found, **fields)


class CosineReranker:
    """Ranks by the cosine similarity of the candidates' contents to the query.

    Args:
        embedding: must take whatever contents the candidates have; see `RecordEmbedding` for whole records.
    """

    def __init__(self, embedding: EmbeddingProvider) -> None:
        self._embedding = embedding

    def rank(
        self,
        query: RetrievalQuery,
        candidates: Sequence[RetrievalCandidate],
        limit: int,
        call: RetrievalCall = NO_RETRIEVAL_CALL,
    ) -> list[Ranked]:
        """Return the `limit` most similar, ties in the order given; a zero vector scores 0."""
        if not candidates:
            return []
        [wanted] = embed_contents(self._embedding, [query.content], "query", call=call)
        vectors = embed_contents(
            self._embedding,
            [candidate.content for candidate in candidates],
            "document",
            dimensions=len(wanted),
            call=call,
        )
        scores = _cosines(vectors, wanted)
        best = np.argsort(-scores, kind="stable")[:limit]
        places = zip(best.tolist(), scores[best].tolist(), strict=True)
        return [trusted(Ranked, {"index": index, "score": score}) for index, score in places]


def rerank_candidates(
    reranker: RerankProvider,
    query: RetrievalQuery,
    candidates: Sequence[RetrievalCandidate],
    limit: int,
    call: RetrievalCall = NO_RETRIEVAL_CALL,
) -> list[RetrievalCandidate]:
    """Return the first min(limit, n) candidates in the reranker's order, with its scores where it gave some.

    Without candidates the reranker is not asked.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for a limit out of 1 to 10,000,
            RETRIEVAL_INVALID_BACKEND_OUTPUT when the reranker gave another number of places, an index twice
            or out of range, or a score that is no finite number.
    """
    return _in_order(candidates, _ranked(reranker, query, candidates, limit, call))


def _ranked(
    reranker: RerankProvider,
    query: RetrievalQuery,
    candidates: Sequence[RetrievalCandidate],
    limit: int,
    call: RetrievalCall,
) -> list[Ranked]:
    checked_limit("limit", limit)
    if not candidates:
        return []
    call.check()
    order = _checked_order(reranker.rank(query, candidates, limit, call))
    due = min(limit, len(candidates))
    if len(order) != due:
        raise _wrong(f"{len(order)} places where {due} were due")
    seen = {place.index for place in order}
    if len(seen) != due or max(seen) >= len(candidates):
        raise _wrong("an index that is out of range, or one that came twice")
    return order


def _checked_order(answer: Any) -> list[Ranked]:
    if not isinstance(answer, list | tuple):
        raise _wrong(f"a {type(answer).__name__} where a list was due")
    try:
        return [Ranked.from_wire(place) for place in answer]
    except ValidationError as error:
        raise _wrong(expected(error)) from None


def _in_order(candidates: Sequence[RetrievalCandidate], order: Sequence[Ranked]) -> list[RetrievalCandidate]:
    return [
        candidates[place.index]
        if place.score is None
        else changed(candidates[place.index], score=place.score)
        for place in order
    ]


def _cosines(vectors: NDArray[Any], query: NDArray[Any]) -> NDArray[np.float64]:
    """Return each row's cosine to the query, 0 for a zero vector; equal for equal rows, unlike by `@`."""
    [wanted], [length] = _tamed(query[np.newaxis])
    cosines = np.zeros(len(vectors))
    for start in range(0, len(vectors), _ROWS):
        part = slice(start, start + _ROWS)
        rows, lengths = _tamed(vectors[part])
        lengths *= length
        np.divide(np.einsum("ij,j->i", rows, wanted), lengths, out=cosines[part], where=lengths > 0)
    return np.clip(cosines, -1.0, 1.0)


def _tamed(vectors: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rows with their lengths, scaled where squares would leave the range of doubles.

    A row's scale does not change its cosine.
    """
    rows = vectors.astype(np.float64)
    squares = np.einsum("ij,ij->i", rows, rows)
    wild = (squares > _LARGE) | (squares < 1 / _LARGE)
    if wild.any():
        largest = np.abs(rows[wild]).max(axis=1, keepdims=True)
        rows[wild] /= np.where(largest > 0, largest, 1.0)
        squares[wild] = np.einsum("ij,ij->i", rows[wild], rows[wild])
    return rows, np.sqrt(squares)


def _wrong(what: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_BACKEND_OUTPUT", f"The reranker answered wrongly: {what}")
