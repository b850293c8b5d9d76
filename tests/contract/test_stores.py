from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.stores import Store, open_store
from providers.stores.in_memory import InMemoryStore
from providers.stores.sqlite import SqliteStore
from tests.contract.memory_store import MemoryStoreContract


class TestInMemoryStore(MemoryStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        with InMemoryStore() as store:
            yield store


class TestSqliteStore(MemoryStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        with SqliteStore(str(tmp_path / "memory.db")) as store:
            yield store


class TestMysqlStore(MemoryStoreContract):
    @pytest.fixture
    def store(self, mysql_url: str) -> Iterator[Store]:
        with open_store(mysql_url) as store:
            yield store


class TestPostgresStore(MemoryStoreContract):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        with open_store(postgres_url) as store:
            yield store
