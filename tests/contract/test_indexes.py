from collections.abc import Iterator
from pathlib import Path

import pytest

from ditto_tasks.contracts.index import IndexManifest, VectorIndex
from providers.indexes import open_index
from providers.indexes.in_memory import InMemoryIndex
from providers.indexes.milvus import MilvusIndex
from providers.indexes.qdrant import QdrantIndex
from tests.contract.folders import quick_folder
from tests.contract.vector_index import (
    MANIFEST,
    KeptIndexContract,
    Opened,
    SharedIndexContract,
    VectorIndexContract,
    closed_after,
)
from tests.milvus_server import clear, milvus_server


@pytest.fixture(scope="module")
def milvus_address() -> Iterator[str]:
    with quick_folder() as folder, milvus_server(folder) as address:
        yield address


class TestInMemoryIndex(VectorIndexContract):
    @pytest.fixture
    def opened(self) -> Iterator[Opened]:
        def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return InMemoryIndex(name, manifest)

        yield from closed_after(opened)


class TestPostgresIndex(SharedIndexContract):
    @pytest.fixture
    def opened(self, postgres_url: str) -> Iterator[Opened]:
        def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return open_index(postgres_url, name=name, manifest=manifest)

        yield from closed_after(opened)


class TestQdrantDirectory(KeptIndexContract):
    @pytest.fixture
    def opened(self) -> Iterator[Opened]:
        with quick_folder() as folder:

            def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
                return QdrantIndex(f"{folder}/qdrant", name, manifest)

            yield from closed_after(opened)


class TestMilvusServer(SharedIndexContract):
    @pytest.fixture
    def opened(self, milvus_address: str) -> Iterator[Opened]:
        def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return open_index(f"milvus://{milvus_address}", name=name, manifest=manifest)

        yield from closed_after(opened)
        clear(milvus_address)


class TestMilvusFile(KeptIndexContract):
    @pytest.fixture
    def opened(self) -> Iterator[Opened]:
        with quick_folder() as folder:

            def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
                return MilvusIndex(f"{folder}/milvus.db", name, manifest)

            yield from closed_after(opened)


class TestSqliteIndex(SharedIndexContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Iterator[Opened]:
        def open_here(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return open_index(f"sqlite:///{tmp_path}/notes.index", name=name, manifest=manifest)

        yield from closed_after(open_here)
