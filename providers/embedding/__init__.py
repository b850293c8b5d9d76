"""Embeddings: what turns texts into vectors; `open_embedding` gives a local model by its name.

A module is imported when it is asked for, so that no driver and no model is unasked.
"""

from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.retrieval import IdentifiedEmbedding

__all__ = ["local_embedding", "open_embedding"]


def open_embedding(name: str) -> IdentifiedEmbedding:
    """Open a model that comes in a wheel: `minilm` finds better, `wordllama` indexes faster.

    It is loaded when first asked for a vector. Whoever opened it may close it.

    Raises:
        InvalidDefinition: the name is another one, or the extra `embedded` is not installed.
    """
    from providers.embedding.local import MiniLmEmbedding, WordLlamaEmbedding

    if name == "minilm":
        return MiniLmEmbedding()
    if name == "wordllama":
        return WordLlamaEmbedding()
    raise InvalidDefinition(f"no local embedding is called {name!r:.40}: use minilm or wordllama")


def local_embedding(identity: str) -> IdentifiedEmbedding | None:
    """Open the model of a wheel that has this identity; None: none has.

    Raises:
        InvalidDefinition: the extra `embedded` is not installed.
    """
    from providers.embedding.local import MiniLmEmbedding, WordLlamaEmbedding

    models: tuple[type[MiniLmEmbedding | WordLlamaEmbedding], ...] = (MiniLmEmbedding, WordLlamaEmbedding)
    return next((model() for model in models if model.identity == identity), None)
