"""The port of vector indexes: records with their vectors, one embedding identity each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import DittoError
from ditto_tasks.contracts.memory import MemoryItem

__all__ = ["IndexEntry", "IndexHit", "IndexManifest", "IndexMismatch", "VectorIndex"]


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What made the vectors of an index.

    Attributes:
        model: identity of the embedding, as `IdentifiedEmbedding.identity`.
        dimensions: length of a vector.
        preprocessing: names how a record becomes the text that is embedded.
        distance: how vectors are compared.
    """

    model: str
    dimensions: int
    preprocessing: str
    distance: Literal["cosine"] = "cosine"


class IndexMismatch(DittoError):
    """An index holds vectors of another identity than that it is opened with; both are named.

    Attributes:
        kept: what the index was made with; None: it does not say, or holds the records of a memory store.
    """

    code = "INDEX_MISMATCH"

    def __init__(self, message: str, kept: IndexManifest | None = None) -> None:
        super().__init__(message, kept)
        self.message = message
        self.kept = kept

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A record with its vector.

    Attributes:
        record: kept whole, so that a hit needs no second look elsewhere.
        vector: `dimensions` finite numbers of any length; a zero vector is like nothing, its score is 0.
        digest: of what the record was when it was embedded; the same digest means the same vector.
    """

    record: MemoryItem
    vector: Sequence[float]
    digest: str


@dataclass(frozen=True, slots=True)
class IndexHit:
    """A record that was found.

    Attributes:
        score: cosine similarity, -1 to 1.
    """

    record: MemoryItem
    score: float


class VectorIndex(Protocol):
    """Keeps records with their vectors and finds the nearest; usable from many threads.

    Opening one with another manifest than it was made with is refused (`IndexMismatch`). Filters are those of
    MEMORY.SEARCH: `key`, `namespace` and `kind`, each with one string.
    """

    @property
    def manifest(self) -> IndexManifest:
        """What made the vectors."""
        ...

    def upsert(self, entries: Sequence[IndexEntry], call: Call = NO_CALL) -> None:
        """Put the entries in the place of those with the same record ids; all or, after an error, none.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_EMBEDDING for a vector of another length or one that is not
                finite; RETRIEVAL_BACKEND_ERROR when the index did
                not confirm it.
        """
        ...

    def delete(self, ids: Sequence[str], call: Call = NO_CALL) -> Sequence[str]:
        """Remove the records with these ids; returns those that were there, in the order asked."""
        ...

    def search(
        self,
        vector: Sequence[float],
        *,
        limit: int,
        filter: Mapping[str, Any] | None = None,
        call: Call = NO_CALL,
    ) -> Sequence[IndexHit]:
        """Return the `limit` nearest records, nearest first, ties by id.

        There are fewer only where fewer match the filter.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for an unknown filter, RETRIEVAL_INVALID_EMBEDDING for a
                vector of another length.
        """
        ...

    def digests(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, str]:
        """Return the digest of each of these records that is there."""
        ...

    def vectors(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, Sequence[float]]:
        """Return the vector of each of these records that is there, at length 1, or zero; arrays are such."""
        ...

    def page(self, after: str | None, *, limit: int, call: Call = NO_CALL) -> Sequence[tuple[str, str]]:
        """Return ids with digests in the order of ids, at most `limit`, those greater than `after`."""
        ...

    def count(self, call: Call = NO_CALL) -> int:
        """Count the records."""
        ...

    def drop(self, call: Call = NO_CALL) -> None:
        """Remove the index with all that it holds, and close it; one that is gone already does nothing.

        Other instances of it, in whatever process, are refused from then on:
        RETRIEVAL_PROVIDER_UNAVAILABLE; none makes it anew. When somebody has made another by its name since,
        they are refused where an engine tells the two apart, as SQLite does. PostgreSQL, Qdrant and Milvus
        know an index by its name alone: there, they serve, and drop, the other.
        """
        ...

    def close(self) -> None:
        """Let go of connections; calls from then on are refused. Closing twice does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
