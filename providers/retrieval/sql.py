"""A search by any SQL statement: the application prepares it, runs it and maps its rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ditto_tasks.contracts.base import changed
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    checked_output,
    checked_request,
)

__all__ = ["SqlSearch", "Statement"]

RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with the values that its placeholders stand for."""

    text: str
    values: Sequence[Any]


class SqlSearch(Generic[RowT]):
    """Finds candidates with a statement; owns no connection and knows no schema.

    Args:
        prepare: makes the statement of a request whose limit is filled in; a `Statement`, a dict or another
            object with `text` and `values`. It handles or refuses (RetrievalError) filter, namespace and
            options, orders the rows, and binds every value of the caller.
        query: runs it and returns the rows in that order; it has the driver keep to `call`.
        map_row: makes the candidate of a row, in wire form or as the contract.
    """

    def __init__(
        self,
        *,
        prepare: Callable[[RetrievalSearchInput], Any],
        query: Callable[[Statement, RetrievalCall], Sequence[RowT]],
        map_row: Callable[[RowT], RetrievalCandidate | Mapping[str, Any]],
    ) -> None:
        self._prepare = prepare
        self._query = query
        self._map_row = map_row

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        """Return the candidates of the rows, in their order.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a request or a statement that is none,
                RETRIEVAL_INVALID_BACKEND_OUTPUT for rows that make no answer.
        """
        call.check()
        request = checked_request(request)
        request = changed(request, limit=call.limit(request))
        rows = self._query(_checked(self._prepare(request)), call)
        candidates = [self._map_row(row) for row in rows]
        output = {"candidates": candidates, "target": request.target}
        return checked_output(output, request, call.limit(request))


def _checked(prepared: Any) -> Statement:
    text, values = (
        prepared.get(name) if isinstance(prepared, Mapping) else getattr(prepared, name, None)
        for name in ("text", "values")
    )
    if not isinstance(text, str) or not text.strip():
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", "the prepared statement has no text")
    if not isinstance(values, list | tuple):
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", "the prepared statement's values are no list")
    return Statement(text, values)
