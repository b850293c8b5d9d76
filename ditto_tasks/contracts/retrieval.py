"""RETRIEVAL: candidates found by relevance in a named target. One node over four ports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import Field, ValidationError
from pydantic_core import core_schema

from ditto_tasks.contracts.base import (
    Contract,
    CoreCheck,
    Integer,
    Limit,
    ListOf,
    Maybe,
    Number,
    describe,
    expected,
    trusted,
)
from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.json_value import JsonObject, JsonValue

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "DEFAULT_CANDIDATE_LIMIT",
    "DEFAULT_RRF_K",
    "DEFAULT_SEARCH_LIMIT",
    "MAX_BATCH_SIZE",
    "MAX_SAFE_INTEGER",
    "NO_RETRIEVAL_CALL",
    "EmbeddingDefaults",
    "EmbeddingProvider",
    "HybridDefaults",
    "IdentifiedEmbedding",
    "Name",
    "Positive",
    "Purpose",
    "Ranked",
    "RerankDefaults",
    "RerankProvider",
    "RetrievalCall",
    "RetrievalCandidate",
    "RetrievalDefaults",
    "RetrievalProviderRegistry",
    "RetrievalQuery",
    "RetrievalSearchInput",
    "RetrievalSearchOutput",
    "RetrievalSearchProvider",
    "RetrievalSource",
    "RetrievalTarget",
    "checked_output",
    "checked_request",
]

DEFAULT_SEARCH_LIMIT = 10
DEFAULT_CANDIDATE_LIMIT = 100
DEFAULT_RRF_K = 60
DEFAULT_BATCH_SIZE = 64
MAX_BATCH_SIZE = 2048
MAX_SAFE_INTEGER = 2**53 - 1  # the largest that every JSON reader takes exactly

Purpose = Literal["query", "document"]
"""What a text is embedded for; some models make another vector for each."""


_NOT_BLANK = core_schema.str_schema(strict=True, pattern=r"[^\s\x1c-\x1f]")  # a character that strip() leaves

Name = Annotated[str, CoreCheck(_NOT_BLANK, "blank", "must be text that is not blank")]
"""A string with more in it than white space."""

Positive = Annotated[Integer, Field(ge=1, le=MAX_SAFE_INTEGER)]


class EmbeddingDefaults(Contract):
    """How texts are embedded where a provider's constructor does not say."""

    batch_size: Maybe[Annotated[Integer, Field(ge=1, le=MAX_BATCH_SIZE)]] = None
    dimensions: Maybe[Positive] = None


class HybridDefaults(Contract):
    """How branches are asked and fused where a provider's constructor does not say."""

    candidate_limit: Maybe[Limit] = None
    rrf_k: Maybe[Positive] = None


class RerankDefaults(Contract):
    """How many candidates are reranked, at least, where a provider's constructor does not say."""

    candidate_limit: Maybe[Limit] = None


class RetrievalDefaults(Contract):
    """Numbers for calls and providers that name none; what is absent falls to the next, then the constant."""

    search_limit: Maybe[Limit] = None
    embedding: Maybe[EmbeddingDefaults] = None
    hybrid: Maybe[HybridDefaults] = None
    rerank: Maybe[RerankDefaults] = None

    def over(self, lower: "RetrievalDefaults") -> "RetrievalDefaults":
        """Lay these over `lower`, field by field, within the sections, too."""
        return _laid_over(self, lower)


_NO_DEFAULTS = trusted(RetrievalDefaults, {})


class RetrievalQuery(Contract):
    """What is looked for: text, a vector or a structure; the provider decides what it understands."""

    content: JsonValue
    metadata: Maybe[JsonObject] = None


class RetrievalTarget(Contract):
    """The corpus that is asked, by its logical name; a namespace narrows it and authorises nothing."""

    name: Name
    type: Maybe[Name] = None
    namespace: Maybe[Name] = None
    metadata: Maybe[JsonObject] = None


class RetrievalSource(Contract):
    """Where a candidate comes from."""

    target: Maybe[Name] = None
    ref: Maybe[Name] = None


class RetrievalCandidate(Contract):
    """Something found; only its provider knows the score's scale, and order is relevance."""

    id: Maybe[Name] = None
    content: JsonValue
    score: Maybe[Number] = None
    source: Maybe[RetrievalSource] = None
    metadata: Maybe[JsonObject] = None


class RetrievalSearchInput(Contract):
    """What RETRIEVAL.SEARCH takes."""

    query: RetrievalQuery
    target: RetrievalTarget
    strategy: Maybe[Name] = None  # None: the target's default
    filter: Maybe[JsonObject] = None
    limit: Maybe[Limit] = None  # None: the worker's default, then ditto.yaml's, then 10
    options: Maybe[JsonObject] = None


class RetrievalSearchOutput(Contract):
    """The candidates, the most relevant first; ids may be absent, and may repeat across sources."""

    candidates: ListOf[RetrievalCandidate]
    strategy: Maybe[Name] = None
    target: RetrievalTarget
    metadata: Maybe[JsonObject] = None


class Ranked(Contract):
    """One place in a reranker's order.

    Attributes:
        index: of the candidate in the list that the reranker was given, from 0.
        score: the reranker's own; absent: the candidate keeps the one it had.
    """

    index: Annotated[Integer, Field(ge=0)]
    score: Maybe[Number] = None


@dataclass(frozen=True, slots=True)
class RetrievalCall(Call):
    """A call with the numbers that providers use where neither request nor constructor gives one."""

    defaults: RetrievalDefaults = _NO_DEFAULTS

    @classmethod
    def of(cls, call: Call, defaults: RetrievalDefaults | None = None) -> "RetrievalCall":
        """Make one of any call; without `defaults` it keeps those that it has."""
        known = call.defaults if isinstance(call, RetrievalCall) else _NO_DEFAULTS
        return cls(
            call.execution_id,
            call.cancel,
            call.deadline,
            call.runtime,
            known if defaults is None else defaults,
        )

    @property
    def embedding(self) -> EmbeddingDefaults:
        """The numbers for embedding."""
        return self.defaults.embedding or EmbeddingDefaults()

    @property
    def hybrid(self) -> HybridDefaults:
        """The numbers for hybrid search."""
        return self.defaults.hybrid or HybridDefaults()

    @property
    def rerank(self) -> RerankDefaults:
        """The numbers for reranking."""
        return self.defaults.rerank or RerankDefaults()

    def limit(self, request: RetrievalSearchInput) -> int:
        """Return how many candidates a request may get: its own limit, else the default, else 10."""
        return request.limit or self.defaults.search_limit or DEFAULT_SEARCH_LIMIT


NO_RETRIEVAL_CALL = RetrievalCall()  # for calls made directly: never cancelled, no deadline, no defaults


class RetrievalSearchProvider(Protocol):
    """Finds candidates. May return the contract or its wire form; both are checked alike.

    Called from many threads at once.
    """

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput | Mapping[str, Any]:
        """Return at most `request.limit` candidates of the request's target, the most relevant first.

        Raises:
            RetrievalError: with one of the codes of `docs/retrieval.md`; its message is public.
            InvocationCancelled, DeadlineExceeded: `call` says that the answer is not wanted any more.
        """
        ...


class RetrievalProviderRegistry(Protocol):
    """Knows which provider serves which target and strategy."""

    def resolve(self, target: RetrievalTarget, strategy: str | None = None) -> RetrievalSearchProvider:
        """Return the provider; without a strategy, that of the target's default.

        Raises:
            RetrievalError: RETRIEVAL_TARGET_NOT_FOUND or RETRIEVAL_STRATEGY_UNSUPPORTED.
        """
        ...


class EmbeddingProvider(Protocol):
    """Turns contents into vectors. Called from many threads at once."""

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        """Return one vector a content, in their order, all of one length; an array of shape (n, d) is one.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a content that it cannot embed.
        """
        ...


@runtime_checkable
class IdentifiedEmbedding(EmbeddingProvider, Protocol):
    """An embedding that says which model it is; an index opened with it holds vectors of no other."""

    @property
    def identity(self) -> str:
        """Names model, version and how long texts are treated: with one identity, one vector for a text."""
        ...

    @property
    def dimensions(self) -> int | None:
        """The length of its vectors; None: known once it has made one."""
        ...


class RerankProvider(Protocol):
    """Orders candidates anew. Called from many threads at once."""

    def rank(
        self,
        query: RetrievalQuery,
        candidates: Sequence[RetrievalCandidate],
        limit: int,
        call: RetrievalCall = NO_RETRIEVAL_CALL,
    ) -> Sequence[Ranked | Mapping[str, Any]]:
        """Return exactly min(limit, len(candidates)) places, the most relevant first, no index twice."""
        ...


def checked_request(input: Any) -> RetrievalSearchInput:
    """Read a request, in wire form or as the contract.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT, naming the place and the value.
    """
    try:
        return RetrievalSearchInput.from_wire(input)
    except ValidationError as error:
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", describe(error)) from None


def checked_output(output: Any, request: RetrievalSearchInput, limit: int) -> RetrievalSearchOutput:
    """Read what a provider answered, and hold it against what it was asked.

    Candidates keep their order, scores and ids. The target is the request's, the strategy the provider's or,
    where it names none, the request's.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_BACKEND_OUTPUT, naming the place and what was due there, no content.
    """
    try:
        answer = RetrievalSearchOutput.from_wire(output)
    except ValidationError as error:
        raise _invalid_output(expected(error)) from None
    asked, told = request.target, answer.target
    if (told.name, told.type, told.namespace) != (asked.name, asked.type, asked.namespace):
        raise _invalid_output("another target than the one that was asked")
    if None not in (answer.strategy, request.strategy) and answer.strategy != request.strategy:
        raise _invalid_output("another strategy than the one that was asked for")
    if len(answer.candidates) > limit:
        raise _invalid_output(f"{len(answer.candidates)} candidates where at most {limit} were asked for")
    fields = {"candidates": answer.candidates, "target": asked.model_copy(deep=True)}
    strategy = answer.strategy or request.strategy
    if strategy is not None:
        fields["strategy"] = strategy
    if answer.metadata is not None:
        fields["metadata"] = answer.metadata
    return trusted(RetrievalSearchOutput, fields)


def _invalid_output(what: str) -> RetrievalError:
    return RetrievalError(
        "RETRIEVAL_INVALID_BACKEND_OUTPUT", f"The retrieval provider answered wrongly: {what}"
    )


C = TypeVar("C", bound=Contract)


def _laid_over(upper: C, lower: C) -> C:
    fields = {name: getattr(lower, name) for name in lower.model_fields_set}
    for name in upper.model_fields_set:
        value, below = getattr(upper, name), fields.get(name)
        fields[name] = _laid_over(value, below) if isinstance(value, Contract) and below else value
    return trusted(type(upper), fields)
