"""Smoothing: candidates that are alike lend each other their scores; a pure function over arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NEIGHBOURS", "SHARE", "smoothed_scores"]

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
    similarity = np.clip(vectors.astype(np.float64) @ vectors.T, 0.0, 1.0)
    np.fill_diagonal(similarity, 0.0)
    nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :neighbours]
    weights = np.take_along_axis(similarity, nearest, axis=1)
    total = weights.sum(axis=1)
    average = np.divide((weights * own[nearest]).sum(axis=1), total, out=own.copy(), where=total > 0)
    return np.asarray((1.0 - share) * own + share * average)
