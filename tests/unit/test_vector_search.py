"""Search by vector and by text, in front of backends that record what they are asked."""

from typing import Any

import numpy as np
import pytest

from ditto_tasks import Cancellation, InvocationCancelled
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import RetrievalCall, RetrievalDefaults
from providers.retrieval.text import TextSearch
from providers.retrieval.vector import VectorSearch
from tests.doubles import Letters, RecordingSearch, found, request


def searched(content: Any, *, call: RetrievalCall | None = None, **options: Any) -> RecordingSearch:
    """Search by this content; returns the backend."""
    backend = RecordingSearch(found())
    VectorSearch(backend, **options).search(request(query={"content": content}), call or RetrievalCall())
    return backend


def refusal(content: Any, **options: Any) -> str:
    with pytest.raises(RetrievalError) as raised:
        searched(content, **options)
    return raised.value.code


def with_dimensions(dimensions: int) -> RetrievalCall:
    return RetrievalCall(defaults=RetrievalDefaults.from_wire({"embedding": {"dimensions": dimensions}}))


class TestVectorOfTheCallers:
    @pytest.mark.parametrize("vector", [[0, 1], [0.5], [1e308, -1e-308, 0]])
    def test_it_goes_on_as_it_is_and_nothing_is_embedded(self, vector: list[float]) -> None:
        embedding = Letters()
        backend = searched(vector, embedding=embedding)
        assert backend.requests[0].query.content == vector
        assert embedding.asked == []

    @pytest.mark.parametrize("vector", [[0], [], [0, 1, 2], [10**400, 1]])
    def test_of_another_length_or_without_any_it_is_refused(self, vector: list[float]) -> None:
        assert refusal(vector, dimensions=2) == "RETRIEVAL_INVALID_EMBEDDING"
        assert refusal(vector, call=with_dimensions(2)) == "RETRIEVAL_INVALID_EMBEDDING"

    def test_an_empty_one_is_refused_without_dimensions_too(self) -> None:
        assert refusal([]) == "RETRIEVAL_INVALID_EMBEDDING"
        assert refusal([], embedding=Letters()) == "RETRIEVAL_INVALID_EMBEDDING"

    def test_the_constructors_dimensions_come_before_the_calls(self) -> None:
        backend = searched([1.0, 2.0], dimensions=2, call=with_dimensions(3))
        assert len(backend.requests) == 1

    @pytest.mark.parametrize("content", [[True, False], [1, None], [1, "2"], [[1.0]], [1.0, True]])
    def test_a_list_of_anything_else_is_no_vector(self, content: Any) -> None:
        assert refusal(content) == "RETRIEVAL_INVALID_INPUT"
        backend = searched(content, native_embedding=True)
        assert backend.requests[0].query.content == content


class TestVectorMadeHere:
    @pytest.mark.parametrize("content", ["abca", " "])
    def test_the_query_is_embedded_as_one(self, content: str) -> None:
        embedding = Letters()
        backend = searched(content, embedding=embedding)
        assert embedding.asked == [([content], "query")]
        assert backend.requests[0].query.content == [content.count(letter) for letter in "abc"]

    def test_an_array_becomes_a_list_of_plain_numbers(self) -> None:
        class Arrays(Letters):
            def embed(self, *_: Any) -> Any:
                return np.array([[0.5, 0.25, 1.0]], dtype=np.float32)

        content = searched("a", embedding=Arrays()).requests[0].query.content
        assert content == [0.5, 0.25, 1.0]
        assert {type(number) for number in content} == {float}

    def test_the_rest_of_the_request_stays_as_it_is(self) -> None:
        rest = {"strategy": "vector", "filter": {"a": 1}, "limit": 3, "options": {"ef": 64}}
        asked = request(query={"content": "a", "metadata": {"user": "u"}}, **rest)
        backend = RecordingSearch(found())
        VectorSearch(backend, embedding=Letters()).search(asked)
        passed = backend.requests[0].to_wire()
        assert passed.pop("query") == {"content": [1.0, 0.0, 0.0], "metadata": {"user": "u"}}
        assert passed == {**rest, "target": {"name": "kb"}}
        assert asked.query.content == "a"

    @pytest.mark.parametrize("answer", [[], [[1.0], [2.0]], [[]], [["1"]], [[float("nan")]], [[True]], None])
    def test_what_is_no_vector_is_refused_before_the_backend_is_asked(self, answer: Any) -> None:
        class Wrong(Letters):
            def embed(self, *_: Any) -> Any:
                return answer

        backend = RecordingSearch(found())
        with pytest.raises(RetrievalError) as raised:
            VectorSearch(backend, embedding=Wrong()).search(request())
        assert raised.value.code == "RETRIEVAL_INVALID_EMBEDDING"
        assert backend.requests == []

    def test_one_of_another_length_is_refused(self) -> None:
        assert refusal("a", embedding=Letters(), dimensions=2) == "RETRIEVAL_INVALID_EMBEDDING"

    def test_a_cancelled_call_embeds_and_searches_nothing(self) -> None:
        token, embedding, backend = Cancellation(), Letters(), RecordingSearch(found())
        token.cancel("not wanted")
        with pytest.raises(InvocationCancelled):
            VectorSearch(backend, embedding=embedding).search(request(), RetrievalCall(cancel=token))
        assert (embedding.asked, backend.requests) == ([], [])


class TestVectorOfTheDatabases:
    @pytest.mark.parametrize("content", ["text", {"text": "x"}, None])
    def test_the_query_goes_on_as_it_came(self, content: Any) -> None:
        assert searched(content, native_embedding=True).requests[0].query.content == content

    @pytest.mark.parametrize("content", ["text", {"text": "x"}, None, 1])
    def test_without_anything_that_embeds_it_must_be_a_vector(self, content: Any) -> None:
        assert refusal(content) == "RETRIEVAL_INVALID_INPUT"


class TestDefinition:
    def test_only_one_makes_the_vectors(self) -> None:
        with pytest.raises(RetrievalError, match="only one"):
            VectorSearch(RecordingSearch(found()), embedding=Letters(), native_embedding=True)

    @pytest.mark.parametrize("dimensions", [0, -1, 1.5, True, "3", 2**53, float("nan")])
    def test_dimensions_must_be_a_positive_integer(self, dimensions: Any) -> None:
        with pytest.raises(RetrievalError, match="dimensions is "):
            VectorSearch(RecordingSearch(found()), dimensions=dimensions)


class TestAnswer:
    @pytest.mark.parametrize("search", [VectorSearch, TextSearch])
    @pytest.mark.parametrize("answer", [None, found("a", "b"), found(target={"name": "other"})])
    def test_it_is_held_against_the_request(self, search: Any, answer: Any) -> None:
        content = [1.0] if search is VectorSearch else "text"
        with pytest.raises(RetrievalError) as raised:
            search(RecordingSearch(answer)).search(request(query={"content": content}, limit=1))
        assert raised.value.code == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    @pytest.mark.parametrize("search", [VectorSearch, TextSearch])
    def test_without_a_limit_the_calls_default_counts(self, search: Any) -> None:
        content = [1.0] if search is VectorSearch else "text"
        call = RetrievalCall(defaults=RetrievalDefaults(search_limit=1))
        with pytest.raises(RetrievalError, match="at most 1"):
            search(RecordingSearch(found("a", "b"))).search(request(query={"content": content}), call)


class TestText:
    @pytest.mark.parametrize("content", ["", " ", "\n\t", None, 1, ["text"], {"text": "x"}, [0.5]])
    def test_anything_but_text_is_refused_before_the_backend_is_asked(self, content: Any) -> None:
        backend = RecordingSearch(found())
        with pytest.raises(RetrievalError) as raised:
            TextSearch(backend).search(request(query={"content": content}))
        assert raised.value.code == "RETRIEVAL_INVALID_INPUT"
        assert backend.requests == []

    def test_text_goes_on_with_the_rest_of_the_request(self) -> None:
        backend, asked = RecordingSearch(found("a")), request(strategy="bm25", limit=2, options={"x": 1})
        call = RetrievalCall("id-1")
        output = TextSearch(backend).search(asked, call)
        assert (backend.requests, backend.calls) == ([asked], [call])
        assert output.to_wire() == found("a", strategy="bm25")
