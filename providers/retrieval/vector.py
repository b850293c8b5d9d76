"""Search by vector: the caller's own, one made of the query here, or one that the database makes itself."""

from typing import Any

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    EmbeddingProvider,
    RetrievalCall,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSearchProvider,
    checked_output,
)
from providers.embedding.batching import embed_contents, validate_vector
from providers.retrieval.limits import checked_integer, first_given

__all__ = ["VectorSearch"]


class VectorSearch:
    """Hands a vector to a backend that searches vectors, with the rest of the request as it is.

    Args:
        backend: gets the request with a list of numbers as its query, or with `native_embedding` the query
            as it came.
        embedding: makes the vector of a query that is none.
        native_embedding: the database makes the vectors of queries itself.
        dimensions: what a vector's length must be; None: `embedding.dimensions` of the call's defaults.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT when both `embedding` and `native_embedding` are given, or
            `dimensions` is no positive integer.
    """

    def __init__(
        self,
        backend: RetrievalSearchProvider,
        *,
        embedding: EmbeddingProvider | None = None,
        native_embedding: bool = False,
        dimensions: int | None = None,
    ) -> None:
        if embedding is not None and native_embedding:
            raise RetrievalError(
                "RETRIEVAL_INVALID_INPUT",
                "give `embedding` or `native_embedding`: only one makes the vectors",
            )
        self._backend = backend
        self._embedding = embedding
        self._is_native = native_embedding
        self._dimensions = None if dimensions is None else checked_integer("dimensions", dimensions)

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        """Search by the query's vector.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_EMBEDDING for a vector of another length,
                RETRIEVAL_INVALID_INPUT for a query that is no vector where nothing makes one of it.
        """
        asked = self._with_vector(request, call)
        return checked_output(self._backend.search(asked, call), asked, call.limit(request))

    def _with_vector(self, request: RetrievalSearchInput, call: RetrievalCall) -> RetrievalSearchInput:
        content = request.query.content
        if _is_vector(content):
            validate_vector(content, first_given(self._dimensions, call.embedding.dimensions))
            return request
        if self._embedding is not None:
            [vector] = embed_contents(
                self._embedding, [content], "query", dimensions=self._dimensions, call=call
            )
            query = request.query.model_copy(update={"content": vector.tolist()})
            return request.model_copy(update={"query": query})
        if self._is_native:
            return request
        raise RetrievalError(
            "RETRIEVAL_INVALID_INPUT",
            "query.content must be a vector, a list of numbers: nothing embeds here",
        )


def _is_vector(content: Any) -> bool:
    """Tell a vector, right or wrong, from what is to be embedded: a list of numbers only, or an empty one."""
    return isinstance(content, list | tuple) and all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in content
    )
