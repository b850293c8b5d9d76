"""Embeddings: what turns texts into vectors; `open_embedding` gives a local model by its name.

A module is imported when it is asked for, so that no driver and no model is unasked.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.retrieval import IdentifiedEmbedding

if TYPE_CHECKING:
    from providers.embedding.local import MiniLmEmbedding, WordLlamaEmbedding

__all__ = ["local_embedding", "open_embedding"]


def open_embedding(name: str) -> IdentifiedEmbedding:
    """Open a model that comes in a wheel: `minilm` finds better, `wordllama` indexes faster.

    It is loaded when first asked for a vector. Whoever opened it may close it.

    Raises:
        InvalidDefinition: the name is another one, or the extra `embedded` is not installed.
    """
    models = _local_models()
    if name not in models:
        raise InvalidDefinition(f"no local embedding is called {name!r:.40}: use {' or '.join(models)}")
    return models[name]()


def local_embedding(identity: str) -> IdentifiedEmbedding | None:
    """Open the model of a wheel that has this identity; None: none has.

    Raises:
        InvalidDefinition: the extra `embedded` is not installed.
    """
    return next((model() for model in _local_models().values() if model.identity == identity), None)


def _local_models() -> "Mapping[str, type[MiniLmEmbedding | WordLlamaEmbedding]]":
    from providers.embedding.local import MiniLmEmbedding, WordLlamaEmbedding

    return {"minilm": MiniLmEmbedding, "wordllama": WordLlamaEmbedding}
