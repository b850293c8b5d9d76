"""The adapter for models of sentence-transformers, over a stand-in that answers as version 6.2 does."""

from typing import Any

import numpy as np
import pytest

from ditto_tasks import Cancellation, InvocationCancelled
from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError
from ditto_tasks.contracts.retrieval import IdentifiedEmbedding, RetrievalCall
from providers.embedding.batching import embed_contents
from providers.embedding.sentence_transformers import BATCH, SentenceTransformersEmbedding


class Card:
    """What a model says of itself; one loaded from a folder names no model."""

    def __init__(self, model_id: str | None = None, base_model: str | None = None) -> None:
        self.model_id, self.base_model = model_id, base_model


class Model:
    """A vector is the length of what is read of a text, prompt included, beside 1; normalised when asked."""

    max_seq_length = 256

    def __init__(self, *, model_id: str | None = "org/small", dimensions: int | None = 2) -> None:
        self.model_card_data = Card(model_id)
        self.asked: list[tuple[str, int]] = []
        self._dimensions = dimensions

    def get_embedding_dimension(self) -> int | None:
        return self._dimensions

    def encode_query(self, texts: list[str], **options: Any) -> Any:
        self.asked.append(("query", len(texts)))
        return self._encoded([f"query: {text}" for text in texts], **options)

    def encode_document(self, texts: list[str], **options: Any) -> Any:
        self.asked.append(("document", len(texts)))
        return self._encoded(texts, **options)

    def _encoded(
        self,
        texts: list[str],
        *,
        convert_to_numpy: bool,
        normalize_embeddings: bool,
        show_progress_bar: bool | None = None,
    ) -> Any:
        assert convert_to_numpy
        assert show_progress_bar is False  # None shows one where logging is verbose
        vectors = np.array([[len(text), 1] for text in texts], np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize_embeddings else vectors


class OlderModel(Model):
    """Says its dimensions by the name that is deprecated since."""

    get_embedding_dimension = None  # type: ignore[assignment]

    def get_sentence_embedding_dimension(self) -> int | None:
        return self._dimensions


def unit(*numbers: float) -> Any:
    return np.array(numbers) / np.linalg.norm(numbers)


@pytest.mark.parametrize("model", [Model(), OlderModel()])
def test_it_says_which_model_it_is(model: Any) -> None:
    embedding = SentenceTransformersEmbedding(model)
    assert isinstance(embedding, IdentifiedEmbedding)
    assert embedding.identity == "sentence-transformers/org/small/first-256-tokens"
    assert embedding.dimensions == 2


def test_a_name_given_counts_before_the_cards() -> None:
    assert "/mine-3/" in SentenceTransformersEmbedding(Model(), name="mine-3").identity
    assert "/mine-3/" in SentenceTransformersEmbedding(Model(model_id=None), name="mine-3").identity


def test_a_model_from_a_folder_must_be_named() -> None:
    with pytest.raises(InvalidDefinition, match="give SentenceTransformersEmbedding a name"):
        SentenceTransformersEmbedding(Model(model_id=None))


def test_a_model_must_say_its_dimensions() -> None:
    with pytest.raises(InvalidDefinition, match="how many dimensions"):
        SentenceTransformersEmbedding(Model(dimensions=None))


def test_vectors_are_single_precision_rows_of_length_one() -> None:
    found = np.asarray(SentenceTransformersEmbedding(Model()).embed(["a", "abc"], "document"))
    assert found.dtype == np.float32
    assert found == pytest.approx(np.array([unit(1, 1), unit(3, 1)]))


def test_queries_and_documents_are_embedded_by_the_methods_for_each() -> None:
    model = Model()
    embedding = SentenceTransformersEmbedding(model)
    assert np.asarray(embedding.embed(["abc"], "query"))[0] == pytest.approx(unit(10, 1))
    assert np.asarray(embedding.embed(["abc"], "document"))[0] == pytest.approx(unit(3, 1))
    assert model.asked == [("query", 1), ("document", 1)]


def test_no_text_gives_no_vector() -> None:
    model = Model()
    assert np.asarray(SentenceTransformersEmbedding(model).embed([], "query")).shape == (0, 2)
    assert model.asked == []


def test_many_texts_go_in_batches_and_keep_their_order() -> None:
    model = Model()
    texts = ["x" * length for length in range(1, 2 * BATCH + 2)]
    found = embed_contents(SentenceTransformersEmbedding(model), texts, "document", batch_size=len(texts))
    assert model.asked == [("document", BATCH), ("document", BATCH), ("document", 1)]
    assert (found[:, 0] / found[:, 1]).round().tolist() == list(range(1, 2 * BATCH + 2))


def test_a_call_that_ends_stops_before_the_next_batch() -> None:
    token = Cancellation()

    class Cancelling(Model):
        def encode_document(self, texts: list[str], **options: Any) -> Any:
            token.cancel("not wanted")
            return super().encode_document(texts, **options)

    model = Cancelling()
    with pytest.raises(InvocationCancelled):
        SentenceTransformersEmbedding(model).embed(["x"] * 100, "document", RetrievalCall(cancel=token))
    assert model.asked == [("document", BATCH)]


@pytest.mark.parametrize("content", [1, None, "", " \n", "\ud800", ["x"]])
def test_what_is_no_text_is_refused_before_the_model_is_asked(content: Any) -> None:
    model = Model()
    with pytest.raises(RetrievalError) as raised:
        SentenceTransformersEmbedding(model).embed(["fine", content], "document")
    assert raised.value.code == "RETRIEVAL_INVALID_INPUT"
    assert "contents.1" in raised.value.message
    assert model.asked == []
