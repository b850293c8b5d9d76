"""An embedding as a store uses it: asked for texts, its use counted."""

import threading
from collections.abc import Sequence

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError, RetrievalError
from ditto_tasks.contracts.retrieval import EmbeddingProvider, Purpose, RetrievalCall
from providers.embedding.batching import embed_contents

__all__ = ["TextEmbedding", "text_embedding"]


class TextEmbedding:
    """Turns texts into vectors of one length; safe to use from many threads.

    Attributes:
        identity: of the model, as `IdentifiedEmbedding.identity`.
        dimensions: of every vector.
        calls: for texts so far.
        texts: embedded so far.
    """

    def __init__(self, provider: EmbeddingProvider, identity: str, dimensions: int) -> None:
        self._provider = provider
        self._lock = threading.Lock()
        self.identity = identity
        self.dimensions = dimensions
        self.calls = 0
        self.texts = 0

    def vectors(self, texts: Sequence[str], purpose: Purpose, call: Call) -> list[list[float]]:
        """Return a vector a text, in their order; no texts ask no model.

        Raises:
            MemoryNodeError: with the code and message that the embedding failed with.
        """
        if not texts:
            return []
        try:
            vectors = embed_contents(
                self._provider, texts, purpose, dimensions=self.dimensions, call=RetrievalCall.of(call)
            )
        except RetrievalError as error:  # a store fails with errors of its own family
            raise MemoryNodeError(error.code, error.message) from None
        with self._lock:
            self.calls += 1
            self.texts += len(texts)
        listed: list[list[float]] = vectors.tolist()
        return listed


def text_embedding(
    provider: EmbeddingProvider | None, identity: str | None, dimensions: int | None
) -> TextEmbedding | None:
    """Put together what a store's constructor was given; identity and dimensions may be the provider's own.

    Raises:
        InvalidDefinition: one of the three is missing, or the dimensions are no positive integer.
    """
    if provider is None:
        if identity is not None or dimensions is not None:
            raise InvalidDefinition("identity and dimensions belong to an embedding: give it, too")
        return None
    identity = identity or getattr(provider, "identity", None)
    dimensions = getattr(provider, "dimensions", None) if dimensions is None else dimensions
    if not identity:
        raise InvalidDefinition("the embedding has no identity: name its model and how texts are treated")
    if type(dimensions) is not int or dimensions < 1:
        raise InvalidDefinition(f"dimensions {dimensions!r:.80} must be an integer of 1 or more")
    return TextEmbedding(provider, identity, dimensions)
