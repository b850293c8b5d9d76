"""Embedding over HTTP against a server that answers well, badly, slowly or never."""

import gzip
import json
import logging
import multiprocessing
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditto_tasks.config import ENVIRONMENT
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import DeadlineExceeded, InvocationCancelled, RetrievalError
from ditto_tasks.contracts.retrieval import IdentifiedEmbedding, RetrievalCall
from providers import _http_bounds
from providers._http_bounds import Bounds
from providers._http_retry import backoff, retry_after
from providers.embedding import http as embedding_http
from providers.embedding.batching import embed_contents
from providers.embedding.http import HttpEmbedding, embedding_config_from_env
from providers.sandbox import Sandbox
from tests.conftest import ROOT
from tests.peer import WAIT, Exchange, Peer, Script, says, serving, writes

ANYWHERE = Sandbox(network=["*"])
SECRET = "hunter2"
SOON = 5.0  # seconds; what is at once, on a busy machine
fork = multiprocessing.get_context("fork")
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # from Python 3.12 on


def vectors(exchange: Exchange) -> None:
    """Answer with the length of each content, and 0."""
    data = [{"index": n, "embedding": [len(text), 0]} for n, text in enumerate(exchange.json["input"])]
    exchange.answer(json.dumps({"data": data}).encode())


def data(*items: tuple[Any, Any]) -> Script:
    return says({"data": [{"index": index, "embedding": vector} for index, vector in items]})


@contextmanager
def asking(*scripts: Script, **options: Any) -> Iterator[tuple[HttpEmbedding, Peer]]:
    """Give an embedding of a server that plays these scripts, then answers well."""
    with (
        serving(*scripts, vectors) as peer,
        HttpEmbedding(peer.url, "m", **{"sandbox": ANYWHERE, **options}) as embedding,
    ):
        yield embedding, peer


def refusal(run: Callable[[], Any]) -> tuple[str, str]:
    """Return code and message of the error that this ends with."""
    with pytest.raises(RetrievalError) as failure:
        run()
    return failure.value.code, failure.value.message


# --- asking and answering


def test_contents_are_posted_as_openai_has_it() -> None:
    with asking(api_key=SECRET) as (embedding, peer):
        assert embedding.embed(["ab", "c"], "document") == [[2, 0], [1, 0]]
        [exchange] = peer.exchanges
        assert exchange.path == "/embeddings"
        assert exchange.json == {"model": "m", "input": ["ab", "c"], "encoding_format": "float"}
        assert exchange.headers["authorization"] == f"Bearer {SECRET}"
        assert exchange.headers["content-type"] == "application/json"
        assert exchange.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_none_is_sent(key: str | None) -> None:
    with asking(api_key=key) as (embedding, peer):
        embedding.embed(["a"], "query")
        assert "authorization" not in peer.exchanges[0].headers


def test_slashes_after_the_url_are_nothing() -> None:
    with serving(vectors) as peer, HttpEmbedding(f"{peer.url}/v1//", "m", sandbox=ANYWHERE) as embedding:
        embedding.embed(["a"], "query")
        assert peer.exchanges[0].path == "/v1/embeddings"
        assert embedding.identity == f"{peer.url}/v1:m"


def test_vectors_are_paired_by_index() -> None:  # vector 89, M14
    with asking(data((1, [2, 0]), (0, [1, 0])), data((2, [3]), (0, [1]), (1.0, [2]))) as (embedding, _):
        assert embedding.embed(["a", "b"], "query") == [[1, 0], [2, 0]]
        assert embed_contents(embedding, ["a", "b", "c"], "query").tolist() == [[1.0], [2.0], [3.0]]


def test_nothing_is_embedded_without_permission_or_request() -> None:
    with asking(sandbox=Sandbox()) as (embedding, peer):
        assert embedding.embed([], "document") == []
        assert peer.exchanges == []


@pytest.mark.parametrize("content", ["", " \n", None, 3, ["a"], {"text": "a"}, "\ud800"])
def test_a_content_that_is_no_text_is_refused_before_any_request(content: Any) -> None:
    with asking() as (embedding, peer):
        code, _ = refusal(lambda: embedding.embed(["good", content], "document"))
        assert code == "RETRIEVAL_INVALID_INPUT"
        assert peer.exchanges == []


@pytest.mark.parametrize("contents", ["text", b"text", None, {"a": 1}])
def test_contents_must_be_a_list(contents: Any) -> None:
    with asking() as (embedding, _):
        assert refusal(lambda: embedding.embed(contents, "query"))[0] == "RETRIEVAL_INVALID_INPUT"


@pytest.mark.parametrize("network", [[], ["https://127.0.0.1"], ["http://127.0.0.1"], ["http://localhost"]])
def test_an_origin_that_is_not_permitted_is_never_asked(network: list[str]) -> None:  # vector 90
    with asking(sandbox=Sandbox(network=network)) as (embedding, peer):
        assert refusal(lambda: embedding.embed(["a"], "query")) == (
            "RETRIEVAL_PERMISSION_DENIED",
            "Embedding endpoint is not permitted",
        )
        assert peer.exchanges == []


def test_the_origin_alone_must_be_permitted() -> None:
    with serving(vectors) as peer:
        sandbox = Sandbox(network=[peer.url])
        with HttpEmbedding(f"{peer.url}/deep/path", "m", sandbox=sandbox) as embedding:
            assert embedding.embed(["a"], "query") == [[1, 0]]


# --- answers that are wrong


@pytest.mark.parametrize(
    "answer",
    [
        data((0, [1]), (0, [2])),  # vector 90
        data((0, [1])),
        data((0, [1]), (1, [2]), (2, [3])),
        data((1, [1]), (2, [2])),
        data((-1, [1]), (0, [2])),
        data((0, [1]), (True, [2])),
        data((0, [1]), ("1", [2])),
        data((0, [1]), (1.5, [2])),
        data((0, [1]), (None, [2])),
        data((0, [1]), (1, [2, 3])),
        data((0, []), (1, [])),
        data((0, [1]), (1, [None])),
        data((0, [1]), (1, [True])),
        data((0, [1]), (1, ["2"])),
        data((0, [1]), (1, "AACAPw==")),
        data((0, [1]), (1, {"0": 2})),
        says(b'{"data": [{"index": 0, "embedding": [1e999]}, {"index": 1, "embedding": [1]}]}'),
        says({"data": [1, 2]}),
        says({"data": {"0": [1], "1": [2]}}),
        says({}),
        says([[1], [2]]),
        says(None),
    ],
)
def test_an_answer_that_is_not_one_vector_a_content_is_refused(answer: Script) -> None:
    with asking(answer) as (embedding, _):
        code, message = refusal(lambda: embedding.embed(["a", "b"], "document"))
        assert code == "RETRIEVAL_INVALID_EMBEDDING"
        assert message.startswith("Invalid embedding: ")
        assert embedding.embed(["abc"], "query") == [[3, 0]]


def test_vectors_of_other_dimensions_than_those_due_are_refused() -> None:
    with asking(dimensions=3) as (embedding, _):
        assert refusal(lambda: embedding.embed(["a"], "query"))[0] == "RETRIEVAL_INVALID_EMBEDDING"


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 403, 404, 429, 500, 503, 599])
def test_another_status_is_said_and_nothing_of_the_body(status: int) -> None:  # vector 90
    moved = says({"error": SECRET}, status, location="/elsewhere")
    with asking(moved, api_key=SECRET) as (embedding, peer):
        assert refusal(lambda: embedding.embed(["a"], "query")) == (
            "RETRIEVAL_BACKEND_ERROR",
            f"Embedding provider returned HTTP {status}",
        )
        assert [exchange.path for exchange in peer.exchanges] == ["/embeddings"]  # no redirect, no retry
        assert embedding.embed(["abc"], "query") == [[3, 0]]


GOOD = b'{"data": [{"index": 0, "embedding": [1]}]}'


@pytest.mark.parametrize(
    "answer",
    [
        says(b"<html>It works!</html>", content_type="text/html"),
        says(b""),
        says(b"", 204),
        says(GOOD[:-5]),
        says(b"\xff\xfe"),
        says(GOOD.replace(b"1]", b"NaN]")),
        says(b"[" * 100_000),
        says(gzip.compress(GOOD), content_encoding="gzip"),
        writes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + GOOD[:20]),
        writes(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfff\r\n" + GOOD),
        writes(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n" + GOOD),
        writes(b"HTTP/1.1 200 OK\r\ncontent-le"),
        writes(b"SSH-2.0-OpenSSH_9.2\r\n"),
        writes(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000),
        writes(b""),
    ],
)
def test_an_answer_that_cannot_be_read_is_a_failure(answer: Script) -> None:
    with asking(answer) as (embedding, _):
        failure = ("RETRIEVAL_BACKEND_ERROR", "Embedding request failed")
        assert refusal(lambda: embedding.embed(["a"], "query")) == failure
        assert embedding.embed(["abc"], "query") == [[3, 0]]


def test_json_is_read_whatever_it_is_called() -> None:
    with asking(says(GOOD, content_type="text/plain")) as (embedding, _):
        assert embedding.embed(["a"], "query") == [[1]]


def test_a_body_that_never_ends_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    def flood(exchange: Exchange) -> None:
        exchange.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            exchange.wfile.write(b" " * 1_000_000)

    with asking(flood) as (embedding, peer):
        assert refusal(lambda: embedding.embed(["a"], "query"))[0] == "RETRIEVAL_BACKEND_ERROR"
        assert peer.left.wait(WAIT)
        assert "the answer has over 1310720 bytes" in caplog.text
        assert embedding.embed(["abc"], "query") == [[3, 0]]


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    with asking(says(bomb, content_encoding="gzip")) as (embedding, _):
        assert refusal(lambda: embedding.embed(["a"], "query"))[0] == "RETRIEVAL_BACKEND_ERROR"


def test_an_answer_as_large_as_its_vectors_may_be_is_read() -> None:
    numbers = [-1.2345678901234567e-300] * 8_192
    with asking(data(*((n, numbers) for n in range(8)))) as (embedding, _):
        assert embed_contents(embedding, ["a"] * 8, "document").shape == (8, 8_192)


# --- time and cancelling


def silent(exchange: Exchange) -> None:
    exchange.hang()


def stuck_in_the_head(exchange: Exchange) -> None:
    exchange.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
    exchange.hang()


def stuck_in_the_body(exchange: Exchange) -> None:
    exchange.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
    exchange.hang()


def dripping_head(exchange: Exchange) -> None:
    exchange.wfile.write(b"HTTP/1.1 200 OK\r\n")
    exchange.drip(b"x: y\r\n")


def dripping_body(exchange: Exchange) -> None:
    exchange.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    exchange.drip(b" ")


SLOW = [silent, stuck_in_the_head, stuck_in_the_body, dripping_head, dripping_body]


@pytest.mark.parametrize("slow", SLOW)
def test_a_slow_answer_ends_with_the_timeout(slow: Script) -> None:  # vector 90
    with asking(slow, timeout=0.3) as (embedding, peer):
        started = time.monotonic()
        failure = ("RETRIEVAL_TIMEOUT", "Embedding request timed out")
        assert refusal(lambda: embedding.embed(["a"], "query")) == failure
        assert 0.3 <= time.monotonic() - started < SOON
        assert peer.left.wait(WAIT)
    with asking() as (embedding, _):
        assert embedding.embed(["abc"], "query") == [[3, 0]]


@pytest.mark.parametrize("slow", SLOW)
def test_the_next_call_works_after_one_that_was_out_of_time(slow: Script) -> None:
    with asking(slow) as (embedding, _):
        with pytest.raises(DeadlineExceeded):
            embedding.embed(["a"], "query", RetrievalCall(deadline=time.monotonic() + 0.3))
        assert embedding.embed(["abc"], "query") == [[3, 0]]


@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("reused", [False, True])
def test_a_cancelled_call_ends_in_flight(slow: Script, reused: bool) -> None:
    with asking(*([vectors] if reused else []), slow) as (embedding, peer):
        if reused:
            embedding.embed(["a"], "query")
            peer.arrived.clear()
        with cancelled_once(peer.arrived) as call:
            started = time.monotonic()
            with pytest.raises(InvocationCancelled, match="no more"):
                embedding.embed(["a"], "query", call)
            assert time.monotonic() - started < SOON
        assert peer.left.wait(WAIT)
        assert embedding.embed(["abc"], "query") == [[3, 0]]
        assert peer.connections == 2


def test_a_cancelled_call_sends_nothing() -> None:
    cancel = Cancellation()
    cancel.cancel()
    with asking() as (embedding, peer):
        for contents in (["a"], [], [None]):
            with pytest.raises(InvocationCancelled):
                embedding.embed(contents, "query", RetrievalCall(cancel=cancel))
        assert peer.exchanges == []


def test_a_request_that_is_not_read_ends_with_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with HttpEmbedding(url, "m", sandbox=ANYWHERE, timeout=0.3) as embedding:
            started = time.monotonic()
            code, _ = refusal(lambda: embedding.embed(["x" * 50_000_000], "document"))
            assert (code, time.monotonic() - started < SOON) == ("RETRIEVAL_TIMEOUT", True)


@contextmanager
def nobody_accepts() -> Iterator[str]:
    """Give the URL of a server whose backlog is full: connecting neither succeeds nor fails."""
    with socket.socket() as server, socket.socket() as first, socket.socket() as second:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_connecting_ends_with_the_timeout() -> None:
    with nobody_accepts() as url, HttpEmbedding(url, "m", sandbox=ANYWHERE, timeout=0.3) as embedding:
        started = time.monotonic()
        assert refusal(lambda: embedding.embed(["a"], "query"))[0] == "RETRIEVAL_TIMEOUT"
        assert time.monotonic() - started < SOON


def test_connecting_ends_when_the_call_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = threading.Event()
    connect = socket.create_connection

    def noting(*args: Any, **options: Any) -> Any:
        connecting.set()
        return connect(*args, **options)

    monkeypatch.setattr(socket, "create_connection", noting)
    with nobody_accepts() as url, HttpEmbedding(url, "m", sandbox=ANYWHERE, timeout=WAIT) as embedding:
        started = time.monotonic()
        with cancelled_once(connecting) as call, pytest.raises(InvocationCancelled):
            embedding.embed(["a"], "query", call)
        assert time.monotonic() - started < SOON


def test_looking_a_name_up_ends_with_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(WAIT) or [])
    with HttpEmbedding("http://name.invalid", "m", sandbox=ANYWHERE, timeout=0.3) as embedding:
        started = time.monotonic()
        assert refusal(lambda: embedding.embed(["a"], "query"))[0] == "RETRIEVAL_TIMEOUT"
        assert time.monotonic() - started < SOON
    answered.set()


def test_a_cancel_between_two_waits_ends_the_next_before_it_begins() -> None:
    cancel = Cancellation()
    bounds = Bounds(RetrievalCall(cancel=cancel), WAIT)
    cancel.cancel()
    with pytest.raises(InvocationCancelled), bounds.waiting(lambda: None):
        pytest.fail("the wait began")


def test_a_cancel_wakes_the_wait_of_its_call_and_none_after_it() -> None:
    cancel, woken = Cancellation(), []
    bounds = Bounds(RetrievalCall(cancel=cancel), WAIT)
    with bounds.apply():
        with bounds.waiting(lambda: woken.append("first")):
            pass
        with bounds.waiting(lambda: woken.append("second")):
            cancel.cancel()
    assert woken == ["second"]


def test_a_cancel_after_the_answer_does_not_touch_the_connection() -> None:
    cancel = Cancellation()
    with asking() as (embedding, peer):
        embedding.embed(["a"], "query", RetrievalCall(cancel=cancel))
        cancel.cancel()
        assert embedding.embed(["abc"], "query") == [[3, 0]]
        assert peer.connections == 1


@contextmanager
def cancelled_once(event: threading.Event) -> Iterator[RetrievalCall]:
    """Give a call that is cancelled as soon as the event is set."""
    cancel = Cancellation()

    def wait_and_cancel() -> None:
        assert event.wait(WAIT)
        cancel.cancel("no more")

    thread = threading.Thread(target=wait_and_cancel)
    thread.start()
    yield RetrievalCall(cancel=cancel)
    thread.join(WAIT)


# --- retries


def failing(status: int, **headers: str) -> Script:
    return says({"error": "x"}, status, **headers)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again_when_retries_are_on(status: int) -> None:
    with asking(failing(status, retry_after="0"), retries=1) as (embedding, peer):
        assert embedding.embed(["abc"], "query") == [[3, 0]]
        assert len(peer.exchanges) == 2


@pytest.mark.parametrize("status", [302, 400, 401, 404, 501])
def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    with asking(failing(status, retry_after="0"), retries=3) as (embedding, peer):
        assert refusal(lambda: embedding.embed(["a"], "query"))[1].endswith(f"HTTP {status}")
        assert len(peer.exchanges) == 1


def test_after_the_last_attempt_its_failure_is_raised() -> None:
    codes = (failing(500, retry_after="0"), failing(429, retry_after="0"), failing(503, retry_after="0"))
    with asking(*codes, retries=2) as (embedding, peer):
        assert refusal(lambda: embedding.embed(["a"], "query"))[1].endswith("HTTP 503")
        assert len(peer.exchanges) == 3


def busy_for_two_seconds(exchange: Exchange) -> None:
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
    exchange.answer(b"{}", 429, {"retry-after": moment})


def test_what_the_server_asks_to_wait_is_waited() -> None:  # M20
    answers = (failing(429, retry_after="2"), busy_for_two_seconds, failing(429, retry_after="soon"))
    with asking(*answers, retries=3, timeout=WAIT) as (embedding, peer):
        assert embedding.embed(["abc"], "query") == [[3, 0]]
        first, second, third = (after - before for before, after in pairwise(peer.times))
        assert first >= 2.0
        assert second >= 1.0  # the date is one of whole seconds
        assert third >= 1.0  # the third wait of our own: two seconds, less up to a half


@pytest.mark.parametrize("asked", ["3600", "9" * 5_000, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_wait_beyond_the_timeout_is_not_begun(asked: str) -> None:  # M20
    with asking(failing(429, retry_after=asked), retries=3, timeout=10) as (embedding, peer):
        started = time.monotonic()
        assert refusal(lambda: embedding.embed(["a"], "query"))[1].endswith("HTTP 429")
        assert time.monotonic() - started < SOON
        assert len(peer.exchanges) == 1


def test_retries_end_within_the_timeout() -> None:
    with asking(*[failing(503)] * 100, retries=99, timeout=1.5) as (embedding, _):
        started = time.monotonic()
        code, _message = refusal(lambda: embedding.embed(["a"], "query"))
        assert code == "RETRIEVAL_BACKEND_ERROR"
        assert time.monotonic() - started < 1.5 + SOON


def test_a_cancel_ends_the_wait_before_a_retry() -> None:
    with asking(failing(503, retry_after="20"), retries=1) as (embedding, peer):
        started = time.monotonic()
        with cancelled_once(peer.arrived) as call, pytest.raises(InvocationCancelled):
            embedding.embed(["a"], "query", call)
        assert time.monotonic() - started < SOON


def test_a_server_that_is_not_there_yet_is_tried_again() -> None:
    with Peer(vectors) as peer:
        url = peer.url
    with HttpEmbedding(url, "m", sandbox=ANYWHERE) as embedding:
        failure = ("RETRIEVAL_BACKEND_ERROR", "Embedding request failed")
        assert refusal(lambda: embedding.embed(["a"], "query")) == failure
    started = time.monotonic()
    with HttpEmbedding(url, "m", sandbox=ANYWHERE, retries=2) as embedding:
        assert refusal(lambda: embedding.embed(["a"], "query")) == failure
    assert time.monotonic() - started >= 0.25 + 0.5


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2", 2.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("0", 0.0),
        ("soon", None),
        ("", None),
        ("-1", None),
        ("1e3", None),
        ("٣", None),
        ("inf", None),
        ("nan", None),
        ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0),
        ("Wednesday, 21-Oct-15 07:28:10 GMT", 10.0),
        ("Wed Oct 21 07:28:10 2015", 10.0),
        ("Wed, 21 Oct 2015 09:28:10 +0200", 10.0),
        ("Wed, 21 Oct 2015 07:28:10 -0000", 10.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0.0),
        ("Wed, 41 Oct 2015 07:28:10 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float | None) -> None:
    assert retry_after(value, "Wed, 21 Oct 2015 07:28:00 GMT") == seconds


def test_without_a_date_of_the_server_ours_counts() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    for date in ("", "yesterday"):
        seconds = retry_after(later, date)
        assert seconds is not None
        assert 90 < seconds <= 100


dates = st.datetimes(timezones=st.timezones() | st.none()).map(format_datetime)
headers = st.text() | dates | st.from_regex(r"[0-9A-Za-z,:+. -]*") | st.integers().map(str)


@given(headers, headers)
def test_whatever_a_header_holds_gives_seconds_or_none(value: str, date: str) -> None:
    seconds = retry_after(value, date)
    assert seconds is None or seconds >= 0.0


@given(st.integers(2, 101))
def test_own_waits_double_up_to_a_bound(attempt: int) -> None:
    longest = min(8.0, 0.5 * 2 ** (attempt - 2))
    assert longest / 2 <= backoff(attempt) <= longest


# --- connections, threads, processes


def test_a_connection_is_kept_and_used_again() -> None:
    with asking() as (embedding, peer):
        for _ in range(5):
            embedding.embed(["a"], "query")
        assert peer.connections == 1


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    def last(exchange: Exchange) -> None:
        vectors(exchange)
        exchange.close_connection = True

    with asking(last) as (embedding, peer):
        embedding.embed(["a"], "query")
        assert peer.closed.wait(WAIT)
        assert embedding.embed(["abc"], "query") == [[3, 0]]
        assert peer.connections == 2


def test_many_threads_get_each_its_own_answer() -> None:
    with asking() as (embedding, peer), ThreadPoolExecutor(8) as pool:
        lengths = [1 + n % 50 for n in range(200)]
        answers = list(pool.map(lambda length: embedding.embed(["x" * length], "query"), lengths))
        assert answers == [[[length, 0]] for length in lengths]
        assert peer.connections <= 8 + _http_bounds.IDLE_CONNECTIONS


@forks
def test_a_child_of_a_fork_has_connections_of_its_own() -> None:
    with asking() as (embedding, peer):
        embedding.embed(["a"], "query")
        child = fork.Process(target=_embed_and_exit, args=(embedding,))
        child.start()
        child.join(WAIT)
        assert child.exitcode == 0
        assert peer.connections == 2
        embedding.embed(["a"], "query")
        assert peer.connections == 2


@forks
def test_a_fork_in_the_middle_of_a_request_harms_neither() -> None:
    answer = threading.Event()

    def later(exchange: Exchange) -> None:
        assert answer.wait(WAIT)
        vectors(exchange)

    with asking(later) as (embedding, peer), ThreadPoolExecutor(1) as pool:
        running = pool.submit(embedding.embed, ["ab"], "query")
        assert peer.arrived.wait(WAIT)
        child = fork.Process(target=_embed_and_exit, args=(embedding,))
        child.start()
        child.join(WAIT)
        assert child.exitcode == 0
        answer.set()
        assert running.result(WAIT) == [[2, 0]]


def _embed_and_exit(embedding: HttpEmbedding) -> None:
    os._exit(0 if embedding.embed(["abc"], "query") == [[3, 0]] else 1)


def test_a_closed_embedding_refuses_calls() -> None:
    with asking() as (embedding, peer):
        embedding.embed(["a"], "query")
        embedding.close()
        embedding.close()
        code, message = refusal(lambda: embedding.embed(["a"], "query"))
        assert (code, message) == ("RETRIEVAL_PROVIDER_UNAVAILABLE", "Embedding provider is closed")
        assert len(peer.exchanges) == 1


def test_closing_ends_calls_in_flight() -> None:
    with asking(silent) as (embedding, peer), ThreadPoolExecutor(1) as pool:
        running = pool.submit(embedding.embed, ["a"], "query")
        assert peer.arrived.wait(WAIT)
        started = time.monotonic()
        embedding.close()
        assert refusal(lambda: running.result(WAIT))[0] == "RETRIEVAL_BACKEND_ERROR"
        assert time.monotonic() - started < SOON


@forks
def test_closing_ends_a_connection_though_a_child_of_a_fork_has_it_too() -> None:
    with asking() as (embedding, peer):
        embedding.embed(["a"], "query")
        ended = fork.Event()
        child = fork.Process(target=ended.wait, args=(WAIT,))
        child.start()
        embedding.close()
        assert peer.closed.wait(SOON)
        ended.set()
        child.join(WAIT)


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with asking() as (embedding, _):
        assert embedding.embed(["abc"], "query") == [[3, 0]]


def test_a_client_of_ones_own_is_used_and_left_open() -> None:
    with httpx.Client(headers={"x-own": "yes"}, follow_redirects=True, trust_env=False) as client:
        with asking(client=client) as (embedding, peer):
            assert embedding.embed(["abc"], "query") == [[3, 0]]
            assert peer.exchanges[0].headers["x-own"] == "yes"
            peer.scripts.append(says({}, 307, location="/elsewhere"))
            assert refusal(lambda: embedding.embed(["a"], "query"))[1].endswith("HTTP 307")
        assert not client.is_closed


@pytest.mark.parametrize("slow", [silent, stuck_in_the_body, dripping_body])
def test_a_client_of_ones_own_is_bounded_too(slow: Script) -> None:
    with httpx.Client(trust_env=False) as client, asking(slow, client=client, timeout=1.0) as (embedding, _):
        started = time.monotonic()
        assert refusal(lambda: embedding.embed(["a"], "query"))[0] == "RETRIEVAL_TIMEOUT"
        assert time.monotonic() - started < 1.0 + SOON
        assert embedding.embed(["abc"], "query") == [[3, 0]]


def test_a_cancel_is_noticed_between_two_pieces_for_a_client_of_ones_own() -> None:
    with httpx.Client(trust_env=False) as client, asking(dripping_body, client=client) as (embedding, peer):
        started = time.monotonic()
        with cancelled_once(peer.arrived) as call, pytest.raises(InvocationCancelled):
            embedding.embed(["a"], "query", call)
        assert time.monotonic() - started < SOON


# --- TLS

# openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 -subj /CN=test
#   -addext subjectAltName=IP:127.0.0.1 -keyout localhost.pem -out cert.pem; cat cert.pem >> localhost.pem
CERTIFICATE = Path(__file__).with_name("localhost.pem")


@pytest.fixture
def tls() -> ssl.SSLContext:
    """What the server of a test shows: a certificate that nobody trusts unless told to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = ssl.create_default_context(cafile=str(CERTIFICATE))
    monkeypatch.setattr(httpx, "create_ssl_context", lambda **_: trusting)


@pytest.mark.usefixtures("trusting")
def test_https_is_spoken_and_its_connections_are_kept(tls: ssl.SSLContext) -> None:
    with serving(vectors, tls=tls) as peer, HttpEmbedding(peer.url, "m", sandbox=ANYWHERE) as embedding:
        assert [embedding.embed([text], "query") for text in ("a", "bc")] == [[[1, 0]], [[2, 0]]]
        assert peer.connections == 1


def test_a_certificate_of_nobody_that_we_trust_is_refused(tls: ssl.SSLContext) -> None:
    with serving(vectors, tls=tls) as peer, HttpEmbedding(peer.url, "m", sandbox=ANYWHERE) as embedding:
        failure = ("RETRIEVAL_BACKEND_ERROR", "Embedding request failed")
        assert refusal(lambda: embedding.embed(["a"], "query")) == failure
        assert peer.exchanges == []


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("slow", SLOW)
def test_a_cancelled_call_ends_in_flight_over_tls(tls: ssl.SSLContext, slow: Script) -> None:
    with (
        serving(slow, vectors, tls=tls) as peer,
        HttpEmbedding(peer.url, "m", sandbox=ANYWHERE) as embedding,
    ):
        started = time.monotonic()
        with cancelled_once(peer.arrived) as call, pytest.raises(InvocationCancelled):
            embedding.embed(["a"], "query", call)
        assert time.monotonic() - started < SOON
        assert embedding.embed(["abc"], "query") == [[3, 0]]


@pytest.mark.usefixtures("trusting")
def test_a_handshake_that_is_not_answered_ends_with_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"https://127.0.0.1:{deaf.getsockname()[1]}"
        with HttpEmbedding(url, "m", sandbox=ANYWHERE, timeout=0.3) as embedding:
            started = time.monotonic()
            assert refusal(lambda: embedding.embed(["a"], "query"))[0] == "RETRIEVAL_TIMEOUT"
            assert time.monotonic() - started < SOON


# --- arguments and secrets


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080",
        "ftp://h",
        f"http://u:{SECRET}@h",
        f"http://h?{SECRET}",
        f"http://h#{SECRET}",
        f"http://h/a {SECRET}",
        f"http://h/\n{SECRET}",
        "http://h:0",
        "http://",
        None,
        3,
    ],
)
def test_a_url_that_cannot_be_asked_is_refused_and_not_shown(url: Any) -> None:
    code, message = refusal(lambda: HttpEmbedding(url, "m", sandbox=ANYWHERE))
    assert code == "RETRIEVAL_INVALID_INPUT"
    assert message.startswith("base_url: ")
    assert SECRET not in message


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"model": " "},
        {"model": None},
        {"timeout": 0},
        {"timeout": -1.0},
        {"timeout": True},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"timeout": 2_147_484},
        {"timeout": "30"},
        {"retries": -1},
        {"retries": True},
        {"retries": 1.0},
        {"api_key": f"{SECRET}\n"},
        {"api_key": f"ключ{SECRET}"},
        {"api_key": 3},
        {"identity": " "},
        {"dimensions": 0},
        {"dimensions": True},
    ],
)
def test_arguments_are_checked_and_not_shown(options: dict[str, Any]) -> None:
    given_ = {"base_url": "http://h", "model": "m", "sandbox": ANYWHERE, **options}
    code, message = refusal(lambda: HttpEmbedding(**given_))
    assert code == "RETRIEVAL_INVALID_INPUT"
    assert SECRET not in message


def test_secrets_show_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = (failing(503, retry_after="0"), says(SECRET.encode()), says({}, 401))
    with asking(*answers, api_key=SECRET, retries=1) as (embedding, peer):
        for _ in range(2):
            with pytest.raises(RetrievalError) as failure:
                embedding.embed([SECRET], "query")
            shown = "".join(traceback.format_exception(failure.value))
            assert SECRET not in shown
            assert peer.url not in str(failure.value)
        assert SECRET not in repr(embedding) + repr(vars(embedding)) + caplog.text


def test_an_identity_for_an_index() -> None:
    plain = HttpEmbedding("http://h:1/v1/", "m", sandbox=ANYWHERE)
    named = HttpEmbedding("http://h", "m", sandbox=ANYWHERE, identity="m@2", dimensions=3)
    assert (plain.identity, plain.dimensions) == ("http://h:1/v1:m", None)
    assert (named.identity, named.dimensions) == ("m@2", 3)
    assert isinstance(named, IdentifiedEmbedding)


# --- the environment


def test_the_environment_gives_the_arguments() -> None:
    with serving(vectors) as peer:
        environ = {
            embedding_http.BASE_URL: peer.url,
            embedding_http.MODEL: "m",
            embedding_http.API_KEY: SECRET,
        }
        config = embedding_config_from_env(environ)
        assert config == {"base_url": peer.url, "model": "m", "api_key": SECRET}
        assert SECRET not in repr(config)
        with HttpEmbedding(**config, sandbox=ANYWHERE) as embedding:
            embedding.embed(["a"], "query")
        assert peer.exchanges[0].headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("missing", [embedding_http.BASE_URL, embedding_http.MODEL])
@pytest.mark.parametrize("value", [None, "", " "])
def test_address_and_model_are_needed(missing: str, value: str | None) -> None:  # vector 91
    environ = {embedding_http.BASE_URL: "http://h", embedding_http.MODEL: "m", missing: value}
    present = {name: text for name, text in environ.items() if text is not None}
    code, message = refusal(lambda: embedding_config_from_env(present))
    assert code == "RETRIEVAL_INVALID_INPUT"
    assert missing in message


def test_an_empty_key_is_none() -> None:
    environ = {embedding_http.BASE_URL: "http://h", embedding_http.MODEL: "m", embedding_http.API_KEY: ""}
    assert embedding_config_from_env(environ) == {"base_url": "http://h", "model": "m"}


def test_its_variables_are_among_those_that_are_documented() -> None:
    assert {embedding_http.BASE_URL, embedding_http.MODEL, embedding_http.API_KEY} <= set(ENVIRONMENT)


def test_without_httpx_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "from ditto_tasks.contracts.errors import InvalidDefinition\n"
        "try: import providers.embedding.http\n"
        "except InvalidDefinition as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT, check=True
    )
    assert "pip install 'ditto-tasks[http]'" in ended.stdout
