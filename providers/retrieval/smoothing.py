"""Smoothing: candidates that are alike lend each other their scores."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.index import VectorIndex
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    Ranked,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalQuery,
)

__all__ = ["NEIGHBOURS", "POOL", "SHARE", "Smoothing", "smoothed_scores"]

POOL = 50  # candidates; in a larger one, chance likenesses outweigh

NEIGHBOURS = 5  # few enough to be about the same thing in a pool of fifty
SHARE = 0.5

Floats = NDArray[np.floating[Any]]


def smoothed_scores(
    scores: Floats, vectors: Floats, *, share: float = SHARE, neighbours: int = NEIGHBOURS
) -> NDArray[np.float64]:
    """Replace a share of each candidate's score by the average of those that it is most like.

    What is relevant to a query is like other relevant things: a candidate among well-scored ones rises, one
    that was found for a word alone falls.

    Args:
        scores: shape (n,), of one scale, as a fusion gives them; higher is better.
        vectors: shape (n, d), the candidates' embeddings, rows of length 1 or zero.
        share: 0 to 1; 0 leaves the scores as they are.
        neighbours: how many others are averaged, at least 1, weighted by their cosine similarity; those that
            are not alike at all do not count. Of equally similar ones those that come first are taken.

    Returns:
        Shape (n,), in the order given. A candidate that is like no other keeps its score.

    Source: Diaz, "Regularizing ad hoc retrieval scores", CIKM 2005, doi:10.1145/1099554.1099722.
    """
    own = scores.astype(np.float64)
    doubles = vectors.astype(np.float64)
    # not `@`: the threads it shares so small a product with wait for each other where all cores are busy
    similarity = np.clip(np.einsum("ij,kj->ik", doubles, doubles), 0.0, 1.0)
    np.fill_diagonal(similarity, 0.0)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :neighbours]
    weights = np.take_along_axis(similarity, nearest, axis=1)
    total = weights.sum(axis=1)
    average = np.divide((weights * own[nearest]).sum(axis=1), total, out=own.copy(), where=total > 0)
    return np.asarray((1.0 - share) * own + share * average)


class Smoothing:
    """A reranker by `smoothed_scores`, over the vectors that an index has of the candidates.

    The best `pool` are ordered anew among themselves, and the others follow as they were. A candidate without
    a vector, one that was just written, is like no other.

    Args:
        index: stays the caller's to close.
        pool: how many of the candidates lend each other scores, from the first on.
    """

    def __init__(self, index: VectorIndex, *, pool: int = POOL) -> None:
        self._index = index
        self._pool = pool

    def rank(
        self,
        query: RetrievalQuery,
        candidates: Sequence[RetrievalCandidate],
        limit: int,
        call: RetrievalCall = NO_RETRIEVAL_CALL,
    ) -> list[Ranked]:
        """Return the `limit` best, ties in the order given; scores stay on the scale of the candidates'."""
        pool = candidates[: self._pool]
        scores = np.array([candidate.score or 0.0 for candidate in pool])
        smoothed = smoothed_scores(scores, self._vectors(pool, call))
        order = np.argsort(-smoothed, kind="stable")
        best = zip(order.tolist(), smoothed[order].tolist(), strict=True)
        ranked = [trusted(Ranked, {"index": index, "score": score}) for index, score in best]
        rest = (trusted(Ranked, {"index": place}) for place in range(len(pool), len(candidates)))
        return [*ranked, *rest][:limit]

    def _vectors(self, candidates: Sequence[RetrievalCandidate], call: RetrievalCall) -> Floats:
        known = self._index.vectors([candidate.id for candidate in candidates if candidate.id], call)
        unknown = np.zeros(self._index.manifest.dimensions)
        return np.array([known.get(candidate.id or "", unknown) for candidate in candidates], np.float64)
