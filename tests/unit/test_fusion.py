"""Fusing ranked lists: known figures, and what holds for all lists."""

import math
import time
from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.retrieval.fusion import Branch, Fused, min_max_scores, reciprocal_ranks

Fuse = Callable[[Sequence[Branch[str]]], list[Fused[str]]]

BOTH: list[Fuse] = [reciprocal_ranks, min_max_scores]


def ranked(*identities: str) -> list[tuple[str, None]]:
    return [(identity, None) for identity in identities]


def order(fused: Sequence[Fused[str]]) -> list[str]:
    return [candidate.identity for candidate in fused]


def scores(fused: Sequence[Fused[str]]) -> dict[str, float]:
    return {candidate.identity: candidate.score for candidate in fused}


class TestKnownFigures:
    def test_a_candidate_counts_once_a_branch_at_its_first_rank(self) -> None:
        fused = reciprocal_ranks(
            [
                Branch([("a", 0.99), ("a", 0.98), ("b", 0.1)]),
                Branch([("b", 900.0), ("a", 20.0)], weight=2.0),
            ],
            k=1,
            limit=2,
        )
        assert order(fused) == ["b", "a"]
        assert scores(fused) == {"b": 1 / 4 + 2 / 2, "a": 1 / 2 + 2 / 3}
        assert fused[0].contributions == ((0, 3, 0.1, 1.0, 1 / 4), (1, 1, 900.0, 2.0, 1.0))

    def test_weights_four_to_one(self) -> None:
        fused = reciprocal_ranks([Branch(ranked("x", "y"), 4.0), Branch(ranked("y", "x"), 1.0)], k=60)
        assert scores(fused) == pytest.approx({"x": 0.081703, "y": 0.080910}, abs=5e-7)

    def test_a_weight_below_one(self) -> None:
        fused = reciprocal_ranks([Branch(ranked("a")), Branch(ranked("x", "a"), 0.7)], k=60)
        assert scores(fused) == {"a": 0.02768376520359598, "x": 0.011475409836065573}

    def test_what_both_found_comes_before_what_one_found(self) -> None:
        fused = reciprocal_ranks([Branch(ranked("X", "a", "Y")), Branch(ranked("b", "c", "Y"))], k=60)
        assert order(fused) == ["Y", "X", "b", "a", "c"]

    def test_equal_scores_keep_the_order_first_seen(self) -> None:
        fused = reciprocal_ranks([Branch(ranked("a", "b")), Branch(ranked("b", "a"))], k=60)
        assert [tuple(candidate[:2]) for candidate in fused] == [
            ("a", 0.03252247488101534),
            ("b", 0.03252247488101534),
        ]

    def test_scores_of_each_branch_are_brought_to_one_scale(self) -> None:
        fused = min_max_scores(
            [
                Branch([("a", 30.0), ("b", 20.0), ("c", 10.0)]),
                Branch([("b", 0.9), ("d", 0.5)], weight=2.0),
            ]
        )
        assert [tuple(candidate[:2]) for candidate in fused] == [
            ("b", 2.5),
            ("a", 1.0),
            ("c", 0.0),
            ("d", 0.0),
        ]


class TestScoresThatHaveNoScale:
    def test_a_single_candidate_gets_the_whole_weight(self) -> None:
        assert scores(min_max_scores([Branch([("a", -3.0)], 0.7)])) == {"a": 0.7}

    def test_equal_scores_get_the_whole_weight(self) -> None:
        assert scores(min_max_scores([Branch([("a", 5.0), ("b", 5.0)])])) == {"a": 1.0, "b": 1.0}

    @pytest.mark.parametrize("score", [None, math.nan, math.inf, -math.inf])
    def test_a_branch_with_a_missing_score_goes_by_ranks(self, score: float | None) -> None:
        fused = min_max_scores([Branch([("a", 9.0), ("b", score), ("c", 8.9)], 2.0)])
        assert scores(fused) == {"a": 2.0, "b": 1.0, "c": 0.0}

    def test_scores_too_far_apart_to_subtract_go_by_ranks(self) -> None:
        fused = min_max_scores([Branch([("a", 1.7e308), ("b", 1.6e308), ("c", -1.7e308)])])
        assert scores(fused) == {"a": 1.0, "b": 0.5, "c": 0.0}

    def test_a_repeated_candidate_does_not_widen_the_scale(self) -> None:
        fused = min_max_scores([Branch([("a", 3.0), ("b", 2.0), ("a", 1.0)])])
        assert scores(fused) == {"a": 1.0, "b": 0.0}


@pytest.mark.parametrize("fuse", BOTH)
class TestNothingFound:
    def test_no_branch_gives_nothing(self, fuse: Fuse) -> None:
        assert fuse([]) == []

    def test_an_empty_branch_changes_nothing(self, fuse: Fuse) -> None:
        found = Branch([("a", 2.0), ("b", 1.0)])
        assert scores(fuse([Branch([]), found])) == scores(fuse([found]))


weights = st.floats(0.01, 100.0)
branch_lists = st.lists(
    st.builds(
        Branch,
        st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.floats(-1e6, 1e6)), max_size=12),
        weights,
    ),
    max_size=4,
)


@pytest.mark.parametrize("fuse", BOTH)
class TestWhatAlwaysHolds:
    @given(branches=branch_lists)
    def test_every_candidate_is_there_once(self, fuse: Fuse, branches: list[Branch[str]]) -> None:
        found = {identity for branch in branches for identity, _ in branch.ranked}
        assert sorted(order(fuse(branches))) == sorted(found)

    @given(branches=branch_lists)
    def test_contributions_add_up_to_the_score(self, fuse: Fuse, branches: list[Branch[str]]) -> None:
        for candidate in fuse(branches):
            assert candidate.score == sum(part.value for part in candidate.contributions)

    @given(branches=branch_lists)
    def test_contributions_tell_what_the_branches_said(self, fuse: Fuse, branches: list[Branch[str]]) -> None:
        for candidate in fuse(branches):
            told = [part.branch for part in candidate.contributions]
            assert told == sorted(set(told))
            for part in candidate.contributions:
                branch = branches[part.branch]
                assert branch.ranked[part.rank - 1] == (candidate.identity, part.score)
                assert candidate.identity not in [name for name, _ in branch.ranked[: part.rank - 1]]
                assert part.weight == branch.weight

    @given(branches=branch_lists)
    def test_the_best_is_first_and_equals_stay_in_the_order_first_seen(
        self, fuse: Fuse, branches: list[Branch[str]]
    ) -> None:
        fused = fuse(branches)
        seen = list(dict.fromkeys(name for branch in branches for name, _ in branch.ranked))
        assert fused == sorted(fused, key=lambda one: (-one.score, seen.index(one.identity)))

    @given(branches=branch_lists, limit=st.integers(0, 10))
    def test_a_limit_cuts_and_changes_nothing_else(
        self, fuse: Callable[..., list[Fused[str]]], branches: list[Branch[str]], limit: int
    ) -> None:
        assert fuse(branches, limit=limit) == fuse(branches)[:limit]


class TestReciprocalRanks:
    @given(branches=branch_lists, k=st.integers(1, 1000))
    def test_scores_are_those_of_the_formula(self, branches: list[Branch[str]], k: int) -> None:
        for candidate in reciprocal_ranks(branches, k=k):
            exact = sum(
                Fraction(branch.weight) / (k + names.index(candidate.identity) + 1)
                for branch in branches
                if candidate.identity in (names := [name for name, _ in branch.ranked])
            )
            assert candidate.score == pytest.approx(float(exact), rel=1e-12)

    @given(branches=branch_lists)
    def test_raw_scores_do_not_matter(self, branches: list[Branch[str]]) -> None:
        blind = [Branch([(name, None) for name, _ in one.ranked], one.weight) for one in branches]
        assert scores(reciprocal_ranks(blind)) == scores(reciprocal_ranks(branches))


class TestMinMaxScores:
    @given(branches=branch_lists)
    def test_a_branch_gives_between_nothing_and_its_weight(self, branches: list[Branch[str]]) -> None:
        for candidate in min_max_scores(branches):
            for part in candidate.contributions:
                assert 0 <= part.value <= part.weight

    @given(
        found=st.lists(st.integers(-1000, 1000), min_size=1, max_size=12),
        factor=st.sampled_from([0.25, 2.0, 64.0]),
        shift=st.integers(-1000, 1000),
    )
    def test_the_unit_and_the_zero_of_a_branch_do_not_matter(
        self, found: list[int], factor: float, shift: int
    ) -> None:
        branch = Branch([(f"{place}", float(score)) for place, score in enumerate(found)])
        other = Branch([(name, score * factor + shift) for name, score in branch.ranked if score is not None])
        assert scores(min_max_scores([other])) == pytest.approx(scores(min_max_scores([branch])), abs=1e-9)


@pytest.mark.parametrize("fuse", BOTH)
def test_ten_thousand_candidates_of_two_branches_fuse_fast(fuse: Callable[..., list[Fused[str]]]) -> None:
    names = [f"record-{number}" for number in range(10_000)]
    branches = [
        Branch([(name, -float(rank)) for rank, name in enumerate(names)]),
        Branch([(name, -float(rank)) for rank, name in enumerate(reversed(names))], 2.0),
    ]
    assert min(_seconds(fuse, branches) for _ in range(5)) < 0.2  # 10 ms; much more only on a busy machine


def _seconds(fuse: Callable[..., list[Fused[str]]], branches: Sequence[Branch[str]]) -> float:
    start = time.process_time()
    fuse(branches, limit=100)
    return time.process_time() - start
