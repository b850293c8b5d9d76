"""A search in a Milvus collection of the application, which configures it and keeps the client."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Generic, TypeVar

from ditto_tasks.contracts.base import changed
from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    checked_output,
    checked_request,
)
from providers.embedding.batching import validate_vector

__all__ = ["MilvusSearch"]

SCOPE_FIELDS = ("filter", "exprValues", "partition_names")  # what a scope may add to a request
SUCCESS = {"code": (0,), "error_code": ("Success",)}  # of a status; at least one of the two is there

HitT = TypeVar("HitT")


class MilvusSearch(Generic[HitT]):
    """Finds candidates near a vector, or a text where the collection embeds or indexes text itself.

    Args:
        collection: that is searched; a request cannot name another.
        vector_field: that is compared; for BM25 the sparse one.
        output_fields: that hits carry.
        search: sends a request of Milvus's form and returns `{"status": {...}, "results": [...]}`; it has the
            client keep to `call`. A request holds `collection_name`, `anns_field`, `data` with one vector or
            text, `limit`, `output_fields`, what `scope` gave, and `params`.
        map_hit: makes the candidate of a hit; scores are as it says, distances are not turned.
        scope: turns a request's namespace and filter into `filter`, `exprValues`, `partition_names`, and
            refuses (RetrievalError) what it does not know; None: requests have neither.
        params: of the search, such as `{"ef": 64}`.

    Raises:
        InvalidDefinition: the collection or the field has no name.
    """

    def __init__(
        self,
        *,
        collection: str,
        vector_field: str,
        output_fields: Sequence[str],
        search: Callable[[dict[str, Any], RetrievalCall], Any],
        map_hit: Callable[[HitT], RetrievalCandidate | Mapping[str, Any]],
        scope: Callable[[RetrievalSearchInput], Mapping[str, Any]] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("collection", collection), ("vector_field", vector_field)):
            if not isinstance(value, str) or not value.strip():
                raise InvalidDefinition(f"{name} {value!r:.80} must be a name")
        self._fixed: dict[str, Any] = {"collection_name": collection, "anns_field": vector_field}
        self._output_fields = list(output_fields)
        self._search = search
        self._map_hit = map_hit
        self._scope = scope
        self._params = deepcopy(dict(params)) if params is not None else None

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        """Return the candidates of the hits, in their order.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a namespace or filter without a `scope`,
                RETRIEVAL_INVALID_EMBEDDING for content that is neither text nor a vector,
                RETRIEVAL_BACKEND_ERROR when Milvus says that it failed, RETRIEVAL_INVALID_BACKEND_OUTPUT for
                hits that make no answer.
        """
        call.check()
        request = checked_request(request)
        limit = call.limit(request)
        request = changed(request, limit=limit)
        hits = _results(self._search(self._asked(request), call))
        output = {"candidates": [self._map_hit(hit) for hit in hits], "target": request.target}
        return checked_output(output, request, limit)

    def _asked(self, request: RetrievalSearchInput) -> dict[str, Any]:
        asked = {
            **self._scoped(request),
            **self._fixed,
            "data": [_content(request.query.content)],
            "limit": request.limit,
            "output_fields": list(self._output_fields),
        }
        return asked if self._params is None else {**asked, "params": deepcopy(self._params)}

    def _scoped(self, request: RetrievalSearchInput) -> dict[str, Any]:
        if self._scope is not None:
            given = self._scope(request)
            return {field: given[field] for field in SCOPE_FIELDS if field in given}
        if request.target.namespace is not None or request.filter is not None:
            raise RetrievalError(
                "RETRIEVAL_INVALID_INPUT", "a namespace or filter needs a scope: this search has none"
            )
        return {}


def _content(content: Any) -> Any:
    """Return the text or the vector that is searched for."""
    if isinstance(content, str) and content.strip():
        return content
    return validate_vector(content).tolist()


def _results(answer: Any) -> list[Any]:
    status = answer.get("status") if isinstance(answer, Mapping) else None
    if not _is_success(status):
        raise RetrievalError("RETRIEVAL_BACKEND_ERROR", "Milvus search failed")
    results = answer.get("results")
    if not isinstance(results, list | tuple):
        raise RetrievalError("RETRIEVAL_INVALID_BACKEND_OUTPUT", "Milvus answered without a list of results")
    return list(results)


def _is_success(status: Any) -> bool:
    if not isinstance(status, Mapping):
        return False
    codes = {field: status[field] for field in SUCCESS if status.get(field) is not None}
    return bool(codes) and all(
        code in SUCCESS[field] and not isinstance(code, bool) for field, code in codes.items()
    )
