"""The namespace of a target as a filter of records by their metadata."""

from typing import Any

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import RetrievalSearchInput

__all__ = ["namespaced_filter"]


def namespaced_filter(request: RetrievalSearchInput) -> dict[str, Any]:
    """Return the request's filter, narrowed to its target's namespace if it has one.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT when the filter names another namespace.
    """
    filter = dict(request.filter or {})
    namespace = request.target.namespace
    if namespace is None:
        return filter
    if filter.setdefault("namespace", namespace) != namespace:
        raise RetrievalError(
            "RETRIEVAL_INVALID_INPUT", "filter.namespace differs from target.namespace: leave one of them out"
        )
    return filter
