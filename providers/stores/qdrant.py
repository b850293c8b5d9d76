"""A store in a Qdrant collection, over Qdrant's client: a server, or a directory of this process alone.

Qdrant has no transactions. A batch is checked before any of it is written; what other writers do in between,
or a failure half-way, can leave a part of it. Every change is confirmed by the server before it is answered.
"""

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from qdrant_client import QdrantClient, models

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError, NodeError, StoreUnavailable
from ditto_tasks.contracts.index import IndexMismatch
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
from providers.stores._embedding import text_embedding
from providers.stores._failures import STORE
from providers.stores._paging import BY_ID, Paging, checked_filter
from providers.stores._qdrant_connections import QdrantConnection, location_of, seconds
from providers.stores._qdrant_points import (
    MANIFEST_ID,
    first_id_after,
    is_point_id,
    matching,
    payload_of,
    record_of,
    stable_id,
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
    trusted,
)

__all__ = ["QdrantStats", "QdrantStore", "open_qdrant"]

COLLECTION = "memories"
VECTOR = "text"
EMBEDDED_KIND = "preference"  # records of other kinds are kept without a vector
PREPROCESSING = "preference.content.text/v1"
MAX_TEXT = 8_000  # characters of a text that is embedded
MAX_RECORDS = 10_000  # of one GET
CHUNK = 256  # points a request; after each the call may stop

_NAME = re.compile(r"[a-z][a-z0-9_]{0,100}\Z")
_STRONG = models.WriteOrdering.STRONG
_MAJORITY = models.ReadConsistencyType.MAJORITY

T = TypeVar("T")


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
        embedding: of preferences and queries; without one, records are kept and read, but not searched.
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
        self._collection = collection
        self._vector_queries = 0
        self._connection = QdrantConnection(location, STORE, api_key=api_key)
        try:
            self._open()
        except NodeError as error:
            self._connection.close()
            raise StoreUnavailable(
                f"Qdrant collection {collection} at {location}: {error.message}"
            ) from error
        except BaseException:
            self._connection.close()
            raise

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
        self._connection.close()

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Return the records with these ids or keys.

        Raises:
            MemoryNodeError: RESULT_LIMIT when more than 10,000 are asked for.
        """
        self._connection.check(call)
        ids = dict.fromkeys([*(request.ids or ()), *map(stable_id, request.keys or ())])
        if len(ids) > MAX_RECORDS:
            raise MemoryNodeError(
                "RESULT_LIMIT", f"{len(ids)} records at once are too many: ask for {MAX_RECORDS} at most"
            )
        return [item(row) for row in self._rows(list(ids), call).values()]

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        """Return one page in the order of ids, the only one there is."""
        self._connection.check(call)
        paging = Paging.of(request)
        if paging.fields != BY_ID:
            raise _invalid("orderBy: this store lists by id, ascending, only")
        limit = request.limit or DEFAULT_QUERY_LIMIT
        offset = None
        if paging.after is not None:
            offset = first_id_after(str(paging.after[0]))
            if offset is None:
                return trusted(MemoryQueryOutput, {"items": ()})
        points, _ = self._connection.run(
            lambda client: client.scroll(
                self._collection,
                scroll_filter=matching(paging.filter),
                limit=limit + 1,
                offset=offset,
                consistency=_MAJORITY,
                timeout=seconds(call),
            ),
            call,
        )
        items = tuple(item(_row(point)) for point in points[:limit])
        if len(points) <= limit:
            return trusted(MemoryQueryOutput, {"items": items})
        return trusted(MemoryQueryOutput, {"items": items, "next_cursor": paging.cursor([items[-1].id])})

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Sequence[MemoryHit]:
        """Return the preferences nearest to a query in words, nearest first, scored by their cosine.

        Raises:
            MemoryNodeError: SEARCH_UNAVAILABLE when the store was opened without an embedding.
        """
        self._connection.check(call)
        query = _checked_query(request)
        condition = matching(checked_filter(request.filter))
        if self._embedding is None:
            raise MemoryNodeError(
                "SEARCH_UNAVAILABLE",
                "this store was opened without an embedding: give QdrantStore one to search by vectors",
            )
        [vector] = self._embedding.vectors([query], "query", call)
        found = self._connection.run(
            lambda client: client.query_points(
                self._collection,
                query=vector,
                using=VECTOR,
                query_filter=condition,
                limit=request.limit or DEFAULT_SEARCH_LIMIT,
                consistency=_MAJORITY,
                timeout=seconds(call),
            ),
            call,
        )
        self._vector_queries += 1
        return [
            trusted(MemoryHit, {"memory": item(_row(point)), "score": point.score}) for point in found.points
        ]

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Create the records; absent metadata differs from an empty object.

        Raises:
            MemoryNodeError: INVALID_INPUT for a preference whose `content.text` cannot be embedded;
                WRITE_UNCONFIRMED when Qdrant did not say that it is done: a part may have been written.
        """
        self._connection.check(call)
        drafts = request.memories
        refuse_repeated(drafts)
        ids = [str(uuid.uuid4()) if draft.key is None else stable_id(draft.key) for draft in drafts]
        records = [created(id, draft) for id, draft in zip(ids, drafts, strict=True)]
        keyed = {id: draft for id, draft in zip(ids, drafts, strict=True) if draft.key is not None}
        with self._connection.alone(call):
            kept = {id: checked_reuse(row, keyed[id]) for id, row in self._rows(list(keyed), call).items()}
            fresh = [record for record in records if record.id not in kept]
            self._upsert(fresh, models.UpdateMode.INSERT_ONLY, call)
            for id, row in self._rows([record.id for record in fresh if record.id in keyed], call).items():
                checked_reuse(row, keyed[id])  # another writer of a server may have been faster
        return [kept.get(record.id, record) for record in records]

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Change the records, and embed them anew; raises as `write` does."""
        self._connection.check(call)
        patches = request.memories
        with self._connection.alone(call):
            rows = self._rows([patch.id for patch in patches], call)
            for patch in patches:
                if patch.id not in rows:
                    raise MemoryNodeError("NOT_FOUND", f"there is no record {patch.id!r:.80}")
            records = [item(patched(rows[patch.id], patch)) for patch in patches]
            self._upsert(records, models.UpdateMode.UPDATE_ONLY, call)
        return records

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        """Remove the records and return the ids that were there, in the order asked."""
        self._connection.check(call)
        ids = list(dict.fromkeys(request.ids))
        with self._connection.alone(call):
            rows = self._rows(ids, call)
            deleted = [id for id in ids if id in rows]
            for chunk in _chunks(deleted):
                self._change(partial(self._remove, chunk, call), call)
        return trusted(MemoryDeleteOutput, {"deleted": tuple(deleted)})

    def _open(self) -> None:
        """Make the collection and its manifest if they are missing; hold both against the embedding."""
        run = self._connection.run
        if not run(lambda client: client.collection_exists(self._collection), NO_CALL):
            self._create()
        if self._embedding is None:
            return
        size = run(lambda client: _size(client, self._collection), NO_CALL)
        if size != self._embedding.dimensions:
            raise IndexMismatch(
                f"Qdrant collection {self._collection} holds vectors of {size} dimensions, not of "
                f"{self._embedding.dimensions} as the embedding makes: name another collection"
            )
        kept = run(lambda client: client.retrieve(self._collection, [MANIFEST_ID]), NO_CALL)
        manifest = _manifest(self._embedding.identity, self._embedding.dimensions)
        if not kept:
            self._write_manifest(manifest)
        elif kept[0].payload != manifest:
            raise IndexMismatch(
                f"Qdrant collection {self._collection} was made with {kept[0].payload}, and is to be opened "
                f"with {manifest}: the embedding model or the preprocessing changed: name another collection"
            )

    def _create(self) -> None:
        size = None if self._embedding is None else self._embedding.dimensions
        vectors = (
            {} if size is None else {VECTOR: models.VectorParams(size=size, distance=models.Distance.COSINE)}
        )
        run = self._connection.run
        run(lambda client: client.create_collection(self._collection, vectors_config=vectors), NO_CALL)
        if not self._connection.is_embedded:
            for field in ("key", "metadata.namespace", "metadata.kind"):
                run(partial(_index, collection=self._collection, field=field), NO_CALL)

    def _write_manifest(self, manifest: dict[str, Any]) -> None:
        run = self._connection.run
        if run(lambda client: client.count(self._collection).count, NO_CALL):
            raise IndexMismatch(
                f"Qdrant collection {self._collection} has records and does not say what embedded them: "
                "name another collection"
            )
        point = models.PointStruct(id=MANIFEST_ID, vector={}, payload=manifest)
        self._change(partial(self._put, [point], models.UpdateMode.INSERT_ONLY, NO_CALL), NO_CALL)

    def _rows(self, ids: Sequence[str], call: Call) -> dict[str, Row]:
        """Read the records with these ids; those that no record can have are as good as missing."""
        rows: dict[str, Row] = {}
        for chunk in _chunks([id for id in ids if is_point_id(id)]):
            points = self._connection.run(partial(self._retrieve, chunk, call), call)
            rows.update((str(point.id), _row(point)) for point in points)
        return rows

    def _upsert(self, records: Sequence[MemoryItem], mode: models.UpdateMode, call: Call) -> None:
        """Put the records: with INSERT_ONLY those that are new, with UPDATE_ONLY those still there."""
        points = self._points(records, call)
        for chunk in _chunks(points):
            self._change(partial(self._put, chunk, mode, call), call)

    def _points(self, records: Sequence[MemoryItem], call: Call) -> list[models.PointStruct]:
        texts = {record.id: _text(record) for record in records if _is_embedded(record)}
        vectors: dict[str, list[float]] = {}
        if self._embedding is not None:
            embedded = self._embedding.vectors(list(texts.values()), "document", call)
            vectors = dict(zip(texts, embedded, strict=True))
        return [
            models.PointStruct(
                id=record.id,
                vector={VECTOR: vectors[record.id]} if record.id in vectors else {},
                payload=payload_of(record),
            )
            for record in records
        ]

    def _change(self, work: Callable[[QdrantClient], models.UpdateResult], call: Call) -> None:
        if self._connection.run(work, call).status != models.UpdateStatus.COMPLETED:
            raise MemoryNodeError("WRITE_UNCONFIRMED", "Qdrant did not confirm the change")

    def _put(
        self, points: list[models.PointStruct], mode: models.UpdateMode, call: Call, client: QdrantClient
    ) -> models.UpdateResult:
        return client.upsert(
            self._collection, points, wait=True, ordering=_STRONG, update_mode=mode, timeout=seconds(call)
        )

    def _remove(self, ids: list[str], call: Call, client: QdrantClient) -> models.UpdateResult:
        selector = models.PointIdsList(points=list(ids))
        return client.delete(self._collection, selector, wait=True, ordering=_STRONG, timeout=seconds(call))

    def _retrieve(self, ids: list[str], call: Call, client: QdrantClient) -> list[models.Record]:
        return client.retrieve(self._collection, ids, consistency=_MAJORITY, timeout=seconds(call))


def open_qdrant(rest: str) -> QdrantStore:
    """Open the store of `qdrant://HOST:PORT[/COLLECTION]` or `qdrant:///PATH`, without an embedding."""
    location, collection = location_of("qdrant", rest)
    return QdrantStore(location, collection=collection or COLLECTION)


def _manifest(identity: str, dimensions: int) -> dict[str, Any]:
    return {
        "identity": identity,
        "dimensions": dimensions,
        "preprocessing": PREPROCESSING,
        "distance": models.Distance.COSINE.value,
    }


def _size(client: QdrantClient, collection: str) -> int | None:
    """Return the length of the collection's vectors, None when it has no cosine vectors of our name."""
    vectors = client.get_collection(collection).config.params.vectors
    found = vectors.get(VECTOR) if isinstance(vectors, dict) else None
    return found.size if found is not None and found.distance == models.Distance.COSINE else None


def _index(client: QdrantClient, *, collection: str, field: str) -> None:
    client.create_payload_index(collection, field, models.PayloadSchemaType.KEYWORD, wait=True)


def _row(point: models.Record | models.ScoredPoint) -> Row:
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
            f"content.text: a record of the kind {EMBEDDED_KIND!r} needs a text that is not blank, of at most "
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


def _chunks(values: Sequence[T]) -> Iterator[list[T]]:
    for start in range(0, len(values), CHUNK):
        yield list(values[start : start + CHUNK])


def _foreign() -> MemoryNodeError:
    return MemoryNodeError("INVALID_BACKEND_OUTPUT", "Qdrant holds a point that is no record of this store")


def _invalid(message: str) -> MemoryNodeError:
    return MemoryNodeError("INVALID_INPUT", message)
