"""An embedding as a store uses it: asked in bounded batches, its vectors checked, its use counted."""

import math
import threading
from collections.abc import Sequence
from typing import Any

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError
from ditto_tasks.contracts.retrieval import DEFAULT_BATCH_SIZE, EmbeddingProvider, Purpose, RetrievalCall

__all__ = ["TextEmbedding", "text_embedding"]


class TextEmbedding:
    """Turns texts into vectors of one length; safe to use from many threads.

    Attributes:
        identity: of the model, as `IdentifiedEmbedding.identity`.
        dimensions: of every vector.
        calls: made to the model so far.
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
            RetrievalError: RETRIEVAL_INVALID_EMBEDDING for another number of vectors, or one of another
                length or with what is no finite number.
        """
        retrieval_call = RetrievalCall.of(call)
        size = retrieval_call.embedding.batch_size or DEFAULT_BATCH_SIZE
        vectors: list[list[float]] = []
        for start in range(0, len(texts), size):
            call.check()
            batch = texts[start : start + size]
            vectors += self._checked(self._provider.embed(batch, purpose, retrieval_call), len(batch))
            with self._lock:
                self.calls += 1
                self.texts += len(batch)
        return vectors

    def _checked(self, answer: Sequence[Sequence[float]], count: int) -> list[list[float]]:
        vectors = [[_number(number) for number in vector] for vector in answer]
        if len(vectors) != count:
            raise _invalid(f"the embedding gave {len(vectors)} vectors for {count} texts")
        for vector in vectors:
            if len(vector) != self.dimensions:
                raise _invalid(
                    f"the embedding gave {len(vector)} numbers where {self.dimensions} were expected"
                )
        return vectors


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


def _number(value: Any) -> float:
    number = float(value) if not isinstance(value, bool | str) else math.nan
    if not math.isfinite(number):
        raise _invalid("the embedding gave a number that is not finite")
    return number


def _invalid(message: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_EMBEDDING", message)
