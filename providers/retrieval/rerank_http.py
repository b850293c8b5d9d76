"""Reranking by a server with a `/rerank` endpoint, as Cohere, Jina, vLLM and TEI have it."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pydantic import ValidationError

from ditto_tasks.contracts.base import expected
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    Ranked,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalQuery,
)
from providers.embedding.records import record_text
from providers.http_json import DEFAULT_TIMEOUT, HttpJson
from providers.sandbox import OriginCheck

if TYPE_CHECKING:
    import httpx

__all__ = ["Dialect", "HttpReranker"]

Dialect = Literal["results", "tei"]
"""How a request is written; the answers of both are read whichever it is.

`results`: {model, query, documents, top_n}, answered by {"results": [{index, relevance_score}]}.
`tei`: {query, texts}, answered by [{index, score}].
"""

ANSWER_BYTES = 16_777_216  # of an answer; some servers send the documents back: 1,000 of 16 KiB

_DIALECTS = get_args(Dialect)


class HttpReranker:
    """Has a server score candidates against the query.

    Connections are kept open and shared by the threads of a process: close it, or use it as a context.

    Args:
        base_url: such as `https://api.cohere.com/v2` or `http://127.0.0.1:8080`; `/rerank` is added.
        model: as the server calls it; None: the server has one only.
        text: makes the text of a candidate's content, and of a query that is no string; the default takes
            strings as they are, and of a whole memory record the text of its content.
        dialect: how the request is written.
        api_key, sandbox, timeout, retries, client: as for `HttpEmbedding`.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for one of them, which is named and not shown.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        sandbox: OriginCheck,
        timeout: float = DEFAULT_TIMEOUT,
        retries: int = 0,
        client: "httpx.Client | None" = None,
        text: Callable[[Any], str] = record_text,
        dialect: Dialect = "results",
    ) -> None:
        if dialect not in _DIALECTS:
            raise _invalid_input(f"dialect: must be one of {', '.join(_DIALECTS)}")
        if model is not None and (not isinstance(model, str) or not model.strip()):
            raise _invalid_input("model: must be a string that is not blank, or left out")
        self._http = HttpJson(
            base_url,
            "/rerank",
            what="Rerank",
            api_key=api_key,
            sandbox=sandbox,
            timeout=timeout,
            retries=retries,
            client=client,
        )
        self._model = model
        self._text = text
        self._dialect = dialect

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close our connections of this process, calls in flight or not, and refuse further ones."""
        self._http.close()

    def rank(
        self,
        query: RetrievalQuery,
        candidates: Sequence[RetrievalCandidate],
        limit: int,
        call: RetrievalCall = NO_RETRIEVAL_CALL,
    ) -> Sequence[Ranked]:
        """Return min(limit, len(candidates)) places by the server's scores, ties in the candidates' order.

        No candidates are answered without a request.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a query without text;
                RETRIEVAL_INVALID_BACKEND_OUTPUT when the answer has too few places, one twice, or one
                without a finite score; what `HttpJson.post` raises.
            InvocationCancelled, DeadlineExceeded: `call` says so.
        """
        call.check()
        asked = query.content if isinstance(query.content, str) else self._text(query.content)
        if not asked.strip():
            raise _invalid_input("query.content: must hold some text")
        wanted = min(limit, len(candidates))
        if not wanted:
            return []
        texts = [self._text(candidate.content) for candidate in candidates]
        answer = self._http.post(self._request(asked, texts, wanted), call, max_bytes=ANSWER_BYTES)
        places = _places(answer, len(texts))
        if len(places) < wanted:
            raise _invalid_output(f"{len(places)} places where {wanted} are due")
        return sorted(places, key=_by_score)[:wanted]

    def _request(self, query: str, texts: list[str], wanted: int) -> dict[str, Any]:
        model = {} if self._model is None else {"model": self._model}
        if self._dialect == "tei":
            return {**model, "query": query, "texts": texts}
        return {**model, "query": query, "documents": texts, "top_n": wanted}


def _places(answer: Any, count: int) -> list[Ranked]:
    """Read an answer of either dialect: a list of places, or an object that holds one."""
    listed = answer.get("results") if isinstance(answer, dict) else answer
    if not isinstance(listed, list):
        raise _invalid_output("no list of results")
    places = [_place(entry, count) for entry in listed]
    if len({place.index for place in places}) < len(places):
        raise _invalid_output("a candidate has two places")
    return places


def _place(entry: Any, count: int) -> Ranked:
    if not isinstance(entry, dict):
        raise _invalid_output("a place must be an object")
    score = entry.get("relevance_score", entry.get("score"))
    try:
        place = Ranked.from_wire({"index": entry.get("index"), "score": score})
    except ValidationError as error:
        raise _invalid_output(expected(error)) from None
    if place.index >= count:
        raise _invalid_output(f"index: must be in 0..{count - 1}")
    return place


def _by_score(place: Ranked) -> tuple[float, int]:
    return (-(place.score or 0.0), place.index)  # every place has a score: absence was refused


def _invalid_input(message: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_INPUT", message)


def _invalid_output(what: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_BACKEND_OUTPUT", f"The rerank provider answered wrongly: {what}")
