"""Whole memory records as what is embedded: their text, and the digest that tells when it has changed."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.json_value import canonical_json
from ditto_tasks.contracts.memory import MemoryItem
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, EmbeddingProvider, Purpose, RetrievalCall
from providers.embedding.batching import validate_vector
from providers.text import search_text

__all__ = ["RECORD_TEXT", "NamedEmbedding", "RecordEmbedding", "record_digest", "record_text"]

RECORD_TEXT = "record.text/v1"  # names `record_text`, so that an index notices when it becomes another

_DIGESTED = ("content", "key", "metadata")


class NamedEmbedding(EmbeddingProvider, Protocol):
    """An embedding that says which model it is, and its dimensions where it knows them."""

    @property
    def identity(self) -> str:
        """Names the model and its version."""
        ...

    @property
    def dimensions(self) -> int | None:
        """The length of its vectors; None: not known before the first one."""
        ...


class RecordEmbedding:
    """Embeds memory records, other structures and strings by their text; closes nothing.

    A document without any text gets a zero vector, which is like nothing: one empty record does not keep a
    batch from its index.

    Attributes:
        identity: that of the embedding below, with the name of `record_text`.
        dimensions: those of the embedding below; None where it does not say.
        preprocessing: the name of `record_text`.
        is_parallel: that of the embedding below; True where it does not say, as one that waits for a server.
    """

    def __init__(self, embedding: NamedEmbedding) -> None:
        self._embedding = embedding
        self.identity = f"{embedding.identity}+{RECORD_TEXT}"
        self.dimensions = embedding.dimensions
        self.preprocessing = RECORD_TEXT
        self.is_parallel: bool = getattr(embedding, "is_parallel", True)

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        """Return one vector a content, in their order.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a query without text, or for documents none of which
                has any when the embedding does not say its dimensions; whatever the embedding raises.
        """
        texts = [record_text(content) for content in contents]
        written = [text for text in texts if text.strip()]
        if len(written) == len(texts) or purpose == "query":
            return self._embedding.embed(texts, purpose, call)
        vectors = self._embedding.embed(written, purpose, call) if written else ()
        if len(vectors) != len(written):
            raise RetrievalError("RETRIEVAL_INVALID_EMBEDDING", "Invalid embedding: must be one a content")
        nothing = [0.0] * self._width(vectors)
        given = iter(vectors)
        return [next(given) if text.strip() else nothing for text in texts]

    def _width(self, vectors: Sequence[Sequence[float]]) -> int:
        if len(vectors):
            return validate_vector(vectors[0], self.dimensions).size
        if self.dimensions is None:
            raise RetrievalError(
                "RETRIEVAL_INVALID_INPUT", "contents: none has any text, and the embedding has no dimensions"
            )
        return self.dimensions


def record_text(record: Any) -> str:
    """Return what is embedded: of a memory record the text of its content, of anything else its own.

    Text is the strings and numbers among the values, one a line; a string is its own text. A memory record
    is a `MemoryItem`, or a dict with `id` and `content`.
    """
    return search_text(_content(record))


def record_digest(record: MemoryItem | Mapping[str, Any]) -> str:
    """Return the SHA-256, in hex, of a record's content, key and metadata.

    Equal JSON values give equal digests; absent metadata is another value than empty metadata.
    """
    fields = record.to_wire() if isinstance(record, MemoryItem) else record
    present = {name: fields[name] for name in _DIGESTED if name in fields}
    return hashlib.sha256(canonical_json(present).encode()).hexdigest()


def _content(record: Any) -> Any:
    if isinstance(record, MemoryItem):
        return record.content
    if isinstance(record, Mapping) and "id" in record and "content" in record:
        return record["content"]
    return record
