"""Vectors as every index keeps them: checked, and brought to length 1, so that cosine is the inner product.

Scaling first keeps what is beyond the range of float32: no component can overflow or vanish on its way.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.index import IndexEntry

__all__ = ["Vector", "checked_entries", "unit_vector"]

Vector = npt.NDArray[np.float64]

_TRUTHS = frozenset({bool, np.bool_})


def unit_vector(vector: Sequence[float] | npt.NDArray[Any], dimensions: int) -> Vector:
    """Return the vector at length 1, a zero vector as it is; shape (dimensions,).

    Raises:
        RetrievalError: RETRIEVAL_INVALID_EMBEDDING for another length, or a component that is no finite
            number; true and false are none.
    """
    numbers = _numbers(vector)
    if len(numbers) != dimensions:
        raise _invalid(f"a vector has {len(numbers)} numbers where the index holds {dimensions}")
    largest = np.abs(numbers).max()
    if largest == 0.0:
        return numbers
    scaled = numbers / largest
    unit: Vector = scaled / np.linalg.norm(scaled)
    return unit


def checked_entries(entries: Sequence[IndexEntry], dimensions: int) -> list[tuple[IndexEntry, Vector]]:
    """Give each entry with its vector at length 1; of those with one id, the last.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_EMBEDDING as `unit_vector` says.
    """
    checked = {entry.record.id: (entry, unit_vector(entry.vector, dimensions)) for entry in entries}
    return list(checked.values())


def _numbers(vector: Sequence[float] | npt.NDArray[Any]) -> Vector:
    if not isinstance(vector, np.ndarray) and not _TRUTHS.isdisjoint(map(type, vector)):
        raise _invalid("a vector holds true or false where a number must be")
    try:
        numbers = np.asarray(vector)
    except ValueError:  # lists of different lengths
        raise _invalid("a vector must be a list of numbers") from None
    if numbers.ndim != 1 or numbers.dtype.kind not in "fiu":
        raise _invalid("a vector must be a list of numbers")
    numbers = numbers.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise _invalid("a vector holds a number that is not finite")
    return numbers


def _invalid(message: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_EMBEDDING", message)
