from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ditto_tasks.contracts.memory import ChangeFeed
from providers.stores import Store, open_store
from providers.stores.in_memory import InMemoryStore
from providers.stores.milvus import MilvusStore
from providers.stores.qdrant import QdrantStore
from providers.stores.scoped import scoped
from providers.stores.sqlite import SqliteStore
from tests.contract.embedding import WordEmbedding
from tests.contract.folders import quick_folder
from tests.contract.memory_store import (
    ChangeFeedContract,
    KeptFeedContract,
    KeywordSearchContract,
    MemoryStoreContract,
    RandomIdContract,
    SortedListingContract,
)


class TestInMemoryStore(
    MemoryStoreContract,
    RandomIdContract,
    SortedListingContract,
    KeywordSearchContract,
    ChangeFeedContract,
):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with InMemoryStore() as store:
            yield store


class TestSqliteStore(
    MemoryStoreContract,
    RandomIdContract,
    SortedListingContract,
    KeywordSearchContract,
    ChangeFeedContract,
    KeptFeedContract,
):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with SqliteStore(str(tmp_path / "memory.db")) as store:
            yield store

    @pytest.fixture
    def reopened(self, tmp_path: Path) -> Callable[[], Store]:
        return lambda: SqliteStore(str(tmp_path / "memory.db"))


class TestPostgresStore(
    MemoryStoreContract,
    RandomIdContract,
    SortedListingContract,
    KeywordSearchContract,
    ChangeFeedContract,
    KeptFeedContract,
):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        with open_store(postgres_url) as store:
            yield store

    @pytest.fixture
    def reopened(self, postgres_url: str) -> Callable[[], Store]:
        return lambda: open_store(postgres_url)


class TestMysqlStore(
    MemoryStoreContract,
    RandomIdContract,
    SortedListingContract,
    KeywordSearchContract,
    ChangeFeedContract,
    KeptFeedContract,
):
    @pytest.fixture
    def store(self, mysql_url: str) -> Iterator[Store]:
        with open_store(mysql_url) as store:
            yield store

    @pytest.fixture
    def reopened(self, mysql_url: str) -> Callable[[], Store]:
        return lambda: open_store(mysql_url)


class TestQdrantDirectory(MemoryStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with quick_folder() as folder, QdrantStore(f"{folder}/qdrant", embedding=WordEmbedding()) as store:
            yield store


class TestMilvusFile(MemoryStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with quick_folder() as folder, open_store(f"milvus:///{folder}/milvus.db") as store:
            yield store


def test_other_stores_have_no_change_feed() -> None:
    with InMemoryStore() as store:
        assert isinstance(store, ChangeFeed)
        assert not isinstance(scoped(store, "team:me"), ChangeFeed)
    for kind in (QdrantStore, MilvusStore):
        assert not issubclass(kind, ChangeFeed)
