from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.stores import Store
from providers.stores.in_memory import InMemoryStore
from providers.stores.sqlite import SqliteStore
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
