"""The target that a memory store and its index make: what its default search tells of itself."""

from collections.abc import Iterator

import pytest

from ditto_tasks.contracts.index import IndexManifest
from ditto_tasks.contracts.memory import MemoryWriteInput
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, RetrievalSearchOutput
from providers.indexes.in_memory import InMemoryIndex
from providers.retrieval.records import RecordTarget
from providers.stores.in_memory import InMemoryStore
from tests.doubles import Letters, request

TEXTS = ("abc", "abd", "abe", "abf", "abg", "abh")


@pytest.fixture
def target() -> Iterator[RecordTarget]:
    """Six records with their index."""
    store = InMemoryStore()
    indexes: dict[str, InMemoryIndex] = {}

    def open_index(name: str, manifest: IndexManifest) -> InMemoryIndex:
        return indexes.setdefault(name, InMemoryIndex(name, manifest))

    drafts = [{"content": text} for text in TEXTS]
    records = store.write(MemoryWriteInput.from_wire({"memories": drafts}))
    target = RecordTarget("kb", store, Letters(), open_index)
    target.bring_up(tuple(record.id for record in records), NO_RETRIEVAL_CALL)
    yield target
    target.close()


def search(target: RecordTarget, **fields: object) -> RetrievalSearchOutput:
    return target.target.providers["hybrid"].search(request(query={"content": "ab"}, **fields))


def test_hybrid_search_tells_of_those_that_it_returns(target: RecordTarget) -> None:
    output = search(target, limit=2)
    returned = [f'["kb","{candidate.id}"]' for candidate in output.candidates]
    assert len(returned) == 2
    assert output.metadata is not None
    assert sorted(output.metadata["fusion"]["contributions"]) == sorted(returned)
    assert output.metadata["fusion"]["method"] == "min-max"


def test_its_explanation_has_the_others_too(target: RecordTarget) -> None:
    output = search(target, limit=2, options={"explain": True})
    assert output.metadata is not None
    explanation = output.metadata["explanation"]
    assert len(explanation["candidates"]) == 2
    assert len(explanation["dropped"]) == len(TEXTS) - 2
