"""Search by text: full text or bm25, as the backend has it."""

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSearchProvider,
    checked_output,
)

__all__ = ["TextSearch"]


class TextSearch:
    """Hands text to a backend that searches text, and nothing else; it embeds nothing."""

    def __init__(self, backend: RetrievalSearchProvider) -> None:
        self._backend = backend

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        """Search.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT when the query is no text, or a blank one.
        """
        content = request.query.content
        if not isinstance(content, str) or not content.strip():
            raise RetrievalError(
                "RETRIEVAL_INVALID_INPUT", "query.content must be text that is not blank: this searches text"
            )
        return checked_output(self._backend.search(request, call), request, call.limit(request))
