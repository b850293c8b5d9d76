"""Scores that candidates lend each other: known figures, and what holds for all pools."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.retrieval.smoothing import smoothed_scores

EAST, NORTH = (1.0, 0.0), (0.0, 1.0)
NORTH_EAST = (np.sqrt(0.5), np.sqrt(0.5))


@st.composite
def pools(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    size = draw(st.integers(1, 12))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    vectors = random.normal(size=(size, 4))
    return random.random(size), vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_two_of_a_kind_meet_in_the_middle_and_a_stranger_keeps_its_score() -> None:
    found = smoothed_scores(np.array([1.0, 0.6, 0.2]), np.array([EAST, NORTH, EAST]))
    assert found == pytest.approx([0.6, 0.6, 0.6])


def test_neighbours_count_by_their_similarity() -> None:
    vectors = np.array([NORTH_EAST, EAST, NORTH, (-1.0, 0.0)])
    found = smoothed_scores(np.array([0.0, 1.0, 0.5, 9.0]), vectors, share=1.0)
    assert found == pytest.approx([0.75, 0.0, 0.0, 9.0])


def test_only_the_nearest_count() -> None:
    vectors = np.array([EAST, EAST, NORTH_EAST])
    assert smoothed_scores(np.array([0.0, 1.0, 5.0]), vectors, share=1.0, neighbours=1)[0] == 1.0


def test_a_zero_vector_is_like_nothing() -> None:
    vectors = np.array([EAST, (0.0, 0.0)])
    assert smoothed_scores(np.array([1.0, 0.5]), vectors) == pytest.approx([1.0, 0.5])


def test_a_candidate_by_itself_keeps_its_score() -> None:
    assert smoothed_scores(np.array([0.7]), np.array([EAST])) == pytest.approx([0.7])


@pytest.mark.parametrize("size", [0, 1])
def test_small_pools(size: int) -> None:
    assert smoothed_scores(np.zeros(size), np.zeros((size, 3))).shape == (size,)


@given(pool=pools())
def test_a_share_of_nothing_changes_nothing(pool: tuple[np.ndarray, np.ndarray]) -> None:
    assert np.array_equal(smoothed_scores(*pool, share=0.0), pool[0])


@given(pool=pools(), share=st.floats(0, 1), neighbours=st.integers(1, 20))
def test_scores_stay_between_the_least_and_the_largest(
    pool: tuple[np.ndarray, np.ndarray], share: float, neighbours: int
) -> None:
    found = smoothed_scores(*pool, share=share, neighbours=neighbours)
    assert found.min() >= pool[0].min() - 1e-12
    assert found.max() <= pool[0].max() + 1e-12


@given(pool=pools(), factor=st.floats(0.1, 10), shift=st.floats(-5, 5))
def test_the_unit_and_the_zero_of_the_scores_do_not_matter(
    pool: tuple[np.ndarray, np.ndarray], factor: float, shift: float
) -> None:
    scores, vectors = pool
    found = smoothed_scores(scores * factor + shift, vectors)
    assert found == pytest.approx(smoothed_scores(scores, vectors) * factor + shift, abs=1e-9)
