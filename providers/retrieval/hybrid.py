"""Several searches at once, fused into one list."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

from ditto_tasks.contracts.base import changed, is_number, trusted
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.json_value import shown
from ditto_tasks.contracts.retrieval import (
    DEFAULT_CANDIDATE_LIMIT,
    DEFAULT_RRF_K,
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSearchProvider,
    checked_output,
)
from providers.retrieval.explain import asks_why, default_identity, explained_fusion, without_explain
from providers.retrieval.fusion import Branch, Contribution, Fused, min_max_scores, reciprocal_ranks
from providers.retrieval.limits import checked_integer, checked_limit, first_given

__all__ = ["Fusion", "HybridBranch", "HybridSearch", "Key", "only_returned"]

_SEARCHES_AT_ONCE = 16  # whose branches have threads of their own; more wait for these

Fusion = Literal["rrf", "min-max"]
Key = Callable[[RetrievalCandidate], str | None]


@dataclass(frozen=True, slots=True)
class HybridBranch:
    """One search of a hybrid one.

    Attributes:
        strategy: what the provider is asked for.
        weight: of what it adds; finite, positive, as is the sum of all branches' weights.
    """

    provider: RetrievalSearchProvider
    strategy: str
    weight: float = 1.0


@dataclass(slots=True)
class _Pool:
    """What a branch found, and by which identities."""

    output: RetrievalSearchOutput
    identities: list[str]

    def ranked(self) -> list[tuple[str, float | None]]:
        return [
            (identity, candidate.score)
            for identity, candidate in zip(self.identities, self.output.candidates, strict=True)
        ]


class HybridSearch:
    """Asks all branches at once, waits for all of them, and fuses what they found.

    A candidate keeps the content, source and metadata of the branch that saw it first; its score is the fused
    one. `metadata.fusion` of the output has the contributions of each branch by identity.

    Args:
        branches: `HybridBranch`, or dicts with its fields; at least one.
        candidate_limit: how many candidates each branch is asked for, at least, never a cap; None:
            `hybrid.candidateLimit` of the call's defaults, then 100.
        rrf_k: the k of reciprocal rank fusion; None: `hybrid.rrfK` of the call's defaults, then 60.
        key: gives the identity by which candidates of several branches are one; None, or where it gives None:
            the source's target, else the request's, with the id, else the source's ref.
        fusion: `rrf` adds weight / (k + rank); `min-max` adds scores that are brought to 0 to 1 within their
            branch, times its weight.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for no branch, a blank strategy, a weight that is not finite
            and positive, or an unknown fusion.
    """

    explains = True

    def __init__(
        self,
        branches: Sequence[HybridBranch | Mapping[str, Any]],
        *,
        candidate_limit: int | None = None,
        rrf_k: int | None = None,
        key: Key | None = None,
        fusion: Fusion = "rrf",
    ) -> None:
        self._branches = tuple(_checked_branch(branch) for branch in branches)
        if not self._branches:
            raise RetrievalError("RETRIEVAL_INVALID_INPUT", "a hybrid search needs at least one branch")
        if not is_number(sum(branch.weight for branch in self._branches)):
            raise RetrievalError("RETRIEVAL_INVALID_INPUT", "the weights add up to more than any number")
        if fusion not in ("rrf", "min-max"):
            raise RetrievalError("RETRIEVAL_INVALID_INPUT", f"fusion is {fusion!r:.80}: use rrf or min-max")
        self._candidate_limit = candidate_limit
        self._rrf_k = rrf_k
        self._key = key
        self._fusion = fusion
        self._threads = _Threads(_SEARCHES_AT_ONCE * len(self._branches))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads once they are done; the providers stay open. A later search makes new ones."""
        self._threads.close()

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        """Search; with the option `explain` the output says how each rank came about.

        Raises:
            RetrievalError: of the first branch that failed, in the order declared, once all have ended;
                RETRIEVAL_INVALID_BACKEND_OUTPUT for a candidate without identity.
        """
        limit = call.limit(request)
        default = first_given(call.hybrid.candidate_limit, DEFAULT_CANDIDATE_LIMIT)
        floor = checked_limit("candidate_limit", first_given(self._candidate_limit, default))
        k = checked_integer("rrf_k", first_given(self._rrf_k, call.hybrid.rrf_k, DEFAULT_RRF_K))
        explains = asks_why(request)
        asked = changed(without_explain(request), limit=max(limit, floor))
        call.check()
        pools = self._ask(asked, call)
        fused = self._fuse(pools, k, None if explains else limit)
        fields: dict[str, Any] = {
            "candidates": _candidates(fused[:limit], pools),
            "target": request.target,
            "metadata": {"fusion": self._told(fused[:limit], pools, k)},
        }
        if request.strategy is not None:
            fields["strategy"] = request.strategy
        if explains:
            strategies = [branch.strategy for branch in self._branches]
            fields["metadata"]["explanation"] = explained_fusion(fused, limit, strategies, _repeated(pools))
        return trusted(RetrievalSearchOutput, fields)

    def _ask(self, request: RetrievalSearchInput, call: RetrievalCall) -> list[_Pool]:
        """Ask all branches; the first in this thread, the others each in one of their own."""
        first, *others = self._branches
        futures: list[Future[_Pool]] = []
        try:
            futures.extend(self._threads.submit(self._pool, branch, request, call) for branch in others)
            pool = self._pool(first, request, call)
        finally:
            wait(futures)
        return [pool, *(future.result() for future in futures)]

    def _pool(self, branch: HybridBranch, request: RetrievalSearchInput, call: RetrievalCall) -> _Pool:
        asked = changed(request, strategy=branch.strategy)
        output = checked_output(branch.provider.search(asked, call), asked, call.limit(asked))
        return _Pool(output, [self._identity(candidate, output) for candidate in output.candidates])

    def _identity(self, candidate: RetrievalCandidate, output: RetrievalSearchOutput) -> str:
        identity = self._key(candidate) if self._key else None
        if identity is None:
            identity = default_identity(candidate, output.target.name)
        if not identity or not isinstance(identity, str):
            raise RetrievalError(
                "RETRIEVAL_INVALID_BACKEND_OUTPUT",
                "A candidate has neither id nor source.ref: give the hybrid search a `key`",
            )
        return identity

    def _fuse(self, pools: Sequence[_Pool], k: int, limit: int | None) -> list[Fused[str]]:
        branches = [
            Branch(pool.ranked(), branch.weight) for pool, branch in zip(pools, self._branches, strict=True)
        ]
        if self._fusion == "min-max":
            return min_max_scores(branches, limit=limit)
        return reciprocal_ranks(branches, k=k, limit=limit)

    def _told(self, fused: Sequence[Fused[str]], pools: Sequence[_Pool], k: int) -> dict[str, Any]:
        told: dict[str, Any] = {"method": self._fusion} | ({"k": k} if self._fusion == "rrf" else {})
        told["contributions"] = {
            one.identity: [self._contribution(part, pools) for part in one.contributions] for one in fused
        }
        told["branches"] = [pool.output.metadata or {} for pool in pools]
        return told

    def _contribution(self, part: Contribution, pools: Sequence[_Pool]) -> dict[str, Any]:
        candidate = pools[part.branch].output.candidates[part.rank - 1]
        told: dict[str, Any] = {
            "strategy": self._branches[part.branch].strategy,
            "rank": part.rank,
            "weight": part.weight,
        }
        if candidate.source is not None:
            told["source"] = candidate.source.to_wire()
        if candidate.metadata is not None:
            told["metadata"] = candidate.metadata
        if candidate.score is not None:
            told["score"] = candidate.score
        return told


class _Threads:
    """The threads of one provider; a forked child has its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._pid = 0

    def submit(self, function: Callable[..., _Pool], *arguments: Any) -> Future[_Pool]:
        with self._lock:
            if self._executor is None or self._pid != os.getpid():
                self._executor = ThreadPoolExecutor(self._most, thread_name_prefix="ditto-hybrid")
                self._pid = os.getpid()
            return self._executor.submit(function, *arguments)

    def close(self) -> None:
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None and self._pid == os.getpid():
            executor.shutdown()


def _checked_branch(branch: HybridBranch | Mapping[str, Any]) -> HybridBranch:
    if isinstance(branch, Mapping):
        branch = HybridBranch(
            branch.get("provider"),  # type: ignore[arg-type]  # checked below
            branch.get("strategy", ""),
            branch.get("weight", 1.0),
        )
    if not callable(getattr(getattr(branch, "provider", None), "search", None)):
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", "each branch needs a `provider` that can search")
    if not isinstance(branch.strategy, str) or not branch.strategy.strip():
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", "each branch needs a `strategy` that is not blank")
    weight = branch.weight
    if not is_number(weight) or weight <= 0:
        raise RetrievalError(
            "RETRIEVAL_INVALID_INPUT", f"the weight {shown(weight, 80)} must be a finite, positive number"
        )
    return branch


def _candidates(fused: Sequence[Fused[str]], pools: Sequence[_Pool]) -> tuple[RetrievalCandidate, ...]:
    """Return each candidate as the first branch that found it has it, with the fused score."""
    firsts = [one.contributions[0] for one in fused]
    found = [pools[first.branch].output.candidates[first.rank - 1] for first in firsts]
    return tuple(changed(candidate, score=one.score) for candidate, one in zip(found, fused, strict=True))


def only_returned(output: RetrievalSearchOutput) -> RetrievalSearchOutput:
    """Leave out of what is told of a fusion the candidates that a reranking has cut off.

    Only for a hybrid search that names its candidates by source and id.
    """
    metadata = output.metadata or {}
    told = metadata.get("fusion")
    if told is None:
        return output
    names = [default_identity(candidate, output.target.name) for candidate in output.candidates]
    kept = {name: told["contributions"][name] for name in names if name in told["contributions"]}
    return changed(output, metadata=metadata | {"fusion": told | {"contributions": kept}})


def _repeated(pools: Sequence[_Pool]) -> list[tuple[int, int, str]]:
    """List branch, rank and identity of each place whose identity has an earlier one in its branch."""
    found = []
    for branch, pool in enumerate(pools):
        seen: set[str] = set()
        for rank, identity in enumerate(pool.identities, 1):
            if identity in seen:
                found.append((branch, rank, identity))
            seen.add(identity)
    return found
