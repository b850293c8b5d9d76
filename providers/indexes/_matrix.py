"""Vectors of an index as one matrix in memory, with what filters and ties ask of each; no I/O."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from providers.indexes._records import FILTER_FIELDS
from providers.indexes._vectors import Vector

__all__ = ["Matrix", "MatrixRow"]

GROWTH = 1.25  # of the room when it is used up
CLOSE = 1e-5  # more than a product of float32 is off: what is so close to the last hit is compared exactly
FEW = 8  # a filter that leaves less than one in so many has its vectors gathered before the product

_ABSENT = 0  # in the place of a filter's value, where there is none
_UNKNOWN = -1  # a value that no vector has


class MatrixRow(NamedTuple):
    """A vector with its number, its record's id, and the values of `FILTER_FIELDS`."""

    number: int
    id: str
    filtered: Sequence[str | None]
    vector: bytes  # float32, at length 1


class Matrix:
    """Finds the nearest of many vectors; to be used by one thread at a time.

    A vector takes 4 bytes a dimension and about 300 more, and there may be a quarter more room than vectors:
    31 to 45 MB for 20,000 vectors of 384 dimensions, 180 to 220 MB for 100,000.
    """

    def __init__(self, dimensions: int) -> None:
        self._vectors = np.empty((0, dimensions), dtype=np.float32)
        self._codes = np.empty((len(FILTER_FIELDS), 0), dtype=np.int32)  # a number for each value of a filter
        self._known: tuple[dict[str, int], ...] = tuple({} for _ in FILTER_FIELDS)
        self._numbers: list[int] = []  # by place
        self._ids: list[str] = []  # by place
        self._places: dict[int, int] = {}  # by number

    def __len__(self) -> int:
        return len(self._numbers)

    def put(self, rows: Sequence[MatrixRow]) -> None:
        """Put rows in the place of those with the same numbers."""
        if not rows:
            return
        places = [self._place(row) for row in rows]
        self._reserve(len(self))
        joined = np.frombuffer(b"".join(row.vector for row in rows), dtype=np.float32)
        self._vectors[places] = joined.reshape(len(rows), -1)
        for field, known in enumerate(self._known):
            self._codes[field, places] = [_coded(known, row.filtered[field]) for row in rows]

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove rows, if they are there; the last one takes the place of each."""
        for number in numbers:
            place = self._places.pop(number, None)
            if place is not None:
                self._fill(place)

    def nearest(self, query: Vector, limit: int, filter: Mapping[str, str]) -> list[tuple[int, float]]:
        """Return number and cosine of the nearest rows that match, nearest first, ties by id."""
        places = self._matching(filter)
        scores = self._scores(query.astype(np.float32), places)
        if len(scores) > limit:
            last = np.partition(scores, -limit)[-limit]
            close = np.flatnonzero(scores >= last - CLOSE)
            places = close if places is None else places[close]
        elif places is None:
            places = np.arange(len(self))
        return self._ranked(query, places)[:limit]

    def _place(self, row: MatrixRow) -> int:
        place = self._places.get(row.number)
        if place is None:
            place = self._places[row.number] = len(self._numbers)
            self._numbers.append(row.number)
            self._ids.append(row.id)
        return place

    def _reserve(self, count: int) -> None:
        room, dimensions = self._vectors.shape
        if count > room:
            more = max(count, int(room * GROWTH)) - room
            self._vectors = np.concatenate([self._vectors, np.empty((more, dimensions), np.float32)])
            codes = np.empty((len(FILTER_FIELDS), more), np.int32)
            self._codes = np.concatenate([self._codes, codes], axis=1)

    def _fill(self, place: int) -> None:
        number, id = self._numbers.pop(), self._ids.pop()
        last = len(self._numbers)
        if place != last:
            self._vectors[place] = self._vectors[last]
            self._codes[:, place] = self._codes[:, last]
            self._numbers[place], self._ids[place] = number, id
            self._places[number] = place

    def _matching(self, filter: Mapping[str, str]) -> npt.NDArray[np.intp] | None:
        """Return the places that a filter leaves, None for all."""
        if not filter:
            return None
        mask = np.ones(len(self), dtype=bool)
        for place, field in enumerate(FILTER_FIELDS):
            if field in filter:
                code = self._known[place].get(filter[field], _UNKNOWN)
                mask &= self._codes[place, : len(self)] == code
        return np.flatnonzero(mask)

    def _scores(
        self, query: npt.NDArray[np.float32], places: npt.NDArray[np.intp] | None
    ) -> npt.NDArray[np.float32]:
        if places is not None and len(places) * FEW < len(self):
            return _products(self._vectors[places], query)
        scores = _products(self._vectors[: len(self)], query)
        return scores if places is None else scores[places]

    def _ranked(self, query: Vector, places: npt.NDArray[np.intp]) -> list[tuple[int, float]]:
        """Order by exact scores: those of equal vectors are equal, wherever in the matrix they are."""
        exact = np.clip((self._vectors[places] * query).sum(axis=1), -1.0, 1.0)
        ranked = sorted(zip((-exact).tolist(), places.tolist(), strict=True), key=self._by_score_then_id)
        return [(self._numbers[place], 0.0 - badness) for badness, place in ranked]

    def _by_score_then_id(self, pair: tuple[float, int]) -> tuple[float, str]:
        return pair[0], self._ids[pair[1]]


def _products(vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Multiply in this thread alone: those that `@` shares it with wait for each other on busy cores."""
    products: npt.NDArray[np.float32] = np.einsum("ij,j->i", vectors, query)
    return products


def _coded(known: dict[str, int], value: str | None) -> int:
    return _ABSENT if value is None else known.setdefault(value, len(known) + 1)
