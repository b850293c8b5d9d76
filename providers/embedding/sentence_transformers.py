"""Embedding by a model of the package sentence-transformers that the application has loaded."""

from collections.abc import Sequence
from typing import Any, cast

from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall
from providers.embedding._texts import checked_texts

__all__ = ["SentenceTransformersEmbedding"]

BATCH = 32  # texts between two looks at the call


class SentenceTransformersEmbedding:
    """Wraps a loaded `SentenceTransformer`; closes nothing.

    What the model does with texts longer than its window stays as it is: `max_seq_length` tokens are read,
    the rest is left out. So this number is part of the identity. Queries and documents are embedded by the
    model's own methods for each, with its prompts `query` and `document`: a prompt for documents by another
    name, such as `passage`, must be given to the model as `document`.

    Args:
        model: of version 5 or newer: has `encode_query`, `encode_document`, `max_seq_length`, and
            `get_embedding_dimension` or, by its older name, `get_sentence_embedding_dimension`.
        name: names model and version in the identity; None: the model card's.

    Raises:
        InvalidDefinition: the model does not say its name or its dimensions.
    """

    def __init__(self, model: Any, *, name: str | None = None) -> None:
        name = name or _card_name(model)
        dimensions = _dimensions(model)
        if not name:
            raise InvalidDefinition(
                "the model's card names no model, as that of one loaded from a folder: give "
                "SentenceTransformersEmbedding a name"
            )
        if not dimensions:
            raise InvalidDefinition("the model does not say how many dimensions its vectors have")
        self._model = model
        self.dimensions = int(dimensions)
        self.identity = f"sentence-transformers/{name}/first-{model.max_seq_length}-tokens"

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        """Return a float32 array of shape (n, d), rows of length 1, in the order of the contents.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a content that is no string or is blank.
            InvocationCancelled, DeadlineExceeded: `call` says so, between two batches.
        """
        import numpy as np

        call.check()
        texts = checked_texts(contents)
        encode = self._model.encode_query if purpose == "query" else self._model.encode_document
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        for start in range(0, len(texts), BATCH):
            call.check()
            vectors[start : start + BATCH] = encode(
                texts[start : start + BATCH],
                convert_to_numpy=True,
                normalize_embeddings=True,
                show_progress_bar=False,
            )
        return cast("Sequence[Sequence[float]]", vectors)


def _dimensions(model: Any) -> int | None:
    newer = getattr(model, "get_embedding_dimension", None)
    dimensions: int | None = (newer or model.get_sentence_embedding_dimension)()
    return dimensions


def _card_name(model: Any) -> str | None:
    card = getattr(model, "model_card_data", None)
    return getattr(card, "model_id", None) or getattr(card, "base_model", None)
