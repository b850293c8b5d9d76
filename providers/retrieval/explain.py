"""Why a candidate is where it is: asked for with the option `explain`, told in the output's metadata.

`metadata.explanation` holds `candidates`, an entry for each in their order, and `dropped`, with reasons. An
entry has the candidate's identity, rank and score; after a fusion `branches`, whose contributions add up to
that score; after a reranking `before`, its rank and score in the pool.
"""

from collections.abc import Sequence
from typing import Any

from ditto_tasks.contracts.base import changed, trusted
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.contracts.retrieval import (
    Ranked,
    RetrievalCandidate,
    RetrievalSearchInput,
    RetrievalSearchOutput,
)
from providers.retrieval.fusion import Fused

__all__ = ["asks_why", "default_identity", "explained_fusion", "explained_reranking", "without_explain"]

_OPTION = "explain"


def asks_why(request: RetrievalSearchInput) -> bool:
    """Tell whether a request wants an explanation.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT when the option is not true or false.
    """
    wanted = (request.options or {}).get(_OPTION, False)
    if not isinstance(wanted, bool):
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", "options.explain must be true or false")
    return wanted


def without_explain(request: RetrievalSearchInput) -> RetrievalSearchInput:
    """Take the option out of a request, for a backend that does not know it."""
    if not request.options or _OPTION not in request.options:
        return request
    rest = {name: value for name, value in request.options.items() if name != _OPTION}
    if rest:
        return changed(request, options=rest)
    fields = {name: getattr(request, name) for name in request.model_fields_set if name != "options"}
    return trusted(RetrievalSearchInput, fields)


def default_identity(candidate: RetrievalCandidate, target: str) -> str | None:
    """Name a candidate by its source's target and its id, or ref; None when it has neither."""
    source = candidate.source
    name = candidate.id or (source.ref if source else None)
    if name is None:
        return None
    return encode_json([(source.target if source else None) or target, name]).decode()


def explained_fusion(
    fused: Sequence[Fused[str]],
    limit: int,
    strategies: Sequence[str],
    repeated: Sequence[tuple[int, int, str]],
) -> dict[str, Any]:
    """Explain a fusion.

    Args:
        fused: all candidates, best first.
        limit: how many of them were returned.
        strategies: of the branches.
        repeated: branch, rank and identity of each place that an identity had already in its branch.
    """
    entries = [_fused_entry(rank, candidate, strategies) for rank, candidate in enumerate(fused, 1)]
    dropped = [{**entry, "reason": "over the limit"} for entry in entries[limit:]]
    dropped += [
        {
            "identity": identity,
            "strategy": strategies[branch],
            "rank": rank,
            "reason": "repeated in its branch",
        }
        for branch, rank, identity in repeated
    ]
    return {"candidates": entries[:limit], "dropped": dropped}


def explained_reranking(
    found: RetrievalSearchOutput, order: Sequence[Ranked], is_explained: bool
) -> dict[str, Any]:
    """Return the metadata of a reranked output; what the search explained, if it did, is carried on."""
    metadata = dict(found.metadata or {})
    explained = metadata.get("explanation", {}) if is_explained else {}
    pool = [_pool_entry(found, index, explained) for index in range(len(found.candidates))]
    candidates = [_reranked_entry(pool[place.index], rank, place) for rank, place in enumerate(order, 1)]
    kept = {place.index for place in order}
    dropped = [
        {**entry, "reason": "reranked below the limit"}
        for index, entry in enumerate(pool)
        if index not in kept
    ]
    metadata["explanation"] = {"candidates": candidates, "dropped": dropped + explained.get("dropped", [])}
    return metadata


def _fused_entry(rank: int, candidate: Fused[str], strategies: Sequence[str]) -> dict[str, Any]:
    branches = [
        {
            "strategy": strategies[part.branch],
            "rank": part.rank,
            **({} if part.score is None else {"score": part.score}),
            "weight": part.weight,
            "contribution": part.value,
        }
        for part in candidate.contributions
    ]
    return {"identity": candidate.identity, "rank": rank, "score": candidate.score, "branches": branches}


def _pool_entry(found: RetrievalSearchOutput, index: int, explained: dict[str, Any]) -> dict[str, Any]:
    entries = explained.get("candidates") or []
    if index < len(entries):
        return dict(entries[index])
    candidate = found.candidates[index]
    identity = default_identity(candidate, found.target.name)
    return {
        **({} if identity is None else {"identity": identity}),
        "rank": index + 1,
        **({} if candidate.score is None else {"score": candidate.score}),
    }


def _reranked_entry(entry: dict[str, Any], rank: int, place: Ranked) -> dict[str, Any]:
    before = {name: entry[name] for name in ("rank", "score") if name in entry}
    score = before.get("score") if place.score is None else place.score
    after = {"rank": rank} | ({} if score is None else {"score": score})
    return {**entry, **after, "before": before}
