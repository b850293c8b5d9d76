"""JSON posted to one address of a model server: who may, how long, how large, how often; how it fails."""

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError
from ditto_tasks.contracts.json_value import NotJson, decode_json, encode_json
from ditto_tasks.contracts.origin import origin_of
from providers._http_retry import RETRIED, backoff, wait_before
from providers.sandbox import OriginCheck

try:
    import httpcore
    import httpx

    from providers._http_bounds import BoundedTransport, Bounds, OutOfTime
except ImportError as error:
    raise InvalidDefinition("HTTP needs the package httpx: pip install 'ditto-tasks[http]'") from error

__all__ = ["DEFAULT_TIMEOUT", "HttpJson"]

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 30.0  # seconds, all attempts together
MAX_TIMEOUT = 2_147_483.647  # seconds; milliseconds of 31 bits, as everywhere
MAX_RETRIES = 100

_PRINTABLE = re.compile(r"[!-~]+", re.ASCII)  # and nothing blank


class HttpJson:
    """Posts JSON to one address and reads the JSON that comes back; for many threads, also after a fork.

    Without a client of one's own, connections are kept and reused, a process its own; no proxy is taken from
    the environment; a cancelled call or one out of time ends its request at once, whatever it waits for. With
    one, each silence is bounded by the time left, and the token is looked at between two pieces of an answer.

    Args:
        base_url: http or https, without credentials, query and fragment; slashes at its end are nothing.
        path: of the endpoint below it, with its slash.
        what: names the provider in messages, such as `Embedding`.
        api_key: sent as a bearer token; None or empty: none is.
        sandbox: asked before every request.
        timeout: seconds that one call may take, with all attempts and the body of the answer.
        retries: further attempts after 429, 500, 502, 503, 504 and when no connection comes about.
        client: sends the requests in place of ours, and stays the caller's to close; not to be used by
            two processes.

    Attributes:
        base_url: without slashes at its end.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for one of them, which is named and not shown.
    """

    def __init__(
        self,
        base_url: str,
        path: str,
        *,
        what: str,
        api_key: str | None,
        sandbox: OriginCheck,
        timeout: float,
        retries: int,
        client: httpx.Client | None,
    ) -> None:
        self.base_url = _checked_url(base_url)
        self._url = self.base_url + path
        self._origin = origin_of(self.base_url)
        self._what = what
        self._headers = _headers(api_key)
        self._sandbox = sandbox
        self._timeout = _checked_timeout(timeout)
        self._attempts = 1 + _checked_retries(retries)
        self._given = client
        self._clients: dict[int, httpx.Client] = {}  # by process: a child of a fork starts with none
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close our connections of this process, calls in flight or not, and refuse further ones.

        Closing twice does nothing.
        """
        self._closed = True
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    def post(self, body: Any, call: Call, *, max_bytes: int) -> Any:
        """Send a JSON value and return the answer's.

        Args:
            max_bytes: size of the largest answer that is read.

        Raises:
            RetrievalError: RETRIEVAL_PERMISSION_DENIED by the sandbox; RETRIEVAL_INVALID_INPUT when the value
                has no JSON form; RETRIEVAL_TIMEOUT when `timeout` is over; RETRIEVAL_BACKEND_ERROR for an
                answer that is not 2xx, no JSON or too large, and when there is none;
                RETRIEVAL_PROVIDER_UNAVAILABLE after `close`.
            InvocationCancelled, DeadlineExceeded: `call` says so.
        """
        self._check_permission()
        bounds = Bounds(call, self._timeout)
        with self._translated(call), bounds.apply():
            return decode_json(self._answered(_encoded(body), bounds, call, max_bytes))

    def _check_permission(self) -> None:
        if self._closed:
            raise RetrievalError("RETRIEVAL_PROVIDER_UNAVAILABLE", f"{self._what} provider is closed")
        try:
            self._sandbox.assert_allowed("network", self._origin)
        except Exception as error:  # whatever it is: it is no permission
            raise RetrievalError(
                "RETRIEVAL_PERMISSION_DENIED", f"{self._what} endpoint is not permitted"
            ) from error

    @contextmanager
    def _translated(self, call: Call) -> Iterator[None]:
        try:
            yield
        except _Refused as refusal:
            raise RetrievalError(
                "RETRIEVAL_BACKEND_ERROR", f"{self._what} provider returned HTTP {refusal.status}"
            ) from None
        except _TIMEOUTS as error:
            raise RetrievalError("RETRIEVAL_TIMEOUT", f"{self._what} request timed out") from error
        except _FAULTS as error:
            reason = str(error) if isinstance(error, _Unreadable) else type(error).__name__
            logger.warning("%s: %s request failed: %s", call.execution_id, self._what, reason)
            raise RetrievalError("RETRIEVAL_BACKEND_ERROR", f"{self._what} request failed") from error

    def _answered(self, content: bytes, bounds: Bounds, call: Call, max_bytes: int) -> bytes:
        """Return the body of the first attempt that succeeds; the failure of the last is raised.

        One whose wait would outlast the time that is left is the last.
        """
        attempt = 1
        while True:
            try:
                return self._attempt(content, bounds, max_bytes)
            except (_Refused, *_UNREACHABLE) as failure:
                attempt += 1
                wait = _wait_before(attempt, failure)
                if attempt > self._attempts or wait is None or wait >= bounds.left():
                    raise
            logger.info("%s: %s attempt %d in %.1f s", call.execution_id, self._what, attempt, wait)
            bounds.sleep(wait)

    def _attempt(self, content: bytes, bounds: Bounds, max_bytes: int) -> bytes:
        with self._client().stream(
            "POST",
            self._url,
            content=content,
            headers=self._headers,
            follow_redirects=False,
            timeout=bounds.left(),  # of each wait, where the client is not ours
        ) as answer:
            if not answer.is_success:
                raise _Refused(answer.status_code, answer.headers)
            return _body(answer, bounds, max_bytes)

    def _client(self) -> httpx.Client:
        if self._given is not None:
            return self._given
        process = os.getpid()
        client = self._clients.get(process)
        if client is None:
            made = self._made()
            client = self._clients.setdefault(process, made)  # no lock: a fork could take it along, locked
            if client is not made:
                made.close()
        return client

    def _made(self) -> httpx.Client:
        tls = httpx.create_ssl_context(trust_env=False) if self._origin.startswith("https:") else None
        return httpx.Client(transport=BoundedTransport(tls), trust_env=False)


class _Refused(Exception):
    """An answer that is not 2xx."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers


class _Unreadable(Exception):
    """An answer whose body is not read; the text is ours."""


_TIMEOUTS = (OutOfTime, httpcore.TimeoutException, httpx.TimeoutException)
_UNREACHABLE = (httpcore.ConnectError, httpx.ConnectError)  # of our client, and of one's own
_FAULTS = (
    NotJson,
    _Unreadable,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpx.HTTPError,
    RuntimeError,  # of a client that is closed meanwhile
)


def _checked_url(url: str) -> str:
    """Return a base URL without slashes at its end."""
    try:
        origin_of(url)
        httpx.URL(url)
    except (ValueError, TypeError, httpx.InvalidURL):
        raise _invalid(
            "base_url", "must be a URL such as https://HOST:PORT/v1, without credentials"
        ) from None
    if not _PRINTABLE.fullmatch(url) or "?" in url or "#" in url:
        raise _invalid("base_url", "must have no white space, no query and no fragment")
    return url.rstrip("/")


def _headers(api_key: str | None) -> dict[str, str]:
    headers = {
        "accept": "application/json",
        "accept-encoding": "identity",  # so that the size of what is read is that of what is sent
        "content-type": "application/json",
    }
    if not api_key:
        return headers
    if not isinstance(api_key, str) or not _PRINTABLE.fullmatch(api_key):
        raise _invalid("api_key", "must be printable ASCII without white space")
    return {**headers, "authorization": f"Bearer {api_key}"}


def _checked_timeout(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
        raise _invalid("timeout", f"must be a number of seconds over 0, at most {MAX_TIMEOUT}")
    return float(timeout)


def _checked_retries(retries: int) -> int:
    if type(retries) is not int or not 0 <= retries <= MAX_RETRIES:
        raise _invalid("retries", f"must be an integer in 0..{MAX_RETRIES}")
    return retries


def _encoded(body: Any) -> bytes:
    try:
        return encode_json(body)
    except ValueError as error:  # a lone surrogate
        raise _invalid("contents", "one has no form in UTF-8") from error


def _wait_before(attempt: int, failure: Exception) -> float | None:
    """Return the seconds to wait before an attempt; None when it would fail all the same."""
    if not isinstance(failure, _Refused):
        return backoff(attempt)
    return wait_before(attempt, failure.headers) if failure.status in RETRIED else None


def _body(answer: httpx.Response, bounds: Bounds, max_bytes: int) -> bytes:
    """Read a body as it was sent; one that was compressed all the same could grow to any size: it is not."""
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        raise _Unreadable("the answer is compressed")
    body = bytearray()
    for piece in answer.iter_raw():
        bounds.left()
        body += piece
        if len(body) > max_bytes:
            raise _Unreadable(f"the answer has over {max_bytes} bytes")
    return bytes(body)


def _invalid(name: str, what: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_INPUT", f"{name}: {what}")
