"""A store in a Qdrant collection, over Qdrant's client: a server, or a directory of this process alone.

Qdrant has no transactions. A batch is checked before any of it is written; what other writers do in between,
or a failure half-way, can leave a part of it. Every change is confirmed by the server before it is answered.
"""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError
from ditto_tasks.contracts.memory import (
    DEFAULT_QUERY_LIMIT,
    DEFAULT_SEARCH_LIMIT,
    MemoryDeleteInput,
    MemoryDeleteOutput,
    MemoryGetInput,
    MemoryHit,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemorySearchInput,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.retrieval import EmbeddingProvider
from providers.stores._embedding import TextEmbedding, text_embedding
from providers.stores._failures import STORE
from providers.stores._locations import location_of
from providers.stores._paging import BY_ID, Paging, checked_filter
from providers.stores._qdrant_collection import Point, QdrantCollection
from providers.stores._qdrant_driver import models
from providers.stores._qdrant_points import (
    first_id_after,
    is_point_id,
    matching,
    matching_vectors,
    payload_of,
    record_of,
)
from providers.stores._rows import (
    Row,
    checked_reuse,
    created,
    item,
    json_text,
    metadata_text,
    patched,
    refuse_repeated,
)
from providers.stores._stable_id import stable_id

__all__ = ["QdrantStats", "QdrantStore", "open_qdrant"]

COLLECTION = "memories"
VECTOR = "text"
EMBEDDED_KIND = "preference"  # records of other kinds are kept without a vector
PREPROCESSING = "preference.content.text/v1"
MAX_TEXT = 8_000  # characters of a text that is embedded
MAX_RECORDS = 10_000  # of one GET

_NAME = re.compile(r"[a-z][a-z0-9_]{0,100}\Z")


@dataclass(frozen=True, slots=True)
class QdrantStats:
    """What a store has asked of its embedding and of Qdrant's vector search so far."""

    embedding_calls: int = 0
    embedded_texts: int = 0
    vector_queries: int = 0


class QdrantStore:
    """Keeps records as points; those of the kind `preference` are embedded, and found by what they mean.

    A record with a key has an id that follows from it, in every collection the same.

    Args:
        location: `http://HOST:PORT` or `https://HOST:PORT` of a server (1.17 or newer), else the path of a
            directory.
        collection: made if missing: a lower-case letter, then at most 100 of letters, digits and '_'.
        embedding: of preferences and queries; without one, records are kept and read, but not searched, and
            to a collection that has vectors no preference is written.
        identity: of the embedding, as `IdentifiedEmbedding.identity`; its own, if it has one.
        dimensions: of the embedding's vectors; its own, if it has them.
        api_key: of the server.

    Raises:
        InvalidDefinition: the collection's name or what describes the embedding is not in its form.
        IndexMismatch: the collection holds vectors of another embedding, or records without any.
        StoreUnavailable: the server cannot be reached, or the directory not opened.
    """

    def __init__(
        self,
        location: str,
        *,
        collection: str = COLLECTION,
        embedding: EmbeddingProvider | None = None,
        identity: str | None = None,
        dimensions: int | None = None,
        api_key: str | None = None,
    ) -> None:
        if not _NAME.match(collection):
            raise InvalidDefinition(
                f"Qdrant collection {collection!r:.80}: use a lower-case letter, then up to 100 of letters, "
                "digits and '_'"
            )
        self._embedding = text_embedding(embedding, identity, dimensions)
        self._vector_queries = 0
        self._points = QdrantCollection(
            location, collection, STORE, vector=VECTOR, manifest=_manifest(self._embedding), api_key=api_key
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def stats(self) -> QdrantStats:
        """What this store has asked so far."""
        if self._embedding is None:
            return QdrantStats()
        return QdrantStats(self._embedding.calls, self._embedding.texts, self._vector_queries)

    def close(self) -> None:
        """Close the client of this process and refuse further calls; closing twice does nothing."""
        self._points.close()

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Return the records with these ids or keys.

        Raises:
            MemoryNodeError: RESULT_LIMIT when more than 10,000 are asked for.
        """
        self._points.check(call)
        ids = dict.fromkeys([*(request.ids or ()), *map(stable_id, request.keys or ())])
        if len(ids) > MAX_RECORDS:
            raise MemoryNodeError(
                "RESULT_LIMIT", f"{len(ids)} records at once are too many: ask for {MAX_RECORDS} at most"
            )
        return [item(row) for row in self._rows(list(ids), call).values()]

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        """Return one page in the order of ids, the only one there is."""
        self._points.check(call)
        paging = Paging.of(request)
        if paging.fields != BY_ID:
            raise _invalid("orderBy: this store lists by id, ascending, only")
        limit = request.limit or DEFAULT_QUERY_LIMIT
        start = first_id_after(str(paging.after[0]) if paging.after else "")
        if start is None:
            return trusted(MemoryQueryOutput, {"items": ()})
        points = self._points.scroll(matching(paging.filter), call, limit=limit + 1, start=start)
        items = tuple(item(_row(point)) for point in points[:limit])
        if len(points) <= limit:
            return trusted(MemoryQueryOutput, {"items": items})
        return trusted(MemoryQueryOutput, {"items": items, "next_cursor": paging.cursor([items[-1].id])})

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Sequence[MemoryHit]:
        """Return the preferences nearest to a query in words, nearest first, scored by their cosine.

        Raises:
            MemoryNodeError: SEARCH_UNAVAILABLE when the store was opened without an embedding.
        """
        self._points.check(call)
        query = _checked_query(request)
        condition = matching_vectors(checked_filter(request.filter))
        if self._embedding is None:
            raise MemoryNodeError(
                "SEARCH_UNAVAILABLE",
                "this store was opened without an embedding: give QdrantStore one to search by vectors",
            )
        [vector] = self._embedding.vectors([query], "query", call)
        limit = request.limit or DEFAULT_SEARCH_LIMIT
        found = self._points.nearest(vector, condition, call, limit=limit)
        self._vector_queries += 1
        return [trusted(MemoryHit, {"memory": item(_row(point)), "score": point.score}) for point in found]

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Create the records; absent metadata differs from an empty object.

        Raises:
            MemoryNodeError: INVALID_INPUT for a preference whose `content.text` cannot be embedded;
                WRITE_UNCONFIRMED when Qdrant did not say that it is done: a part may have been written.
        """
        self._points.check(call)
        drafts = request.memories
        refuse_repeated(drafts)
        ids = [str(uuid.uuid4()) if draft.key is None else stable_id(draft.key) for draft in drafts]
        records = [created(id, draft) for id, draft in zip(ids, drafts, strict=True)]
        keyed = {id: draft for id, draft in zip(ids, drafts, strict=True) if draft.key is not None}
        with self._points.alone(call):
            kept = {id: checked_reuse(row, keyed[id]) for id, row in self._rows(list(keyed), call).items()}
            fresh = [record for record in records if record.id not in kept]
            self._upsert(fresh, models.UpdateMode.INSERT_ONLY, call)
            for id, row in self._rows([record.id for record in fresh if record.id in keyed], call).items():
                checked_reuse(row, keyed[id])  # another writer of a server may have been faster
        return [kept.get(record.id, record) for record in records]

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Change the records, and embed them anew; raises as `write` does."""
        self._points.check(call)
        patches = request.memories
        with self._points.alone(call):
            rows = self._rows([patch.id for patch in patches], call)
            for patch in patches:
                if patch.id not in rows:
                    raise MemoryNodeError("NOT_FOUND", f"there is no record {patch.id!r:.80}")
            records = [item(patched(rows[patch.id], patch)) for patch in patches]
            self._upsert(records, models.UpdateMode.UPDATE_ONLY, call)
        return records

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        """Remove the records and return the ids that were there, in the order asked."""
        self._points.check(call)
        ids = list(dict.fromkeys(request.ids))
        with self._points.alone(call):
            rows = self._rows(ids, call)
            deleted = [id for id in ids if id in rows]
            self._points.remove(deleted, call)
        return trusted(MemoryDeleteOutput, {"deleted": tuple(deleted)})

    def _rows(self, ids: Sequence[str], call: Call) -> dict[str, Row]:
        """Read the records with these ids; those that no record can have are as good as missing."""
        points = self._points.retrieve([id for id in ids if is_point_id(id)], call)
        return {id: _row(point) for id, point in points.items()}

    def _upsert(self, records: Sequence[MemoryItem], mode: models.UpdateMode, call: Call) -> None:
        """Put the records: with INSERT_ONLY those that are new, with UPDATE_ONLY those still there."""
        texts = {record.id: _text(record) for record in records if _is_embedded(record)}
        vectors: dict[str, list[float]] = {}
        if self._embedding is not None:
            embedded = self._embedding.vectors(list(texts.values()), "document", call)
            vectors = dict(zip(texts, embedded, strict=True))
        elif texts and self._points.holds_vectors:
            raise MemoryNodeError(
                "SEARCH_UNAVAILABLE",
                f"a record of the kind {EMBEDDED_KIND!r} would not be found: this collection has vectors, "
                "and the store was opened without an embedding",
            )
        points = [
            self._points.point(record.id, payload_of(record), vectors.get(record.id)) for record in records
        ]
        self._points.put(points, call, mode)


def open_qdrant(rest: str) -> QdrantStore:
    """Open the store of `qdrant://HOST:PORT[/COLLECTION]` or `qdrant:///PATH`, without an embedding."""
    location, collection = location_of("qdrant", rest)
    return QdrantStore(location, collection=collection or COLLECTION)


def _manifest(embedding: TextEmbedding | None) -> dict[str, Any] | None:
    if embedding is None:
        return None
    return {
        "identity": embedding.identity,
        "dimensions": embedding.dimensions,
        "preprocessing": PREPROCESSING,
        "distance": models.Distance.COSINE.value,
    }


def _row(point: Point) -> Row:
    """Make the row of a point.

    Raises:
        MemoryNodeError: INVALID_BACKEND_OUTPUT when the point is none of this store's.
    """
    try:
        record = record_of(point.payload)
    except ValueError as error:
        raise _foreign() from error
    if record.id != point.id:
        raise _foreign()
    return Row(record.id, record.key, json_text(record.content), metadata_text(record.metadata))


def _is_embedded(record: MemoryItem) -> bool:
    return record.metadata is not None and record.metadata.get("kind") == EMBEDDED_KIND


def _text(record: MemoryItem) -> str:
    """Return the text of a preference.

    Raises:
        MemoryNodeError: INVALID_INPUT when there is none, or too much of it.
    """
    text = record.content.get("text") if isinstance(record.content, dict) else None
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_TEXT:
        raise _invalid(
            f"content.text: a record of the kind {EMBEDDED_KIND!r} needs a text, not blank, of at most "
            f"{MAX_TEXT} characters"
        )
    return text


def _checked_query(request: MemorySearchInput) -> str:
    if request.strategy not in (None, "vector"):
        raise _invalid(f"strategy: {request.strategy!r:.80} is unknown: this store has 'vector'")
    if request.options:
        raise _invalid("options: this store has none: leave them out")
    if not isinstance(request.query, str) or not request.query.strip():
        raise _invalid(f"query: must be a string that is not blank, not {request.query!r:.80}")
    return request.query


def _foreign() -> MemoryNodeError:
    return MemoryNodeError("INVALID_BACKEND_OUTPUT", "Qdrant holds a point that is no record of this store")


def _invalid(message: str) -> MemoryNodeError:
    return MemoryNodeError("INVALID_INPUT", message)
