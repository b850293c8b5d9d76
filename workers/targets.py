"""The targets that configuration and environment describe: today one, the records of the memory store."""

from collections.abc import Mapping

from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.errors import ConfigError
from ditto_tasks.contracts.reindex import RECORDS_TARGET
from ditto_tasks.contracts.retrieval import IdentifiedEmbedding
from providers.embedding import local_embedding, open_embedding
from providers.retrieval.generations import EmbeddingOf
from providers.retrieval.records import RecordTarget
from providers.retrieval.registry import TargetRegistry
from providers.stores import open_store
from workers.urls import index_url, store_url

__all__ = ["OpenedTargets", "open_targets"]


class OpenedTargets(TargetRegistry):
    """The configured targets as a registry, which closes them.

    Raises:
        ConfigError, InvalidDefinition, StoreUnavailable, IndexMismatch, NodeError: as `open_targets`.
    """

    def __init__(self, config: DittoConfig) -> None:
        self._opened = open_targets(config)
        super().__init__({name: opened.target for name, opened in self._opened.items()})

    def close(self) -> None:
        """Close stores and indexes; closing twice does nothing."""
        for opened in self._opened.values():
            opened.close()


def open_targets(config: DittoConfig) -> Mapping[str, RecordTarget]:
    """Open the configured targets, for whoever closes them.

    Raises:
        ConfigError: the store lives in one process only, or the workspace's folder cannot be made.
        InvalidDefinition, StoreUnavailable, IndexMismatch: as the store, the index and the model say.
        NodeError: the store does not tell which generation of the index is searched.
    """
    url = store_url(config)
    if url.startswith("memory://"):
        raise ConfigError(
            "DITTO_WORKER_MEMORY_STORE_URL is memory://, which no other process can search: name a store "
            "that processes share"
        )
    embedding, store = _embedding(config), open_store(url)
    try:
        target = RecordTarget.open(
            RECORDS_TARGET, store, index_url(config), embedding, embedding_of=_embedding_of(config)
        )
        return {RECORDS_TARGET: target}
    except BaseException:
        store.close()
        raise


def _embedding(config: DittoConfig) -> IdentifiedEmbedding:
    section = config.workers.retrieval.embedding
    if config.embedding is None:
        return open_embedding(section.model)
    return _http_embedding(config, config.embedding.model, section.dimensions)


def _embedding_of(config: DittoConfig) -> EmbeddingOf:
    """Open what made an index under another configuration: a local model, another of the same endpoint's."""

    def opened(identity: str) -> IdentifiedEmbedding | None:
        if (local := local_embedding(identity)) is not None or config.embedding is None:
            return local
        endpoint = _http_embedding(config, config.embedding.model, None)
        prefix = endpoint.identity.removesuffix(config.embedding.model)
        if identity.startswith(prefix):
            return _http_embedding(config, identity.removeprefix(prefix), None)
        return None

    return opened


def _http_embedding(config: DittoConfig, model: str, dimensions: int | None) -> IdentifiedEmbedding:
    from providers.embedding.http import HttpEmbedding  # needs httpx, which the local models do not
    from providers.sandbox import Sandbox

    assert config.embedding is not None
    return HttpEmbedding(
        config.embedding.base_url,
        model,
        api_key=config.embedding.api_key,
        sandbox=Sandbox(network=config.allow_network),
        dimensions=dimensions,
    )
