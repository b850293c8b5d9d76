"""Between MEMORY and RETRIEVAL, and from RETRIEVAL to contexts: searches of one as searches of the other."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ditto_tasks.contracts.base import MAX_LIMIT, changed, describe, expected, trusted
from ditto_tasks.contracts.call import NO_CALL, Call, Invoker
from ditto_tasks.contracts.errors import ContextError, MemoryNodeError, RetrievalError
from ditto_tasks.contracts.json_value import NotJson, canonical_json, strict_json
from ditto_tasks.contracts.memory import MemoryHit, MemoryItem, MemorySearchInput, MemorySearchProvider
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalDefaults,
    RetrievalQuery,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSearchProvider,
    RetrievalSource,
    RetrievalTarget,
    checked_output,
    checked_request,
)
from providers.retrieval.namespaces import namespaced_filter

__all__ = [
    "MemoryAsRetrieval",
    "RemoteRetrievalSearch",
    "RetrievalAsMemorySearch",
    "map_context_candidates",
    "map_memory_candidates",
    "namespace_as_filter",
]

MapInput = Callable[[RetrievalSearchInput], MemorySearchInput | Mapping[str, Any]]
MapOutput = Callable[[RetrievalSearchOutput], Sequence[MemoryHit | Mapping[str, Any]]]

_NODE = "RETRIEVAL.SEARCH"


class MemoryAsRetrieval:
    """A memory search as a retrieval search: a candidate's content is the whole record.

    Args:
        search: stays the caller's to close.
        map_input: makes the memory search of a request; needed for requests whose target has a namespace. See
            `namespace_as_filter`.
    """

    def __init__(self, search: MemorySearchProvider, map_input: MapInput | None = None) -> None:
        self._search = search
        self._map_input = map_input

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        """Search.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a namespace without `map_input` or what the memory
                search refuses, RETRIEVAL_BACKEND_ERROR for its other failures,
                RETRIEVAL_INVALID_BACKEND_OUTPUT for a hit that does not hold a whole record.
        """
        asked = self._asked(changed(request, limit=call.limit(request)))
        try:
            hits = self._search.search(asked, call)
        except MemoryNodeError as error:
            raise _translated(error) from None
        if not isinstance(hits, list | tuple):
            raise _invalid(f"a {type(hits).__name__} where a list was due")
        fields: dict[str, Any] = {
            "candidates": tuple(_candidate(_hit(hit), request.target.name) for hit in hits),
            "target": request.target,
        }
        if request.strategy is not None:
            fields["strategy"] = request.strategy
        return trusted(RetrievalSearchOutput, fields)

    def _asked(self, request: RetrievalSearchInput) -> MemorySearchInput:
        if self._map_input is not None:
            return _memory_request(self._map_input(request))
        if request.target.namespace is not None:
            raise RetrievalError(
                "RETRIEVAL_INVALID_INPUT",
                "target.namespace means nothing to this search: give it a map_input that does",
            )
        return _memory_request(_memory_fields(request))


def namespace_as_filter(request: RetrievalSearchInput) -> dict[str, Any]:
    """Make a memory search of a request, its target's namespace as the filter `namespace`.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT when the filter names another one.
    """
    if request.target.namespace is None:
        return _memory_fields(request)
    return {**_memory_fields(request), "filter": namespaced_filter(request)}


def map_memory_candidates(output: RetrievalSearchOutput | Mapping[str, Any]) -> list[MemoryHit]:
    """Make memory hits of candidates whose content is a whole record.

    A hit's metadata is the candidate's, with its source, if any, as `source`.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_BACKEND_OUTPUT when a content is no record, or the candidate's id
            another than the record's.
    """
    try:
        read = RetrievalSearchOutput.from_wire(output)
    except ValidationError as error:
        raise _invalid(expected(error)) from None
    return [_memory_hit(candidate) for candidate in read.candidates]


class RetrievalAsMemorySearch:
    """A retrieval search within MEMORY, in this process.

    Args:
        provider: stays the caller's to close.
        target: what is searched, as `RetrievalTarget` or its wire form; copied.
        strategy: for requests that name none.
        defaults: numbers for the provider, as `RetrievalDefaults` or its wire form; copied.
        map_output: makes hits of the output; None: `map_memory_candidates`.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for a target or default that is none.
    """

    def __init__(
        self,
        provider: RetrievalSearchProvider,
        target: RetrievalTarget | Mapping[str, Any],
        *,
        strategy: str | None = None,
        defaults: RetrievalDefaults | Mapping[str, Any] | None = None,
        map_output: MapOutput | None = None,
    ) -> None:
        self._provider = provider
        self._target = _checked(RetrievalTarget, target, "target")
        self._strategy = strategy
        self._defaults = _checked(RetrievalDefaults, defaults if defaults is not None else {}, "defaults")
        self._map_output = map_output or map_memory_candidates

    def search(
        self, request: MemorySearchInput, call: Call = NO_CALL
    ) -> Sequence[MemoryHit | Mapping[str, Any]]:
        """Search; the request's strategy comes before the constructor's."""
        search_call = RetrievalCall.of(call, self._defaults)
        asked = _retrieval_request(request, self._target, self._strategy)
        limit = search_call.limit(asked)
        asked = changed(asked, limit=limit)
        return self._map_output(checked_output(self._provider.search(asked, search_call), asked, limit))


class RemoteRetrievalSearch:
    """Hands MEMORY.SEARCH on to RETRIEVAL.SEARCH, wherever that is served.

    Args:
        target: what is searched, as `RetrievalTarget` or its wire form; copied.
        runtime: calls the node; None: the runtime of the call at hand, which a worker gives.
        map_output: makes hits of the output; None: `map_memory_candidates`. Never sees a failed search.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for a target that is none.
    """

    def __init__(
        self,
        target: RetrievalTarget | Mapping[str, Any],
        *,
        runtime: Invoker | None = None,
        map_output: MapOutput | None = None,
    ) -> None:
        self._target = _checked(RetrievalTarget, target, "target")
        self._runtime = runtime
        self._map_output = map_output or map_memory_candidates

    def search(
        self, request: MemorySearchInput, call: Call = NO_CALL
    ) -> Sequence[MemoryHit | Mapping[str, Any]]:
        """Search.

        Raises:
            RetrievalError: RETRIEVAL_PROVIDER_UNAVAILABLE without a runtime, RETRIEVAL_BACKEND_ERROR when the
                call failed; why is in the log of whoever ran it.
        """
        runtime = self._runtime or call.runtime
        if runtime is None:
            raise RetrievalError(
                "RETRIEVAL_PROVIDER_UNAVAILABLE", "Outside a worker a remote search needs a `runtime`"
            )
        asked = _retrieval_request(request, self._target, None)
        return self._map_output(_invoked(runtime, asked, call))


def map_context_candidates(output: RetrievalSearchOutput | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make context items of candidates, in wire form, each with an id that is the same every time.

    The id is `retrieval:` with the SHA-256 of the canonical JSON of the target's name, type and namespace and
    the candidate's id, else its source's ref, else its content. The source's ref becomes the item's
    `source.uri`; metadata is the candidate's, with `retrievalTarget` and the score.

    Raises:
        ContextError: INVALID_PROVIDER_OUTPUT for a content that is no JSON, or an output that is none.
    """
    if isinstance(output, Mapping):
        _refuse_no_json(output)
    try:
        read = RetrievalSearchOutput.from_wire(output)
    except ValidationError as error:
        raise ContextError(
            "INVALID_PROVIDER_OUTPUT", f"The search answered wrongly: {expected(error)}"
        ) from None
    return [_context_item(candidate, read.target) for candidate in read.candidates]


def _invoked(runtime: Invoker, asked: RetrievalSearchInput, call: Call) -> RetrievalSearchOutput:
    try:
        result = runtime.invoke(_NODE, asked.to_wire(), timeout=call.remaining(), cancel=call.cancel)
        output = result.unwrap()
    except Exception:
        call.check()
        raise RetrievalError("RETRIEVAL_BACKEND_ERROR", "The remote retrieval search failed") from None
    return checked_output(output, asked, asked.limit or MAX_LIMIT)


def _memory_fields(request: RetrievalSearchInput) -> dict[str, Any]:
    names = ("strategy", "filter", "limit", "options")
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    return {"query": request.query.content, **given}


def _memory_request(fields: MemorySearchInput | Mapping[str, Any]) -> MemorySearchInput:
    try:
        return MemorySearchInput.from_wire(fields)
    except ValidationError as error:
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", describe(error)) from None


def _retrieval_request(
    request: MemorySearchInput, target: RetrievalTarget, strategy: str | None
) -> RetrievalSearchInput:
    fields: dict[str, Any] = {
        "query": RetrievalQuery(content=request.query),
        "target": target,
        "strategy": request.strategy if request.strategy is not None else strategy,
        "filter": request.filter,
        "limit": request.limit,
        "options": request.options,
    }
    return checked_request({name: value for name, value in fields.items() if value is not None})


def _hit(hit: Any) -> MemoryHit:
    try:
        return MemoryHit.from_wire(hit)
    except ValidationError as error:
        raise _invalid(expected(error)) from None


def _candidate(hit: MemoryHit, target: str) -> RetrievalCandidate:
    fields: dict[str, Any] = {
        "id": hit.memory.id,
        "content": hit.memory.to_wire(),
        "source": trusted(RetrievalSource, {"target": target, "ref": hit.memory.id}),
    }
    if hit.score is not None:
        fields["score"] = hit.score
    if hit.metadata is not None:
        fields["metadata"] = hit.metadata
    return trusted(RetrievalCandidate, fields)


def _memory_hit(candidate: RetrievalCandidate) -> MemoryHit:
    try:
        record = MemoryItem.from_wire(candidate.content)
    except ValidationError as error:
        raise _invalid(f"a candidate's content is no record: {expected(error)}") from None
    if candidate.id is not None and candidate.id != record.id:
        raise _invalid("a candidate's id is another than its record's")
    metadata = dict(candidate.metadata or {})
    if candidate.source is not None:
        metadata["source"] = candidate.source.to_wire()
    fields = {"memory": record, "metadata": metadata}
    if candidate.score is not None:
        fields["score"] = candidate.score
    return trusted(MemoryHit, fields)


def _context_item(candidate: RetrievalCandidate, target: RetrievalTarget) -> dict[str, Any]:
    ref = candidate.source.ref if candidate.source else None
    content = _json(candidate.content)
    named: Any = candidate.id if candidate.id is not None else ref if ref is not None else content
    digest = hashlib.sha256(
        canonical_json([target.name, target.type, target.namespace, named]).encode()
    ).hexdigest()
    metadata = {**(candidate.metadata or {}), "retrievalTarget": target.to_wire()}
    if candidate.score is not None:
        metadata["score"] = candidate.score
    return {
        "id": f"retrieval:{digest}",
        "content": content,
        **({} if ref is None else {"source": {"uri": ref}}),
        "metadata": metadata,
    }


def _refuse_no_json(output: Mapping[str, Any]) -> None:
    candidates = output.get("candidates")
    for candidate in candidates if isinstance(candidates, list | tuple) else ():
        _json(candidate.get("content") if isinstance(candidate, Mapping) else None)


def _json(content: Any) -> Any:
    try:
        return strict_json(content)
    except NotJson as error:
        raise ContextError(
            "INVALID_PROVIDER_OUTPUT", f"A candidate's content has no JSON form: {error}"
        ) from None


def _checked(contract: Any, value: Any, name: str) -> Any:
    try:
        return contract.from_wire(value).model_copy(deep=True)
    except ValidationError as error:
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", f"{name}: {describe(error)}") from None


def _translated(error: MemoryNodeError) -> RetrievalError:
    is_refusal = error.code in ("INVALID_INPUT", "SCOPE_DENIED")
    code = "RETRIEVAL_PERMISSION_DENIED" if error.code == "SCOPE_DENIED" else "RETRIEVAL_INVALID_INPUT"
    return RetrievalError(code if is_refusal else "RETRIEVAL_BACKEND_ERROR", error.message)


def _invalid(what: str) -> RetrievalError:
    return RetrievalError(
        "RETRIEVAL_INVALID_BACKEND_OUTPUT", f"The retrieval provider answered wrongly: {what}"
    )
