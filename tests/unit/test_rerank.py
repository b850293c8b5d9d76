"""A larger pool, ranked anew: whose order counts, and which orders are refused."""

from collections.abc import Sequence
from typing import Any

import pytest

from ditto_tasks import Cancellation, InvocationCancelled
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    Ranked,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalDefaults,
    RetrievalQuery,
    RetrievalSearchOutput,
)
from providers.retrieval.hybrid import HybridBranch, HybridSearch
from providers.retrieval.rerank import RerankSearch, rerank_candidates
from tests.doubles import RecordingSearch, found, request

QUERY = RetrievalQuery(content="tea")
POOL = tuple(RetrievalCandidate(id=f"c{n}", content=n, score=n) for n in range(3))


class Order:
    """A reranker that gives this order, or raises it, and notes what it was asked."""

    def __init__(self, *places: Any, answer: Any = None) -> None:
        self.answer = list(places) if answer is None else answer
        self.asked: list[tuple[Any, int, int]] = []

    def rank(
        self, query: RetrievalQuery, candidates: Sequence[RetrievalCandidate], limit: int, call: Any = None
    ) -> Any:
        self.asked.append((query.content, len(candidates), limit))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Reversed(Order):
    """Puts the last first, and gives no scores."""

    def rank(
        self, query: RetrievalQuery, candidates: Sequence[RetrievalCandidate], limit: int, call: Any = None
    ) -> Any:
        super().rank(query, candidates, limit, call)
        return [{"index": index} for index in reversed(range(len(candidates)))][:limit]


def reranked(reranker: Any, limit: int = 2, pool: Sequence[RetrievalCandidate] = POOL) -> Any:
    return rerank_candidates(reranker, QUERY, pool, limit)


def refusal(reranker: Any, limit: int = 2) -> str:
    with pytest.raises(RetrievalError) as raised:
        reranked(reranker, limit)
    return raised.value.code


def ids(output: RetrievalSearchOutput) -> list[str | None]:
    return [candidate.id for candidate in output.candidates]


class TestCandidates:
    def test_they_come_in_the_rerankers_order_as_they_were(self) -> None:
        assert reranked(Order({"index": 2}, {"index": 0})) == [POOL[2], POOL[0]]

    def test_a_score_of_the_rerankers_takes_the_place_of_theirs(self) -> None:
        first, second = reranked(Order({"index": 1, "score": -0.5}, {"index": 2}))
        assert first.to_wire() == {"id": "c1", "content": 1, "score": -0.5}
        assert second.score == POOL[2].score
        assert POOL[1].score == 1

    def test_contracts_tuples_and_whole_floats_are_as_good(self) -> None:
        order = Order(answer=(Ranked(index=2), {"index": 0.0}))
        assert reranked(order) == [POOL[2], POOL[0]]

    def test_the_reranker_sees_query_pool_and_limit(self) -> None:
        order = Order({"index": 0}, {"index": 1}, {"index": 2})
        reranked(order, limit=3)
        assert order.asked == [("tea", 3, 3)]

    def test_of_few_candidates_all_are_due(self) -> None:
        assert reranked(Reversed(), limit=10) == list(reversed(POOL))

    def test_without_candidates_the_reranker_is_not_asked(self) -> None:
        order = Order()
        assert reranked(order, pool=()) == []
        assert order.asked == []

    @pytest.mark.parametrize(
        "places",
        [
            [{"index": 0}, {"index": 0}],
            [{"index": 0}, {"index": 4}],
            [{"index": 0}, {"index": 3}],
            [{"index": 0}, {"index": -1}],
            [{"index": 0}],
            [],
            [{"index": 0}, {"index": 1}, {"index": 2}],
            *(
                [{"index": 0}, {"index": 1, "score": score}]
                for score in (float("nan"), float("inf"), None, "1", True, 10**400)
            ),
            *([{"index": 0}, {"index": index}] for index in (None, "1", True, 1.5, [1])),
            [{"index": 0}, {}],
            [{"index": 0}, None],
            [{"index": 0}, 1],
        ],
    )
    def test_an_order_that_is_none_is_refused(self, places: list[Any]) -> None:
        assert refusal(Order(answer=places)) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    @pytest.mark.parametrize("answer", ["01", {"0": {"index": 0}}, 2, iter([{"index": 0}, {"index": 1}])])
    def test_what_is_no_list_is_refused(self, answer: Any) -> None:
        assert refusal(Order(answer=answer)) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    @pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, True, None, "2"])
    def test_a_limit_out_of_range_is_refused_before_the_reranker_is_asked(self, limit: Any) -> None:
        order = Order()
        assert refusal(order, limit) == "RETRIEVAL_INVALID_INPUT"
        with pytest.raises(RetrievalError):
            reranked(order, limit, pool=())
        assert order.asked == []

    def test_what_the_reranker_raises_goes_through(self) -> None:
        assert refusal(Order(answer=RetrievalError("RETRIEVAL_TIMEOUT", "late"))) == "RETRIEVAL_TIMEOUT"


class TestSearch:
    @pytest.mark.parametrize(
        ("asked", "own", "defaults", "pool"),
        [
            ({}, None, {}, 100),
            ({"limit": 2}, None, {"rerank": {"candidateLimit": 7}}, 7),
            ({"limit": 2}, 5, {"rerank": {"candidateLimit": 7}}, 5),
            ({"limit": 200}, 100, {}, 200),
            ({}, 5, {"searchLimit": 20}, 20),
        ],
    )
    def test_the_pool_is_at_least_the_floor_and_never_below_the_limit(
        self, asked: Any, own: int | None, defaults: Any, pool: int
    ) -> None:
        backend = RecordingSearch(found())
        call = RetrievalCall(defaults=RetrievalDefaults.from_wire(defaults))
        RerankSearch(backend, Reversed(), candidate_limit=own).search(request(**asked), call)
        assert backend.limits == [pool]

    def test_the_pool_is_ranked_and_cut(self) -> None:
        reranker = Reversed()
        search = RerankSearch(RecordingSearch(found("a", "b", "c")), reranker)
        assert ids(search.search(request(limit=2))) == ["c", "b"]
        assert reranker.asked == [("tea", 3, 2)]

    def test_the_rest_of_the_output_stays(self) -> None:
        answer = found("a", "b", strategy="bm25", metadata={"took": 1})
        output = RerankSearch(RecordingSearch(answer), Reversed()).search(request(strategy="bm25"))
        assert output.to_wire() == found("b", "a", strategy="bm25", metadata={"took": 1})

    def test_the_rest_of_the_request_stays(self) -> None:
        backend = RecordingSearch(found())
        asked = request(strategy="hybrid", filter={"a": 1}, limit=3, options={"ef": 1})
        RerankSearch(backend, Reversed(), candidate_limit=9).search(asked)
        assert backend.requests[0].to_wire() == {**asked.to_wire(), "limit": 9}

    @pytest.mark.parametrize(
        "answer", [None, found(target={"name": "other"}), found(*(f"{n}" for n in range(101)))]
    )
    def test_the_pool_is_held_against_its_request(self, answer: Any) -> None:
        with pytest.raises(RetrievalError) as raised:
            RerankSearch(RecordingSearch(answer), Reversed()).search(request())
        assert raised.value.code == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    @pytest.mark.parametrize("floor", [0, 10_001, 1.5, True, "5"])
    def test_a_floor_out_of_range_is_refused_when_it_searches(self, floor: Any) -> None:
        search = RerankSearch(RecordingSearch(found()), Reversed(), candidate_limit=floor)
        with pytest.raises(RetrievalError, match="candidate_limit is "):
            search.search(request())

    def test_a_call_that_was_cancelled_meanwhile_is_not_reranked(self) -> None:
        token, reranker = Cancellation(), Reversed()

        def cancel(*_: object) -> Any:
            token.cancel("not wanted")
            return found("a")

        with pytest.raises(InvocationCancelled):
            RerankSearch(RecordingSearch(cancel), reranker).search(request(), RetrievalCall(cancel=token))
        assert reranker.asked == []


class TestExplanation:
    asked = request(limit=2, options={"explain": True})

    def explained(self, search: Any, *places: Any) -> Any:
        reranker = Order(*places) if places else Reversed()
        output = RerankSearch(search, reranker, candidate_limit=3).search(self.asked)
        assert output.metadata is not None
        return output.metadata["explanation"]

    def test_it_says_where_each_was_before(self) -> None:
        backend = RecordingSearch(found({"id": "a", "content": 1, "score": 5}, "b", {"content": 3}))
        assert self.explained(backend, {"index": 2, "score": 0.5}, {"index": 0}) == {
            "candidates": [
                {"rank": 1, "score": 0.5, "before": {"rank": 3}},
                {"identity": '["kb","a"]', "rank": 2, "score": 5, "before": {"rank": 1, "score": 5}},
            ],
            "dropped": [{"identity": '["kb","b"]', "rank": 2, "reason": "reranked below the limit"}],
        }
        assert "options" not in backend.requests[0].to_wire()

    def test_what_the_fusion_below_explained_is_carried_on(self) -> None:
        hybrid = HybridSearch(
            [HybridBranch(RecordingSearch(found(*"abcd")), "v")], candidate_limit=4, rrf_k=1
        )
        told = self.explained(hybrid)
        assert [(one["identity"], one["rank"], one["before"]["rank"]) for one in told["candidates"]] == [
            ('["kb","c"]', 1, 3),
            ('["kb","b"]', 2, 2),
        ]
        assert told["candidates"][0]["branches"] == [
            {"strategy": "v", "rank": 3, "weight": 1.0, "contribution": 1 / 4}
        ]
        assert [(one["identity"], one["reason"]) for one in told["dropped"]] == [
            ('["kb","a"]', "reranked below the limit"),
            ('["kb","d"]', "over the limit"),
        ]

    @pytest.mark.parametrize("theirs", ["because", ["a"], {"candidates": "x", "dropped": 1}, {}])
    def test_metadata_of_that_name_that_is_not_ours_is_not_taken_for_it(self, theirs: Any) -> None:
        told = self.explained(RecordingSearch(found("a", metadata={"explanation": theirs})))
        assert told == {
            "candidates": [{"identity": '["kb","a"]', "rank": 1, "before": {"rank": 1}}],
            "dropped": [],
        }

    def test_unasked_it_is_not_given(self) -> None:
        output = RerankSearch(RecordingSearch(found("a")), Reversed()).search(request())
        assert output.metadata is None
