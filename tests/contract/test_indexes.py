from collections.abc import Iterator

import pytest

from ditto_tasks.contracts.index import IndexManifest, VectorIndex
from providers.indexes.in_memory import InMemoryIndex
from providers.indexes.milvus import MilvusIndex
from providers.indexes.qdrant import QdrantIndex
from tests.contract.folders import quick_folder
from tests.contract.vector_index import MANIFEST, KeptIndexContract, Opened, VectorIndexContract, closed_after


class TestInMemoryIndex(VectorIndexContract):
    @pytest.fixture
    def opened(self) -> Iterator[Opened]:
        def open_index(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return InMemoryIndex(name, manifest)

        yield from closed_after(open_index)


class TestQdrantDirectory(KeptIndexContract):
    @pytest.fixture
    def opened(self) -> Iterator[Opened]:
        with quick_folder() as folder:

            def open_index(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
                return QdrantIndex(f"{folder}/qdrant", name, manifest)

            yield from closed_after(open_index)


class TestMilvusFile(KeptIndexContract):
    @pytest.fixture
    def opened(self) -> Iterator[Opened]:
        with quick_folder() as folder:

            def open_index(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
                return MilvusIndex(f"{folder}/milvus.db", name, manifest)

            yield from closed_after(open_index)
