"""Fusion: several ranked lists become one, and each candidate says where its score comes from.

Pure functions over plain values. Scores of different branches are never added: what is added is made of ranks
(`reciprocal_ranks`), or of scores brought to one scale within their branch (`min_max_scores`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Generic, NamedTuple, TypeVar

__all__ = ["RRF_K", "Branch", "Contribution", "Fused", "min_max_scores", "reciprocal_ranks"]

RRF_K = 60.0  # of Cormack et al.; smaller sets the first few ranks further apart

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Branch(Generic[T]):
    """What one search found.

    Attributes:
        ranked: identities with their scores, the best first; a score is higher for a better candidate, on a
            scale of the branch's own, or None. Of an identity that comes again only the first place counts;
            the others keep their ranks.
        weight: finite, positive.
    """

    ranked: Sequence[tuple[T, float | None]]
    weight: float = 1.0


class Contribution(NamedTuple):  # a tuple: twenty thousand are made in a few milliseconds
    """What a branch says of a candidate.

    Attributes:
        branch: index of the branch, from 0.
        rank: place in it, from 1.
        score: the branch's own.
        weight: the branch's.
        value: what it adds to the fused score.
    """

    branch: int
    rank: int
    score: float | None
    weight: float
    value: float


class Fused(NamedTuple, Generic[T]):
    """A candidate of all branches; `score` is the sum of its contributions' values, in branch order."""

    identity: T
    score: float
    contributions: tuple[Contribution, ...]


def reciprocal_ranks(
    branches: Sequence[Branch[T]], *, k: float = RRF_K, limit: int | None = None
) -> list[Fused[T]]:
    """Fuse by weighted reciprocal ranks: the sum of weight / (k + rank), ranks from 1.

    Args:
        k: positive.
        limit: the most to return; None: all.

    Returns:
        The best first; equal scores in the order first seen: of branches, then of ranks.

    Source: Cormack, Clarke, Büttcher, SIGIR 2009, doi:10.1145/1571941.1572114.
    """
    ranks = [_first_ranks(branch) for branch in branches]
    values = [
        {identity: branch.weight / (k + rank) for identity, rank in first.items()}
        for branch, first in zip(branches, ranks, strict=True)
    ]
    return _fused(branches, ranks, values, limit)


def min_max_scores(branches: Sequence[Branch[T]], *, limit: int | None = None) -> list[Fused[T]]:
    """Fuse by weighted scores: the sum of weight * (score - lowest) / (highest - lowest) of each branch.

    A branch gives its best candidate the whole of its weight, its last one nothing; candidates that it did
    not find get nothing from it, either. Where all scores of a branch are equal, as with a single candidate,
    each gets the whole weight. A branch in which a score is missing or not finite goes by its order instead:
    evenly from the whole weight for the first candidate to nothing for the last.

    Returns:
        As `reciprocal_ranks`.

    Source: Bruch, Gai, Ingber, ACM TOIS 2023, doi:10.1145/3596512.
    """
    ranks = [_first_ranks(branch) for branch in branches]
    values = []
    for branch, first in zip(branches, ranks, strict=True):
        scores = [branch.ranked[rank - 1][1] for rank in first.values()]
        values.append(dict(zip(first, _scaled(scores, branch.weight), strict=True)))
    return _fused(branches, ranks, values, limit)


def _scaled(scores: Sequence[float | None], weight: float) -> list[float]:
    """Scale scores, given in their branch's order, to 0 for the lowest and `weight` for the highest."""
    known = [score for score in scores if score is not None and isfinite(score)]
    lowest, highest = min(known, default=0.0), max(known, default=0.0)
    if len(known) < len(scores) or not isfinite(highest - lowest):
        known = [-float(place) for place in range(len(scores))]
        lowest, highest = 1.0 - len(scores), 0.0
    span = highest - lowest
    if not span:
        return [weight] * len(known)
    return [weight * ((score - lowest) / span) for score in known]


def _fused(
    branches: Sequence[Branch[T]],
    ranks: Sequence[dict[T, int]],
    values: Sequence[dict[T, float]],
    limit: int | None,
) -> list[Fused[T]]:
    """Add the values up and tell what they are made of; both dicts are in the order of their branch."""
    totals: dict[T, float] = {}  # in the order first seen, which sorting keeps among equals
    for added in values:
        for identity, value in added.items():
            totals[identity] = totals.get(identity, 0.0) + value
    best = sorted(totals, key=totals.__getitem__, reverse=True)[:limit]
    fused = []
    for identity in best:
        parts = []
        for number, branch in enumerate(branches):
            if identity in ranks[number]:
                rank = ranks[number][identity]
                score = branch.ranked[rank - 1][1]
                parts.append(Contribution(number, rank, score, branch.weight, values[number][identity]))
        fused.append(Fused(identity, totals[identity], tuple(parts)))
    return fused


def _first_ranks(branch: Branch[T]) -> dict[T, int]:
    """Give the rank at which each identity comes first, in their order."""
    names = [identity for identity, _ in branch.ranked]
    last = range(len(names), 0, -1)
    first = dict.fromkeys(names, 0)
    first.update(zip(reversed(names), last, strict=True))  # of several ranks the one written last stays
    return first
