"""Embeddings of a server that speaks OpenAI's `/embeddings`, in a cloud or on this machine."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall
from providers.embedding.batching import validate_vector
from providers.http_json import DEFAULT_TIMEOUT, HttpJson
from providers.sandbox import OriginCheck

if TYPE_CHECKING:
    import httpx

__all__ = ["EmbeddingConfig", "HttpEmbedding", "embedding_config_from_env"]

BASE_URL = "DITTO_WORKER_RETRIEVAL_EMBEDDING_BASE_URL"
MODEL = "DITTO_WORKER_RETRIEVAL_EMBEDDING_MODEL"
API_KEY = "DITTO_WORKER_RETRIEVAL_EMBEDDING_API_KEY"

ANSWER_BYTES = 1_048_576  # of an answer, apart from its vectors
VECTOR_BYTES = 262_144  # of one vector: 8,192 numbers of up to 30 characters, a comma and a space each


class HttpEmbedding:
    """Asks a server for vectors; all contents of a call go in one request: `embed_contents` makes batches.

    Connections are kept open and shared by the threads of a process: close it, or use it as a context.

    Args:
        base_url: such as `https://api.openai.com/v1` or `http://127.0.0.1:8080`; `/embeddings` is added.
        model: as the server calls it.
        api_key: sent as a bearer token; None or empty: none is.
        sandbox: must permit the URL's origin, and is asked before every request.
        timeout: seconds that one call may take, retries and the body of the answer included.
        retries: further attempts after 429, 500, 502, 503, 504 and when no connection comes about; they wait
            for what Retry-After says, else for half a second, doubled each time, and never past the timeout.
        client: sends the requests in place of ours, with its proxies and certificates; the caller's to close.
            With ours a cancelled call ends at once; with another, when the server sends something or the time
            is over.
        identity: names what makes these vectors, for an index; None: `BASE_URL:MODEL`.
        dimensions: what the vectors must have; it changes no request. None: any length, one to an answer.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for one of them, which is named and not shown.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        sandbox: OriginCheck,
        timeout: float = DEFAULT_TIMEOUT,
        retries: int = 0,
        client: "httpx.Client | None" = None,
        identity: str | None = None,
        dimensions: int | None = None,
    ) -> None:
        self._http = HttpJson(
            base_url,
            "/embeddings",
            what="Embedding",
            api_key=api_key,
            sandbox=sandbox,
            timeout=timeout,
            retries=retries,
            client=client,
        )
        self._model = _named("model", model)
        self.identity = f"{self._http.base_url}:{model}" if identity is None else _named("identity", identity)
        self.dimensions = _checked_dimensions(dimensions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close our connections of this process, calls in flight or not, and refuse further ones."""
        self._http.close()

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        """Return one vector a content, in their order, all of one length; none for none, without a request.

        The purpose changes nothing: this protocol has no place for it.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a content that is no string, or blank;
                RETRIEVAL_INVALID_EMBEDDING when the answer is not one vector a content; what `HttpJson.post`
                raises.
            InvocationCancelled, DeadlineExceeded: `call` says so.
        """
        call.check()
        texts = _texts(contents)
        if not texts:
            return []
        answer = self._http.post(
            {"model": self._model, "input": texts, "encoding_format": "float"},
            call,
            max_bytes=ANSWER_BYTES + VECTOR_BYTES * len(texts),
        )
        return _paired(answer, len(texts), self.dimensions)


class EmbeddingConfig(dict[str, Any]):
    """Arguments of `HttpEmbedding` by name; the key stays out of the repr."""

    def __repr__(self) -> str:
        return f"EmbeddingConfig({ {name: value for name, value in self.items() if name != 'api_key'} })"


def embedding_config_from_env(environ: Mapping[str, str]) -> EmbeddingConfig:
    """Read `base_url`, `model` and, if there is one, `api_key`; an empty variable counts as not set.

    `HttpEmbedding(**embedding_config_from_env(os.environ), sandbox=sandbox)` takes them.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT, naming the variable that is missing.
    """
    config = EmbeddingConfig(base_url=_required(environ, BASE_URL), model=_required(environ, MODEL))
    if environ.get(API_KEY):
        config["api_key"] = environ[API_KEY]
    return config


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value.strip():
        raise _invalid_input(f"{name} is not set: give it a value")
    return value


def _named(argument: str, value: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _invalid_input(f"{argument}: must be a string that is not blank")
    return value


def _checked_dimensions(dimensions: int | None) -> int | None:
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise _invalid_input("dimensions: must be an integer of at least 1")
    return dimensions


def _texts(contents: Sequence[Any]) -> list[str]:
    if not isinstance(contents, list | tuple):
        raise _invalid_input("contents: must be a list")
    if not all(isinstance(content, str) and content.strip() for content in contents):
        raise _invalid_input("contents: each must be a string that is not blank")
    return list(contents)


def _paired(answer: Any, count: int, dimensions: int | None) -> list[list[float]]:
    """Return the answer's vectors in the order of the contents, whatever order they came in."""
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, list) or len(data) != count:
        raise _invalid_embedding(f"the answer must hold {count} vectors, one a content")
    vectors: list[list[float]] = [[] for _ in range(count)]
    for item in data:
        index = _index(item, count)
        if vectors[index]:
            raise _invalid_embedding(f"two vectors have the index {index}")
        vectors[index] = item["embedding"]
        dimensions = validate_vector(vectors[index], dimensions).size
    return vectors


def _index(item: Any, count: int) -> int:
    """Return the index of one item, which holds a list; an index that is there must be right."""
    index = item.get("index") if isinstance(item, dict) else None
    if isinstance(index, bool) or not isinstance(index, int | float) or index not in range(count):
        raise _invalid_embedding(f"each vector must have an index in 0..{count - 1}")
    if not isinstance(item.get("embedding"), list):
        raise _invalid_embedding("each vector must be a list of numbers")
    return int(index)


def _invalid_input(message: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_INPUT", message)


def _invalid_embedding(what: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_EMBEDDING", f"Invalid embedding: {what}")
