"""Many contents in bounded batches, and vectors held against what a vector must be."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ditto_tasks.contracts.base import describe
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    DEFAULT_BATCH_SIZE,
    NO_RETRIEVAL_CALL,
    EmbeddingDefaults,
    EmbeddingProvider,
    Purpose,
    RetrievalCall,
)

__all__ = ["Vector", "Vectors", "embed_contents", "validate_vector"]

Vector = NDArray[np.floating[Any]]
"""Shape (d,), d at least 1; every component is finite."""

Vectors = NDArray[np.floating[Any]]
"""Shape (n, d)."""

_EXACT = frozenset({float, int})  # what JSON numbers become; bool has a type of its own
_PURPOSES = get_args(Purpose)


def embed_contents(
    provider: EmbeddingProvider,
    contents: Sequence[Any],
    purpose: Purpose,
    *,
    batch_size: int | None = None,
    dimensions: int | None = None,
    call: RetrievalCall = NO_RETRIEVAL_CALL,
) -> Vectors:
    """Embed contents, one batch after the other.

    Args:
        batch_size: contents a request, 1 to 2048; None: the call's default, else 64.
        dimensions: what the vectors must have; None: the call's default, else what the first one has. It
            changes no vector and no request.

    Returns:
        Shape (n, d), in the order of the contents; (0, 0) for none, without a request. float64, or the type
        that the provider's arrays have.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for an argument; RETRIEVAL_INVALID_EMBEDDING when the
            provider's vectors are not one a content, or not all of `dimensions` finite numbers.
        InvocationCancelled, DeadlineExceeded: `call` says so, before a batch or after it.
    """
    call.check()
    _check_arguments(provider, contents, purpose)
    given = _given(batch_size, dimensions)
    size = given.batch_size or call.embedding.batch_size or DEFAULT_BATCH_SIZE
    expected = given.dimensions or call.embedding.dimensions
    done: list[Vectors] = []
    for batch in _batches(contents, size):
        call.check()
        vectors = _checked(provider.embed(batch, purpose, call), len(batch), expected)
        call.check()
        expected = vectors.shape[1]
        done.append(vectors)
    return np.concatenate(done) if done else np.empty((0, 0))


def validate_vector(vector: Any, dimensions: int | None = None) -> Vector:
    """Check that this is a vector: a list, a tuple or an array of finite numbers, at least one.

    Numbers alone are numbers: neither true, nor null, nor text.

    Returns:
        The array itself where one of floats was given, else float64.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_EMBEDDING, without showing a component.
    """
    checked = _numbers(vector)
    if dimensions is not None and checked.size != dimensions:
        raise _invalid(f"a vector has {checked.size} dimensions where {dimensions} are due")
    if not np.isfinite(checked).all():
        raise _invalid("a component is not finite")
    return checked


def _check_arguments(provider: Any, contents: Any, purpose: Any) -> None:
    if not callable(getattr(provider, "embed", None)):
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", "embedding: must be a provider with a method 'embed'")
    if not isinstance(contents, Sequence) or isinstance(contents, str | bytes):
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", "contents: must be a list")
    if purpose not in _PURPOSES:
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", f"purpose: must be one of {', '.join(_PURPOSES)}")


def _given(batch_size: Any, dimensions: Any) -> EmbeddingDefaults:
    fields = {"batch_size": batch_size, "dimensions": dimensions}
    try:
        return EmbeddingDefaults(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", describe(error)) from None


def _batches(contents: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(contents), size):
        yield contents[start : start + size]


def _checked(answer: Any, count: int, dimensions: int | None) -> Vectors:
    """Hold one batch's answer against what is due; `dimensions` None: what its first vector has."""
    if not isinstance(answer, list | tuple | np.ndarray) or len(answer) != count:
        raise _invalid(f"the provider must give {count} vectors, one a content")
    if isinstance(answer, np.ndarray) and answer.ndim == 2 and answer.dtype.kind == "f":
        validate_vector(answer[0], dimensions)
        return _all_finite(answer)
    vectors: list[Vector] = []
    for vector in answer:
        vectors.append(validate_vector(vector, dimensions))
        dimensions = vectors[0].size
    return np.stack(vectors)


def _all_finite(vectors: Vectors) -> Vectors:
    if not np.isfinite(vectors).all():
        raise _invalid("a component is not finite")
    return vectors


def _numbers(vector: Any) -> Vector:
    if isinstance(vector, np.ndarray):
        return _array_numbers(vector)
    if not isinstance(vector, list | tuple) or not vector:
        raise _invalid("a vector must be a list of numbers, at least one")
    if not (set(map(type, vector)) <= _EXACT or all(map(_is_number, vector))):
        raise _invalid("a component is no number")
    try:
        return np.array(vector, dtype=np.float64)
    except OverflowError:
        raise _invalid("a component is beyond the range of numbers") from None


def _array_numbers(vector: NDArray[Any]) -> Vector:
    if vector.ndim != 1 or not vector.size or vector.dtype.kind not in "fiu":
        raise _invalid("a vector must be an array of one dimension that holds numbers, at least one")
    return vector if vector.dtype.kind == "f" else vector.astype(np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)


def _invalid(what: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_EMBEDDING", f"Invalid embedding: {what}")
