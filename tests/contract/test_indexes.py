from collections.abc import Iterator

import pytest

from ditto_tasks.contracts.index import IndexManifest, VectorIndex
from providers.indexes.in_memory import InMemoryIndex
from tests.contract.vector_index import MANIFEST, Opened, VectorIndexContract, closed_after


class TestInMemoryIndex(VectorIndexContract):
    @pytest.fixture
    def opened(self) -> Iterator[Opened]:
        def open_index(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
            return InMemoryIndex(name, manifest)

        yield from closed_after(open_index)
