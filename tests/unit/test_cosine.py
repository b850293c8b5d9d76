"""Reranking by the cosine of embeddings."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    Ranked,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalDefaults,
    RetrievalQuery,
)
from providers.retrieval.rerank import CosineReranker, RerankSearch
from tests.doubles import Letters, RecordingSearch, found, request


class Itself:
    """Takes contents for their own vectors; gives an array when told to."""

    def __init__(self, dtype: Any = None) -> None:
        self._dtype = dtype
        self.asked: list[tuple[int, str]] = []

    def embed(self, contents: Sequence[Any], purpose: Any, call: Any = None) -> Any:
        self.asked.append((len(contents), purpose))
        return contents if self._dtype is None else np.array(contents, dtype=self._dtype)


def ranked(query: Any, *contents: Any, limit: int = 1000, embedding: Any = None) -> list[Ranked]:
    candidates = [RetrievalCandidate(content=content) for content in contents]
    reranker = CosineReranker(embedding or Itself())
    return reranker.rank(RetrievalQuery(content=query), candidates, limit)


def score(query: Any, content: Any, **options: Any) -> Any:
    [place] = ranked(query, content, **options)
    return place.score


def order(places: Sequence[Ranked]) -> list[int]:
    return [place.index for place in places]


HUGE = sys.float_info.max


@pytest.mark.parametrize(
    ("query", "content", "cosine"),
    [
        ([1, 0], [1, 1], 0.7071067811865475),
        ([3, 4], [4, 3], 0.96),
        ([1, 0], [0, 0], 0.0),
        ([0, 0], [1, 0], 0.0),
        ([0, 0], [0, 0], 0.0),
        ([1, 2], [-1, -2], -1.0),
        ([HUGE, HUGE], [HUGE, HUGE], 1.0),
        ([HUGE, -HUGE], [1, -1], 1.0),
        ([5e-324, 5e-324], [1, 1], 1.0),
        ([HUGE, 0], [5e-324, 0], 1.0),
    ],
)
def test_known_figures(query: Any, content: Any, cosine: float) -> None:
    assert score(query, content) == pytest.approx(cosine, abs=1e-12)


def test_a_zero_vector_is_like_nothing_and_comes_after_what_is_alike() -> None:
    places = ranked([1, 0], [1, 0], [0.5, 0.5], [0, 0], limit=2)
    assert order(places) == [0, 1]
    assert [place.score for place in places] == pytest.approx([1, 0.7071067811865475], abs=1e-12)


def test_the_most_alike_come_first_and_the_rest_is_cut() -> None:
    assert order(ranked([1, 0], [0, 1], [1, 1], [1, 0], [-1, 0], limit=3)) == [2, 1, 0]


@pytest.mark.parametrize("count", [2, 3, 7, 8, 50, 101, 300])
@pytest.mark.parametrize("dimensions", [3, 256, 384])
@pytest.mark.parametrize("dtype", [None, np.float32])
def test_ties_stay_in_the_order_given(count: int, dimensions: int, dtype: Any) -> None:
    """Products of equal vectors differ in their last digit where a matrix is multiplied as a whole."""
    chance = np.random.default_rng(count * dimensions)
    query, content = chance.standard_normal((2, dimensions)).tolist()
    places = ranked(query, *[content] * count, embedding=Itself(dtype))
    assert order(places) == list(range(count))
    assert len({place.score for place in places}) == 1


def test_arrays_of_small_floats_are_compared_in_large_ones() -> None:
    chance = np.random.default_rng(7)
    vectors = chance.standard_normal((20, 384)).astype(np.float32)
    exact = vectors.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    places = ranked(vectors[0].tolist(), *vectors.tolist(), embedding=Itself(np.float32))
    assert order(places)[0] == 0
    assert [place.score for place in places] == pytest.approx(sorted(exact @ exact[0], reverse=True))


def test_neither_huge_nor_tiny_nor_zero_vectors_change_what_others_score() -> None:
    chance = np.random.default_rng(5)
    plain = chance.standard_normal((300, 8))
    scales = np.ones((300, 1))
    scales[::7], scales[3::7], scales[5::7] = 1e300, 1e-300, 0.0
    query, *_ = plain
    cosines = plain @ query / (np.linalg.norm(plain, axis=1) * np.linalg.norm(query))
    cosines[5::7] = 0.0
    places = ranked(query.tolist(), *(plain * scales).tolist())
    assert [place.score for place in places] == pytest.approx(cosines[order(places)], abs=1e-12)
    assert sorted(order(places)) == list(range(300))


def test_no_score_is_beyond_one() -> None:
    chance = np.random.default_rng(11)
    for vector in chance.standard_normal((200, 3)).tolist():
        assert score(vector, vector) <= 1.0
        assert score(vector, [-number for number in vector]) >= -1.0


def test_query_and_candidates_are_embedded_for_what_they_are() -> None:
    embedding = Letters()
    places = ranked("aab", "b", "aab", "c", embedding=embedding)
    assert order(places) == [1, 0, 2]
    assert embedding.asked == [(["aab"], "query"), (["b", "aab", "c"], "document")]


def test_without_candidates_nothing_is_embedded() -> None:
    embedding = Itself()
    assert ranked([1, 0], embedding=embedding) == []
    assert embedding.asked == []


@pytest.mark.parametrize("content", [[1], [1, 2, 3], [], [float("nan"), 1], ["1", "2"], None])
def test_a_candidates_vector_must_be_as_long_as_the_querys(content: Any) -> None:
    class One(Itself):
        def embed(self, contents: Any, purpose: Any, call: Any = None) -> Any:
            return [[1, 0]] if purpose == "query" else [content]

    with pytest.raises(RetrievalError) as raised:
        ranked("query", "candidate", embedding=One())
    assert raised.value.code == "RETRIEVAL_INVALID_EMBEDDING"


def test_within_a_search_it_goes_by_the_batches_of_the_calls_defaults() -> None:
    embedding = Itself()
    search = RerankSearch(
        RecordingSearch(found(*({"content": [n, 1]} for n in range(5)))), CosineReranker(embedding)
    )
    call = RetrievalCall(defaults=RetrievalDefaults.from_wire({"embedding": {"batchSize": 2}}))
    output = search.search(request(query={"content": [1, 0]}, limit=2), call)
    assert [candidate.content for candidate in output.candidates] == [[4, 1], [3, 1]]
    assert embedding.asked == [(1, "query"), (2, "document"), (2, "document"), (1, "document")]
