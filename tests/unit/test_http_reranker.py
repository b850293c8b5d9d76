"""Reranking over HTTP, in the dialects of servers, against one that answers well or badly."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import DeadlineExceeded, InvocationCancelled, RetrievalError
from ditto_tasks.contracts.retrieval import Ranked, RetrievalCall, RetrievalCandidate, RetrievalQuery
from providers.retrieval.rerank_http import HttpReranker
from providers.sandbox import Sandbox
from tests.peer import WAIT, Exchange, Peer, Script, says, serving

ANYWHERE = Sandbox(network=["*"])
SECRET = "hunter2"
QUERY = RetrievalQuery(content="moon")
SOON = 5.0  # seconds; what is at once, on a busy machine


def found(*contents: Any) -> list[RetrievalCandidate]:
    return [RetrievalCandidate(content=content) for content in contents]


THREE = found("a", "bbb", "cc")


def by_length(exchange: Exchange) -> None:
    """Answer as vLLM does: the longest document first, at most `top_n`."""
    lengths = [len(text) for text in exchange.json["documents"]]
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])[: exchange.json["top_n"]]
    results = [{"index": n, "relevance_score": lengths[n], "document": {"text": "x"}} for n in order]
    exchange.answer(json.dumps({"id": "1", "results": results}).encode())


def results(*places: tuple[Any, Any]) -> Script:
    return says({"results": [{"index": index, "relevance_score": score} for index, score in places]})


@contextmanager
def asking(*scripts: Script, **options: Any) -> Iterator[tuple[HttpReranker, Peer]]:
    """Give a reranker of a server that plays these scripts, then answers well."""
    with (
        serving(*scripts, by_length) as peer,
        HttpReranker(peer.url, **{"model": "m", "sandbox": ANYWHERE, **options}) as reranker,
    ):
        yield reranker, peer


def order(places: Sequence[Ranked]) -> list[int]:
    return [place.index for place in places]


def refusal(run: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(RetrievalError) as failure:
        run()
    return failure.value.code, failure.value.message


def test_candidates_are_posted_and_ordered_by_score() -> None:
    with asking(api_key=SECRET) as (reranker, peer):
        assert reranker.rank(QUERY, THREE, 2) == [Ranked(index=1, score=3), Ranked(index=2, score=2)]
        [exchange] = peer.exchanges
        assert exchange.path == "/rerank"
        assert exchange.json == {"model": "m", "query": "moon", "documents": ["a", "bbb", "cc"], "top_n": 2}
        assert exchange.headers["authorization"] == f"Bearer {SECRET}"


def test_tei_is_asked_and_answers_in_its_own_way() -> None:
    scores = [{"index": 1, "score": 0.9}, {"index": 0, "score": 0.5}, {"index": 2, "score": 0.1}]
    with asking(says(scores), model=None, dialect="tei") as (reranker, peer):
        assert order(reranker.rank(QUERY, THREE, 2)) == [1, 0]
        assert peer.exchanges[0].json == {"query": "moon", "texts": ["a", "bbb", "cc"]}


def test_places_are_paired_by_index_and_ordered_here() -> None:
    with asking(results((0, -5), (2.0, 12), (1, 0.5)), results((2, 1), (0, 1), (1, 1))) as (reranker, _):
        assert order(reranker.rank(QUERY, THREE, 3)) == [2, 1, 0]
        assert order(reranker.rank(QUERY, THREE, 3)) == [0, 1, 2]  # ties in the candidates' order


def test_a_limit_beyond_the_candidates_gives_them_all() -> None:
    with asking() as (reranker, peer):
        assert order(reranker.rank(QUERY, THREE, 100)) == [1, 2, 0]
        assert peer.exchanges[0].json["top_n"] == 3


def test_no_candidates_are_ranked_without_a_request() -> None:
    with asking(sandbox=Sandbox()) as (reranker, peer):
        assert reranker.rank(QUERY, [], 5) == []
        assert peer.exchanges == []


def test_of_a_record_the_text_of_its_content_is_sent() -> None:
    record = {"id": "1", "key": "k", "content": {"title": "Moon", "phase": 3}, "metadata": {"by": "me"}}
    with asking() as (reranker, peer):
        reranker.rank(RetrievalQuery(content={"text": "full"}), found(record, {"id": "2"}, "", None), 4)
        assert peer.exchanges[0].json["query"] == "full"
        assert peer.exchanges[0].json["documents"] == ["Moon\n3", "2", "", ""]


def test_the_text_may_be_made_in_another_way() -> None:
    with asking(text=lambda content: content["title"]) as (reranker, peer):
        reranker.rank(QUERY, found({"title": "Moon", "body": "x"}), 1)
        assert peer.exchanges[0].json["documents"] == ["Moon"]
        assert peer.exchanges[0].json["query"] == "moon"


@pytest.mark.parametrize("content", ["", " ", None, {}, [True]])
def test_a_query_without_text_is_refused(content: Any) -> None:
    with asking() as (reranker, peer):
        code, _ = refusal(lambda: reranker.rank(RetrievalQuery(content=content), THREE, 1))
        assert code == "RETRIEVAL_INVALID_INPUT"
        assert peer.exchanges == []


@pytest.mark.parametrize(
    "answer",
    [
        results((0, 1), (0, 2)),
        results((0, 1)),
        results(),
        results((0, 1), (3, 2)),
        results((0, 1), (4, 2)),
        results((0, 1), (-1, 2)),
        results((0, 1), (True, 2)),
        results((0, 1), ("1", 2)),
        results((0, 1), (1.5, 2)),
        results((0, 1), (None, 2)),
        results((0, 1), (1, None)),
        results((0, 1), (1, "2")),
        results((0, 1), (1, True)),
        says(b'{"results": [{"index": 0, "relevance_score": 1e999}, {"index": 1, "relevance_score": 1}]}'),
        says({"results": [{"index": 0}, {"index": 1}]}),
        says({"results": [0, 1]}),
        says({"results": {"0": 1}}),
        says({"data": []}),
        says(None),
    ],
)
def test_an_answer_without_a_place_for_each_wanted_is_refused(answer: Script) -> None:
    with asking(answer) as (reranker, _):
        code, message = refusal(lambda: reranker.rank(QUERY, THREE, 2))
        assert code == "RETRIEVAL_INVALID_BACKEND_OUTPUT"
        assert message.startswith("The rerank provider answered wrongly: ")
        assert order(reranker.rank(QUERY, THREE, 1)) == [1]


@pytest.mark.parametrize("status", [302, 401, 429, 500])
def test_another_status_is_said_and_nothing_of_the_body(status: int) -> None:
    with asking(says({"error": SECRET}, status), api_key=SECRET) as (reranker, _):
        assert refusal(lambda: reranker.rank(QUERY, THREE, 1)) == (
            "RETRIEVAL_BACKEND_ERROR",
            f"Rerank provider returned HTTP {status}",
        )


def test_retries_and_permission_are_those_of_all_http_providers() -> None:
    with asking(says({}, 503, retry_after="0"), retries=1) as (reranker, peer):
        assert order(reranker.rank(QUERY, THREE, 1)) == [1]
        assert len(peer.exchanges) == 2
    with asking(sandbox=Sandbox()) as (reranker, peer):
        assert refusal(lambda: reranker.rank(QUERY, THREE, 1)) == (
            "RETRIEVAL_PERMISSION_DENIED",
            "Rerank endpoint is not permitted",
        )
        assert peer.exchanges == []


def test_a_slow_answer_ends_with_the_timeout_or_the_deadline() -> None:
    with asking(Exchange.hang, Exchange.hang, timeout=0.3) as (reranker, _):
        failure = ("RETRIEVAL_TIMEOUT", "Rerank request timed out")
        assert refusal(lambda: reranker.rank(QUERY, THREE, 1)) == failure
        with pytest.raises(DeadlineExceeded):
            reranker.rank(QUERY, THREE, 1, RetrievalCall(deadline=time.monotonic() + 0.1))


def test_a_cancelled_call_ends() -> None:
    cancel = Cancellation()

    def cancelling(exchange: Exchange) -> None:
        cancel.cancel()
        exchange.hang()

    with asking(cancelling) as (reranker, peer):
        started = time.monotonic()
        for _ in range(2):  # in flight, then before it
            with pytest.raises(InvocationCancelled):
                reranker.rank(QUERY, THREE, 1, RetrievalCall(cancel=cancel))
        assert time.monotonic() - started < SOON
        assert peer.left.wait(WAIT)
        assert len(peer.exchanges) == 1
        assert order(reranker.rank(QUERY, THREE, 1)) == [1]


@pytest.mark.parametrize("options", [{"model": " "}, {"model": 3}, {"dialect": "cohere"}, {"base_url": "h"}])
def test_arguments_are_checked(options: dict[str, Any]) -> None:
    given_ = {"base_url": "http://h", "sandbox": ANYWHERE, **options}
    assert refusal(lambda: HttpReranker(**given_))[0] == "RETRIEVAL_INVALID_INPUT"


def test_a_closed_reranker_refuses_calls() -> None:
    with asking() as (reranker, _):
        reranker.close()
        code, message = refusal(lambda: reranker.rank(QUERY, THREE, 1))
        assert (code, message) == ("RETRIEVAL_PROVIDER_UNAVAILABLE", "Rerank provider is closed")
