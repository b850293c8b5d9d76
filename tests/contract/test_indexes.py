from collections.abc import Iterator
from pathlib import Path

import pytest

from ditto_tasks.contracts.index import IndexManifest, VectorIndex
from providers.indexes import open_index
from providers.indexes.in_memory import InMemoryIndex
from tests.contract.vector_index import (
    MANIFEST,
    Opened,
    SharedIndexContract,
    VectorIndexContract,
    closed_after,
)


class TestInMemoryIndex(VectorIndexContract):
    @pytest.fixture
    def opened(self) -> Iterator[Opened]:
        def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return InMemoryIndex(name, manifest)

        yield from closed_after(opened)


class TestSqliteIndex(SharedIndexContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opened]:
        def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return open_index(f"sqlite:///{tmp_path}/notes.index", name=name, manifest=manifest)

        yield from closed_after(opened)


class TestPostgresIndex(SharedIndexContract):
    @pytest.fixture
    def opened(self, postgres_url: str) -> Iterator[Opened]:
        def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return open_index(postgres_url, name=name, manifest=manifest)

        yield from closed_after(opened)
