"""Records embedded by their text, and the digest that tells when one has changed."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.memory import MemoryItem
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall
from providers.embedding.batching import embed_contents
from providers.embedding.records import RECORD_TEXT, RecordEmbedding, record_digest, record_text

RECORD = {"id": "1", "key": "k", "content": {"title": "Moon", "phase": 3}, "metadata": {"by": "me"}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=5,
)


class Lengths:
    """An embedding that refuses blank text, as servers do; a vector is the length of its text, and 1."""

    identity = "lengths"

    def __init__(self, dimensions: int | None = 2, lost: int = 0) -> None:
        self.dimensions = dimensions
        self.asked: list[list[str]] = []
        self._lost = lost

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> list[list[float]]:
        self.asked.append(list(contents))
        if not all(text.strip() for text in contents):
            raise RetrievalError("RETRIEVAL_INVALID_INPUT", "blank")
        return [[float(len(text)), 1.0] for text in contents][self._lost :]


def test_a_record_is_embedded_by_the_text_of_its_content() -> None:
    model = Lengths()
    contents = [RECORD, MemoryItem.from_wire(RECORD), "plain", ["a", {"b": "c"}], {"id": "x"}]
    vectors = embed_contents(RecordEmbedding(model), contents, "document")
    assert model.asked == [["Moon\n3", "Moon\n3", "plain", "a\nc", "x"]]
    assert vectors.tolist() == [[6.0, 1.0], [6.0, 1.0], [5.0, 1.0], [3.0, 1.0], [1.0, 1.0]]


def test_the_identity_names_how_records_become_text() -> None:
    embedding = RecordEmbedding(Lengths())
    assert embedding.identity == f"lengths+{RECORD_TEXT}"
    assert (embedding.dimensions, embedding.preprocessing) == (2, RECORD_TEXT)


@pytest.mark.parametrize("dimensions", [2, None])
def test_a_document_without_text_gets_a_zero_vector(dimensions: int | None) -> None:
    model = Lengths(dimensions)
    contents = ["", "ab", {"id": "1", "content": None}, " ", "c"]
    vectors = embed_contents(RecordEmbedding(model), contents, "document")
    assert model.asked == [["ab", "c"]]
    assert vectors.tolist() == [[0.0, 0.0], [2.0, 1.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0]]


def test_documents_without_any_text_need_known_dimensions() -> None:
    assert embed_contents(RecordEmbedding(Lengths()), [None], "document").tolist() == [[0.0, 0.0]]
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_INPUT"):
        embed_contents(RecordEmbedding(Lengths(None)), [None], "document")


def test_a_query_without_text_is_the_embeddings_to_refuse() -> None:
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_INPUT: blank"):
        RecordEmbedding(Lengths()).embed([{}], "query")


def test_a_vector_that_is_missing_does_not_become_a_zero_vector() -> None:
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_EMBEDDING"):
        RecordEmbedding(Lengths(lost=1)).embed(["a", "", "b"], "document")


def test_nothing_is_embedded_as_nothing() -> None:
    assert embed_contents(RecordEmbedding(Lengths()), [], "document").shape == (0, 0)


def test_the_text_of_a_record_leaves_out_all_but_its_content() -> None:
    assert record_text(RECORD) == record_text(RECORD["content"]) == "Moon\n3"


def test_the_digest_is_that_of_content_key_and_metadata() -> None:
    known = record_digest(RECORD)
    assert known == record_digest(MemoryItem.from_wire(RECORD)) == record_digest({**RECORD, "id": "2"})
    assert known == "50efd181d056571cab26896c50093743427bff1e7a533b8bdb114be172466f23"
    for other in (
        {**RECORD, "content": {"title": "Moon", "phase": "3"}},
        {**RECORD, "key": "other"},
        {**RECORD, "metadata": {}},
        {name: value for name, value in RECORD.items() if name != "metadata"},
        {name: value for name, value in RECORD.items() if name != "key"},
    ):
        assert record_digest(other) != known


@given(json_values)
def test_a_digest_outlives_the_wire_and_the_order_of_keys(content: Any) -> None:
    record = {"id": "1", "content": content, "metadata": {"a": 1, "b": content}}
    again = json.loads(json.dumps(record, sort_keys=True))
    again["metadata"] = dict(reversed(again["metadata"].items()))
    assert record_digest(record) == record_digest(again) == record_digest(MemoryItem.from_wire(record))
