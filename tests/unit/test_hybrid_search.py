"""Several searches at once, fused: who is asked for what, when it ends, and what the output says."""

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditto_tasks import Cancellation, InvocationCancelled
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.json_value import strict_json
from ditto_tasks.contracts.retrieval import RetrievalCall, RetrievalDefaults, RetrievalSearchOutput
from providers.retrieval.hybrid import HybridBranch, HybridSearch
from tests.doubles import RecordingSearch, found, request

WAIT = 30.0  # seconds; a bound, never reached
fork = multiprocessing.get_context("fork")


def branch(answer: Any, strategy: str = "vector", weight: float = 1.0) -> HybridBranch:
    return HybridBranch(RecordingSearch(answer), strategy, weight)


def scored(*pairs: tuple[str, float]) -> dict[str, Any]:
    return found(*({"id": id, "content": id, "score": score} for id, score in pairs))


def call_with(**defaults: Any) -> RetrievalCall:
    return RetrievalCall(defaults=RetrievalDefaults.from_wire(defaults))


def scores(output: RetrievalSearchOutput) -> dict[str | None, Any]:
    return {candidate.id: candidate.score for candidate in output.candidates}


def ids(output: RetrievalSearchOutput) -> list[str | None]:
    return [candidate.id for candidate in output.candidates]


def fusion_of(output: RetrievalSearchOutput) -> dict[str, Any]:
    assert output.metadata is not None
    fusion: dict[str, Any] = output.metadata["fusion"]
    return fusion


def code_of(run: Callable[[], Any]) -> str:
    with pytest.raises(RetrievalError) as raised:
        run()
    return raised.value.code


class TestKnownFigures:
    def test_a_candidate_counts_once_a_branch_at_its_first_rank(self) -> None:
        search = HybridSearch(
            [
                branch(scored(("a", 0.99), ("a", 0.98), ("b", 0.1))),
                branch(scored(("b", 900), ("a", 20)), "keyword", 2.0),
            ],
            rrf_k=1,
        )
        output = search.search(request(limit=2))
        assert ids(output) == ["b", "a"]
        assert scores(output) == {"b": 1 / 4 + 2 / 2, "a": 1 / 2 + 2 / 3}

    def test_equal_scores_keep_the_order_first_seen(self) -> None:
        output = HybridSearch([branch(found("a", "b")), branch(found("b", "a"))]).search(request())
        assert [(one.id, one.score) for one in output.candidates] == [
            ("a", 0.03252247488101534),
            ("b", 0.03252247488101534),
        ]

    def test_weights(self) -> None:
        output = HybridSearch([branch(found("x", "y"), weight=4), branch(found("y", "x"), weight=1)]).search(
            request()
        )
        assert scores(output) == {"x": 4 / 61 + 1 / 62, "y": 4 / 62 + 1 / 61}
        assert scores(output) == pytest.approx({"x": 0.081703, "y": 0.080910}, abs=5e-7)
        output = HybridSearch([branch(found("a")), branch(found("x", "a"), weight=0.7)]).search(request())
        assert scores(output) == {"a": 0.02768376520359598, "x": 0.011475409836065573}

    def test_what_both_found_comes_before_what_one_found(self) -> None:
        output = HybridSearch([branch(found("X", "a", "Y")), branch(found("b", "c", "Y"))]).search(request())
        assert ids(output) == ["Y", "X", "b", "a", "c"]

    def test_a_single_branch(self) -> None:
        assert scores(HybridSearch([branch(found("a"))], rrf_k=1).search(request())) == {"a": 0.5}

    def test_nothing_found(self) -> None:
        output = HybridSearch([branch(found()), branch(found())]).search(request())
        assert output.to_wire() == found(
            metadata={"fusion": {"method": "rrf", "k": 60, "contributions": {}, "branches": [{}, {}]}}
        )

    def test_scores_brought_to_one_scale(self) -> None:
        output = HybridSearch(
            [
                branch(scored(("a", 30), ("b", 20), ("c", 10))),
                branch(scored(("b", 0.9), ("d", 0.5)), "keyword", 2),
            ],
            fusion="min-max",
        ).search(request())
        assert scores(output) == {"b": 2.5, "a": 1.0, "c": 0.0, "d": 0.0}
        assert fusion_of(output)["method"] == "min-max"
        assert "k" not in fusion_of(output)


class TestRequestOfABranch:
    @pytest.mark.parametrize(
        ("asked", "own", "defaults", "pool"),
        [
            ({}, None, {}, 100),
            ({"limit": 2}, None, {"hybrid": {"candidateLimit": 7}}, 7),
            ({"limit": 2}, 5, {"hybrid": {"candidateLimit": 7}}, 5),
            ({"limit": 200}, 100, {}, 200),
            ({}, 5, {"searchLimit": 20}, 20),
            ({}, 5, {}, 10),
            ({"limit": 10_000}, None, {}, 10_000),
        ],
    )
    def test_the_pool_is_at_least_the_floor_and_never_below_the_limit(
        self, asked: Any, own: int | None, defaults: Any, pool: int
    ) -> None:
        search = RecordingSearch(found())
        HybridSearch([HybridBranch(search, "v")], candidate_limit=own).search(
            request(**asked), call_with(**defaults)
        )
        assert search.limits == [pool]

    def test_k_is_the_constructors_then_the_calls_then_sixty(self) -> None:
        def k(own: int | None, **defaults: Any) -> Any:
            output = HybridSearch([branch(found("a"))], rrf_k=own).search(request(), call_with(**defaults))
            return fusion_of(output)["k"], output.candidates[0].score

        assert k(None) == (60, 1 / 61)
        assert k(None, hybrid={"rrfK": 3}) == (3, 1 / 4)
        assert k(1, hybrid={"rrfK": 3}) == (1, 1 / 2)

    def test_each_is_asked_by_its_strategy_and_otherwise_as_was_asked(self) -> None:
        branches = [branch(found(strategy="vector")), branch(found(strategy="keyword"), "keyword")]
        asked = request(strategy="hybrid", limit=3, filter={"a": 1}, options={"ef": 1})
        call = RetrievalCall("id-1")
        output = HybridSearch(branches, candidate_limit=4).search(asked, call)
        for one in branches:
            provider: Any = one.provider
            assert provider.requests[0].to_wire() == {
                **asked.to_wire(),
                "strategy": one.strategy,
                "limit": 4,
            }
            assert provider.calls == [call]
        assert output.strategy == "hybrid"

    def test_without_a_strategy_the_output_has_none(self) -> None:
        assert "strategy" not in HybridSearch([branch(found())]).search(request()).to_wire()

    def test_the_output_is_cut_to_the_limit(self) -> None:
        output = HybridSearch([branch(found("a", "b", "c"))], candidate_limit=50).search(request(limit=2))
        assert ids(output) == ["a", "b"]
        assert list(fusion_of(output)["contributions"]) == ['["kb","a"]', '["kb","b"]']


class TestIdentity:
    def test_it_is_the_sources_target_with_the_id_or_the_ref(self) -> None:
        first = found(
            {"id": "a", "content": 1},
            {"id": "a", "content": 2, "source": {"target": "other"}},
            {"content": 3, "source": {"ref": "r"}},
            {"id": "i", "content": 4, "source": {"ref": "r"}},
            {"id": '"ü', "content": 5, "source": {"target": "t", "ref": "r"}},
        )
        output = HybridSearch([branch(first)]).search(request())
        assert list(fusion_of(output)["contributions"]) == [
            '["kb","a"]',
            '["other","a"]',
            '["kb","r"]',
            '["kb","i"]',
            '["t","\\"ü"]',
        ]

    def test_an_id_and_a_ref_of_that_name_are_one(self) -> None:
        output = HybridSearch(
            [branch(found("a")), branch(found({"content": 9, "source": {"target": "kb", "ref": "a"}}))]
        ).search(request())
        assert [(one.id, one.content) for one in output.candidates] == [("a", "a")]

    @pytest.mark.parametrize("key", [None, lambda _: None, lambda _: ""])
    @pytest.mark.parametrize("source", [{}, {"source": {}}, {"source": {"target": "t"}}])
    def test_a_candidate_without_any_is_refused(self, key: Any, source: dict[str, Any]) -> None:
        search = HybridSearch([branch(found({"content": 1, **source}))], key=key)
        assert code_of(lambda: search.search(request())) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    def test_a_key_makes_candidates_of_several_sources_one(self) -> None:
        search = HybridSearch(
            [
                branch(found({"id": "1", "content": {"url": "u"}}, {"id": "2", "content": {"url": "v"}})),
                branch(found({"content": {"url": "v"}}, {"content": {"url": "w"}}), "keyword"),
            ],
            key=lambda candidate: candidate.content["url"],
            rrf_k=1,
        )
        output = search.search(request())
        assert [one.content["url"] for one in output.candidates] == ["v", "u", "w"]
        assert list(fusion_of(output)["contributions"]) == ["v", "u", "w"]

    def test_where_a_key_has_nothing_to_say_the_default_counts(self) -> None:
        output = HybridSearch([branch(found("a"))], key=lambda _: None).search(request())
        assert list(fusion_of(output)["contributions"]) == ['["kb","a"]']

    @pytest.mark.parametrize("key", [lambda _: 1, lambda _: "", lambda _: ["a"]])
    def test_a_key_that_is_no_text_is_refused(self, key: Any) -> None:
        search = HybridSearch([branch(found("a"))], key=key)
        assert code_of(lambda: search.search(request())) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"


def test_a_candidate_is_what_the_first_branch_saw_with_the_fused_score() -> None:
    first = {"id": "a", "content": "first", "score": 5, "source": {"ref": "r1"}, "metadata": {"n": 1}}
    second = {"id": "a", "content": "second", "source": {"ref": "r2"}, "metadata": {"n": 2}}
    search = HybridSearch(
        [
            branch(found("x", second, metadata={"took": 1})),
            branch(found(first), "keyword", 2),
            branch(found(), "other"),
        ],
        rrf_k=1,
    )
    output = search.search(request())
    told = next(one for one in output.candidates if one.id == "a")
    assert told.to_wire() == {**second, "score": 1 / 3 + 2 / 2}
    assert output.metadata == {
        "fusion": {
            "method": "rrf",
            "k": 1,
            "contributions": {
                '["kb","a"]': [
                    {
                        "strategy": "vector",
                        "rank": 2,
                        "weight": 1.0,
                        "source": {"ref": "r2"},
                        "metadata": {"n": 2},
                    },
                    {
                        "strategy": "keyword",
                        "rank": 1,
                        "weight": 2,
                        "source": {"ref": "r1"},
                        "metadata": {"n": 1},
                        "score": 5,
                    },
                ],
                '["kb","x"]': [{"strategy": "vector", "rank": 1, "weight": 1.0}],
            },
            "branches": [{"took": 1}, {}, {}],
        }
    }


class TestAtOnce:
    def test_all_branches_are_asked_at_once(self) -> None:
        together = threading.Barrier(4)

        def meet(*_: object) -> Any:
            together.wait(WAIT)
            return found("a")

        with HybridSearch([branch(meet) for _ in range(4)]) as search:
            assert ids(search.search(request())) == ["a"]

    def test_a_failure_waits_for_the_branches_that_still_work(self) -> None:
        failed, release, ended = threading.Event(), threading.Event(), threading.Event()

        def fail(*_: object) -> Any:
            failed.set()
            raise RetrievalError("RETRIEVAL_TIMEOUT", "late")

        def hold(*_: object) -> Any:
            assert release.wait(WAIT)
            ended.set()
            return found()

        for branches in ([branch(fail), branch(hold)], [branch(hold), branch(fail)]):
            for event in (failed, release, ended):
                event.clear()
            with HybridSearch(branches) as search, ThreadPoolExecutor(1) as thread:
                searching = thread.submit(search.search, request())
                assert failed.wait(WAIT)
                with pytest.raises(TimeoutError):
                    searching.exception(timeout=0.1)
                release.set()
                assert isinstance(searching.exception(WAIT), RetrievalError)
                assert ended.is_set()

    @pytest.mark.parametrize("late", [0, 1])
    def test_the_failure_that_is_told_is_the_first_as_declared_not_the_first_in_time(self, late: int) -> None:
        other_failed = threading.Event()

        def fail_late(*_: object) -> Any:
            assert other_failed.wait(WAIT)
            return RetrievalError("RETRIEVAL_PERMISSION_DENIED", "declared first")

        def fail_soon(*_: object) -> Any:
            other_failed.set()
            return RetrievalError("RETRIEVAL_TIMEOUT", "declared last")

        branches = [branch(fail_late), branch(fail_soon)]
        branches.insert(late, branch(found("a")))
        with HybridSearch(branches) as search, pytest.raises(RetrievalError, match="declared first"):
            search.search(request())

    @pytest.mark.parametrize("place", [0, 1])
    @pytest.mark.parametrize(
        "answer",
        [None, found("a", strategy="other"), found(*(f"{n}" for n in range(101))), found({"id": "a"})],
    )
    def test_each_branchs_answer_is_held_against_its_own_request(self, answer: Any, place: int) -> None:
        branches = [branch(found("b"))]
        branches.insert(place, branch(answer))
        with HybridSearch(branches) as search:
            assert code_of(lambda: search.search(request())) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    def test_no_branch_of_a_cancelled_call_is_asked(self) -> None:
        token, backend = Cancellation(), RecordingSearch(found())
        token.cancel("not wanted")
        search = HybridSearch([HybridBranch(backend, "a"), HybridBranch(backend, "b")])
        with pytest.raises(InvocationCancelled):
            search.search(request(), RetrievalCall(cancel=token))
        assert backend.requests == []

    def test_many_searches_at_once_wait_for_threads_and_end(self) -> None:
        search = HybridSearch([branch(found("a")), branch(found("b")), branch(found("a"))])
        with search, ThreadPoolExecutor(64) as threads:
            outputs = list(threads.map(lambda _: search.search(request()), range(200), timeout=60))
        assert {tuple(ids(output)) for output in outputs} == {("a", "b")}

    def test_a_hybrid_search_may_be_a_branch_of_another(self) -> None:
        with HybridSearch([branch(found("a", "b")), branch(found("b"))], rrf_k=1) as inner:
            outer = HybridSearch([HybridBranch(inner, "inner"), branch(found("b"))], rrf_k=1)
            with outer:
                assert scores(outer.search(request())) == {"b": 1.0, "a": 1 / 3}

    def test_it_goes_on_after_it_was_closed(self) -> None:
        search = HybridSearch([branch(found("a")), branch(found("b"))])
        for _ in range(2):
            assert ids(search.search(request())) == ["a", "b"]
            search.close()
            search.close()

    def test_a_forked_child_has_threads_of_its_own(self) -> None:
        search = HybridSearch([branch(found("a")), branch(found("b"))])
        search.search(request())
        receiver, sender = fork.Pipe(duplex=False)

        def child() -> None:
            sender.send(ids(search.search(request())))
            search.close()

        process = fork.Process(target=child, daemon=True)
        process.start()
        try:
            assert receiver.poll(WAIT)
            assert receiver.recv() == ids(search.search(request())) == ["a", "b"]
            process.join(WAIT)
            assert process.exitcode == 0
        finally:
            process.kill()
            search.close()


class TestDefinition:
    @pytest.mark.parametrize(
        "branches",
        [
            [],
            [None],
            ["vector"],
            [{"strategy": "a"}],
            [{"provider": object(), "strategy": "a"}],
            [{"provider": RecordingSearch(found())}],
            *([branch(found(), strategy)] for strategy in ("", " ", None, 1)),
            *(
                [branch(found(), "a", weight)]
                for weight in (0, -1, float("nan"), float("inf"), True, "1", None, 10**400)
            ),
            [branch(found(), weight=1.7e308), branch(found(), weight=1.7e308)],
        ],
    )
    def test_branches_that_cannot_work_are_refused(self, branches: Any) -> None:
        assert code_of(lambda: HybridSearch(branches)) == "RETRIEVAL_INVALID_INPUT"

    def test_an_unknown_fusion_is_refused(self) -> None:
        assert code_of(lambda: HybridSearch([branch(found())], fusion="borda")) == (  # type: ignore[arg-type]
            "RETRIEVAL_INVALID_INPUT"
        )

    @pytest.mark.parametrize(
        "numbers",
        [
            *({"candidate_limit": bad} for bad in (0, 10_001, 1.5, True, "5", float("nan"))),
            *({"rrf_k": bad} for bad in (0, -1, 1.5, True, float("inf"), 2**53)),
        ],
    )
    def test_numbers_out_of_range_are_refused_when_it_searches(self, numbers: dict[str, Any]) -> None:
        search = HybridSearch([branch(found())], **numbers)
        assert code_of(lambda: search.search(request())) == "RETRIEVAL_INVALID_INPUT"

    def test_dicts_are_as_good_and_the_weight_is_one(self) -> None:
        search = HybridSearch([{"provider": RecordingSearch(found("a")), "strategy": "v"}], rrf_k=1)
        assert scores(search.search(request())) == {"a": 0.5}


RANKED = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.none() | st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6)),
    max_size=12,
)
BRANCHES = st.lists(st.tuples(RANKED, st.floats(1e-3, 1e3)), min_size=1, max_size=4)


class TestExplanation:
    @given(BRANCHES, st.sampled_from(["rrf", "min-max"]), st.integers(1, 100), st.integers(1, 8))
    def test_the_contributions_add_up_to_the_score(self, drawn: Any, fusion: Any, k: int, limit: int) -> None:
        branches = [
            branch(
                found(
                    *(
                        {"id": id, "content": id} | ({} if score is None else {"score": score})
                        for id, score in ranked
                    )
                ),
                f"branch-{number}",
                weight,
            )
            for number, (ranked, weight) in enumerate(drawn)
        ]
        with HybridSearch(branches, fusion=fusion, rrf_k=k) as search:
            output = search.search(request(limit=limit, options={"explain": True}))
        assert output.metadata is not None
        explanation = output.metadata["explanation"]
        entries = explanation["candidates"]
        for rank, (candidate, entry) in enumerate(zip(output.candidates, entries, strict=True), 1):
            total = sum(part["contribution"] for part in entry["branches"])
            assert abs(total - candidate.score) <= 1e-12  # type: ignore[operator]
            assert (entry["rank"], entry["score"]) == (rank, candidate.score)
            assert entry["identity"] == f'["kb","{candidate.id}"]'
        places = sum(len(ranked) for ranked, _ in drawn)
        told = [*entries, *explanation["dropped"]]
        assert sum(len(entry.get("branches", [entry])) for entry in told) == places
        strict_json(output.to_wire())

    def test_it_says_what_became_of_everything_that_was_found(self) -> None:
        search = HybridSearch(
            [branch(scored(("a", 3), ("b", 2), ("a", 1))), branch(found("b", "c"), "keyword", 2)], rrf_k=1
        )
        output = search.search(request(limit=1, options={"explain": True}))
        assert output.metadata is not None
        assert output.metadata["explanation"] == {
            "candidates": [
                {
                    "identity": '["kb","b"]',
                    "rank": 1,
                    "score": 1 / 3 + 1,
                    "branches": [
                        {
                            "strategy": "vector",
                            "rank": 2,
                            "score": 2,
                            "weight": 1.0,
                            "contribution": 1 / 3,
                        },
                        {"strategy": "keyword", "rank": 1, "weight": 2, "contribution": 1.0},
                    ],
                }
            ],
            "dropped": [
                {
                    "identity": '["kb","c"]',
                    "rank": 2,
                    "score": 2 / 3,
                    "branches": [{"strategy": "keyword", "rank": 2, "weight": 2, "contribution": 2 / 3}],
                    "reason": "over the limit",
                },
                {
                    "identity": '["kb","a"]',
                    "rank": 3,
                    "score": 1 / 2,
                    "branches": [
                        {"strategy": "vector", "rank": 1, "score": 3, "weight": 1.0, "contribution": 1 / 2}
                    ],
                    "reason": "over the limit",
                },
                {
                    "identity": '["kb","a"]',
                    "strategy": "vector",
                    "rank": 3,
                    "reason": "repeated in its branch",
                },
            ],
        }

    def test_the_branches_are_not_asked_for_it(self) -> None:
        backend = RecordingSearch(found("a"))
        search = HybridSearch([HybridBranch(backend, "v")])
        search.search(request(options={"explain": True}))
        search.search(request(options={"explain": True, "ef": 1}))
        assert [asked.to_wire().get("options") for asked in backend.requests] == [None, {"ef": 1}]

    @pytest.mark.parametrize("options", [{}, {"explain": False}, {"ef": 1}])
    def test_unasked_it_is_not_given(self, options: dict[str, Any]) -> None:
        output = HybridSearch([branch(found("a"))]).search(request(options=options))
        assert "explanation" not in (output.metadata or {})

    @pytest.mark.parametrize("wanted", ["yes", 1, None])
    def test_it_is_asked_for_by_true_or_false(self, wanted: Any) -> None:
        search = HybridSearch([branch(found("a"))])
        assert code_of(lambda: search.search(request(options={"explain": wanted}))) == (
            "RETRIEVAL_INVALID_INPUT"
        )
