from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.stores import Store, open_store
from providers.stores.in_memory import InMemoryStore
from providers.stores.qdrant import QdrantStore
from providers.stores.sqlite import SqliteStore
from tests.contract.embedding import WordEmbedding
from tests.contract.folders import quick_folder
from tests.contract.memory_store import (
    KeywordSearchContract,
    MemoryStoreContract,
    RandomIdContract,
    SortedListingContract,
)


class TestInMemoryStore(MemoryStoreContract, RandomIdContract, SortedListingContract, KeywordSearchContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with InMemoryStore() as store:
            yield store


class TestSqliteStore(MemoryStoreContract, RandomIdContract, SortedListingContract, KeywordSearchContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with SqliteStore(str(tmp_path / "memory.db")) as store:
            yield store


class TestPostgresStore(MemoryStoreContract, RandomIdContract, SortedListingContract, KeywordSearchContract):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        with open_store(postgres_url) as store:
            yield store


class TestMysqlStore(MemoryStoreContract, RandomIdContract, SortedListingContract, KeywordSearchContract):
    @pytest.fixture
    def store(self, mysql_url: str) -> Iterator[Store]:
        with open_store(mysql_url) as store:
            yield store


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
