"""Batches of contents, and what a vector may be."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import InvocationCancelled, RetrievalError
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall, RetrievalDefaults
from providers.embedding.batching import embed_contents, validate_vector

HUGE = 10**400


class Model:
    """Gives what `answer` makes of a batch, and keeps the batches."""

    def __init__(self, answer: Callable[[Sequence[Any]], Any] | None = None) -> None:
        self.batches: list[list[Any]] = []
        self._answer = answer or (lambda batch: [[float(content), 0.0] for content in batch])

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Any:
        self.batches.append(list(contents))
        return self._answer(contents)


def with_defaults(**embedding: int) -> RetrievalCall:
    return RetrievalCall(defaults=RetrievalDefaults.from_wire({"embedding": embedding}))


def refusal(*args: Any, **options: Any) -> str:
    with pytest.raises(RetrievalError) as failure:
        embed_contents(*args, **options)
    return failure.value.code


# --- batches


def test_batches_are_sent_in_order_and_vectors_stay_in_it() -> None:  # vector 82
    model = Model()
    vectors = embed_contents(model, [1, 2, 3], "document", batch_size=2)
    assert model.batches == [[1, 2], [3]]
    assert vectors.tolist() == [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]
    assert vectors.dtype == np.float64


def test_nothing_is_embedded_without_a_call() -> None:  # vector 83
    model = Model()
    assert embed_contents(model, [], "document").shape == (0, 0)
    assert model.batches == []


def test_a_cancelled_call_raises_even_for_nothing() -> None:  # vector 83
    cancel = Cancellation()
    cancel.cancel()
    with pytest.raises(InvocationCancelled):
        embed_contents(Model(), [], "document", call=RetrievalCall(cancel=cancel))


def test_a_call_cancelled_during_a_batch_ends_after_it() -> None:
    cancel = Cancellation()

    def answer(batch: Sequence[Any]) -> Any:
        cancel.cancel()
        return [[1.0] for _ in batch]

    model = Model(answer)
    with pytest.raises(InvocationCancelled):
        embed_contents(model, [1, 2], "document", batch_size=1, call=RetrievalCall(cancel=cancel))
    assert model.batches == [[1]]


@pytest.mark.parametrize("size", [0, 2049, -1, True, 1.5, "2"])
def test_a_batch_size_out_of_range_is_refused(size: Any) -> None:  # vector 85
    model = Model()
    assert refusal(model, [1], "document", batch_size=size) == "RETRIEVAL_INVALID_INPUT"
    assert model.batches == []


@pytest.mark.parametrize("dimensions", [0, -1, False, 2.5, "2"])
def test_dimensions_that_are_none_are_refused(dimensions: Any) -> None:
    assert refusal(Model(), [1], "document", dimensions=dimensions) == "RETRIEVAL_INVALID_INPUT"


@pytest.mark.parametrize(
    ("provider", "contents", "purpose"),
    [
        (Model(), "text", "query"),
        (Model(), b"text", "query"),
        (Model(), None, "query"),
        (Model(), {"a": 1}, "query"),
        (Model(), [1], "passage"),
        (Model(), [1], None),
        (object(), [1], "query"),
    ],
)
def test_other_arguments_are_checked_too(provider: Any, contents: Any, purpose: Any) -> None:
    assert refusal(provider, contents, purpose) == "RETRIEVAL_INVALID_INPUT"


def test_the_argument_wins_over_the_default_of_the_call_and_that_over_the_constant() -> None:
    contents = list(range(65))
    for options, sizes in (
        ({}, [64, 1]),
        ({"call": with_defaults(batchSize=40)}, [40, 25]),
        ({"call": with_defaults(batchSize=40), "batch_size": 60.0}, [60, 5]),
    ):
        model = Model()
        embed_contents(model, contents, "document", **options)  # type: ignore[arg-type]
        assert [len(batch) for batch in model.batches] == sizes


def test_the_dimensions_are_those_that_were_named_or_those_of_the_first_vector() -> None:
    assert embed_contents(Model(), [1], "query", dimensions=2).shape == (1, 2)
    assert refusal(Model(), [1], "query", dimensions=3) == "RETRIEVAL_INVALID_EMBEDDING"
    assert refusal(Model(), [1], "query", call=with_defaults(dimensions=3)) == "RETRIEVAL_INVALID_EMBEDDING"
    assert embed_contents(Model(), [1], "query", dimensions=2, call=with_defaults(dimensions=3)).shape == (
        1,
        2,
    )
    growing = Model(lambda batch: [[1.0] * content for content in batch])
    assert refusal(growing, [1, 2], "document") == "RETRIEVAL_INVALID_EMBEDDING"
    assert refusal(growing, [1, 2], "document", batch_size=1) == "RETRIEVAL_INVALID_EMBEDDING"


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [[1.0]],
        [[1.0]] * 3,
        None,
        "ab",
        {0: [1.0], 1: [1.0]},
        [[1.0], [True]],
        [[1.0], [None]],
        [[1.0], ["1"]],
        [[1.0], []],
        [[1.0], [float("nan")]],
        [[1.0], [HUGE]],
        [[1.0], 1.0],
        [[[1.0]], [[1.0]]],
        np.ones((2, 0)),
        np.ones((3, 1)),
        np.ones(2),
        np.ones((2, 1, 1)),
        np.array([[1.0], [np.inf]]),
        np.ones((2, 1), dtype=bool),
        np.ones((2, 1), dtype=complex),
        np.array([["1"], ["2"]]),
        np.array([[1.0], [None]], dtype=object),
    ],
)
def test_an_answer_that_is_not_one_vector_a_content_is_refused(answer: Any) -> None:
    assert refusal(Model(lambda _: answer), [1, 2], "document") == "RETRIEVAL_INVALID_EMBEDDING"


@pytest.mark.parametrize(
    ("answer", "dtype"),
    [
        (np.ones((2, 3), dtype=np.float32), np.float32),
        (np.ones((2, 3), dtype=np.int8), np.float64),
        ([np.ones(3, dtype=np.float32)] * 2, np.float32),
        (((1, 1, 1), (1.0, 1, 1)), np.float64),
        ([[1, 2**60, 1e300]] * 2, np.float64),
    ],
)
def test_lists_tuples_and_arrays_are_taken(answer: Any, dtype: Any) -> None:
    vectors = embed_contents(Model(lambda _: answer), [1, 2], "document")
    assert (vectors.shape, vectors.dtype) == ((2, 3), dtype)
    assert vectors.tolist() == [[float(number) for number in vector] for vector in answer]


# --- one vector


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70), min_size=1))
def test_finite_numbers_are_a_vector(numbers: list[float]) -> None:
    for given_ in (numbers, tuple(numbers), np.array(numbers, dtype=np.float64)):
        checked = validate_vector(given_, len(numbers))
        assert checked.dtype == np.float64
        assert checked.tolist() == [float(number) for number in numbers]


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1),
    st.sampled_from(
        [True, False, None, "1", b"1", [1.0], {}, 1j, HUGE, -HUGE, np.True_, np.nan, np.inf, -np.inf]
    ),
    st.randoms(use_true_random=False),
)
def test_one_component_that_is_no_finite_number_refuses_the_vector(
    numbers: list[Any], bad: Any, at: Any
) -> None:
    numbers.insert(at.randint(0, len(numbers)), bad)
    for given_ in (numbers, tuple(numbers)):
        with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_EMBEDDING"):
            validate_vector(given_)


@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_, np.complex64]),
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3),
    )
)
def test_an_array_is_a_vector_when_it_has_one_dimension_of_finite_numbers(array: Any) -> None:
    is_vector = array.ndim == 1 and array.size and array.dtype.kind in "fiu" and np.isfinite(array).all()
    if is_vector:
        assert validate_vector(array).tolist() == [float(number) for number in array]
        return
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_EMBEDDING"):
        validate_vector(array)


@given(st.none() | st.integers() | st.text() | st.binary() | st.dictionaries(st.integers(), st.floats()))
def test_what_is_no_list_is_no_vector(value: Any) -> None:
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_EMBEDDING"):
        validate_vector(value)


def test_numbers_of_numpy_in_a_list_are_numbers() -> None:
    assert validate_vector([np.float32(0.5), np.int64(2), 1.0]).tolist() == [0.5, 2.0, 1.0]


@pytest.mark.parametrize(("vector", "dimensions"), [([0, 1], 1), ([0], 2), ([], 2), ([], None)])
def test_the_length_must_be_that_which_is_due(vector: list[float], dimensions: int | None) -> None:
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_EMBEDDING"):
        validate_vector(vector, dimensions)


def test_a_refusal_shows_no_component() -> None:
    with pytest.raises(RetrievalError) as failure:
        validate_vector([1.0, "hunter2"])
    assert "hunter2" not in str(failure.value)
