"""A store in a Milvus collection, over Milvus's client: a server, or Milvus Lite on a file of one process.

Milvus has no transactions and no conditional writes. A batch is checked before any of it is written; a
failure half-way can leave a part of it. Writers of one process wait for each other; of two processes that
write one key at the same moment, the later wins.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ditto_tasks.contracts.base import trusted
from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError
from ditto_tasks.contracts.json_value import decode_json
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
from providers.stores._milvus_collection import MAX_BYTES, Fields, MilvusCollection, filter_digests, within
from providers.stores._paging import BY_ID, Paging, checked_filter
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
from providers.stores._stable_id import is_record_id, stable_id
from providers.text import search_text, words

__all__ = ["MilvusStore", "open_milvus"]

COLLECTION = "memories"
PREPROCESSING = "content/v1"
MAX_TEXT = 8_000  # characters of a content's text that are embedded
MAX_KEY_BYTES = 255
MAX_RECORDS = 10_000  # of one GET

_NAME = re.compile(r"[a-z][a-z0-9_]{0,100}\Z")


class MilvusStore:
    """Keeps records as rows of JSON text, found by BM25 over their words, and by vectors with an embedding.

    A record with a key has an id that follows from it, in every collection the same. A key has at most 255
    bytes, a record's JSON at most 65,535. Records that hold words are embedded, by the first 8,000 characters
    of their texts and numbers.

    Args:
        location: `http://HOST:PORT` or `https://HOST:PORT` of a server, else the path of a file, `.db` at
            its end.
        collection: made if missing: a lower-case letter, then at most 100 of letters, digits and '_'.
        embedding: of records and queries; without one, searches are by keyword only.
        identity: of the embedding, as `IdentifiedEmbedding.identity`; its own, if it has one.
        dimensions: of the embedding's vectors; its own, if it has them.
        token: of the server: `USER:PASSWORD` or a key.

    Raises:
        InvalidDefinition: the collection's name or what describes the embedding is not in its form.
        IndexMismatch: the collection was made with another embedding, or without one.
        StoreUnavailable: the server cannot be reached, or the file not opened.
    """

    def __init__(
        self,
        location: str,
        *,
        collection: str = COLLECTION,
        embedding: EmbeddingProvider | None = None,
        identity: str | None = None,
        dimensions: int | None = None,
        token: str = "",
    ) -> None:
        if not _NAME.match(collection):
            raise InvalidDefinition(
                f"Milvus collection {collection!r:.80}: use a lower-case letter, then up to 100 of letters, "
                "digits and '_'"
            )
        self._embedding = text_embedding(embedding, identity, dimensions)
        fields = Fields(
            texts=("memory_key",),
            dimensions=None if self._embedding is None else self._embedding.dimensions,
            words=True,
        )
        manifest = _manifest(self._embedding)
        self._rows = MilvusCollection(location, collection, STORE, fields, manifest=manifest, token=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client and refuse further calls; closing twice does nothing."""
        self._rows.close()

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Return the records with these ids or keys.

        Raises:
            MemoryNodeError: RESULT_LIMIT when more than 10,000 are asked for.
        """
        self._rows.check(call)
        ids = dict.fromkeys([*(request.ids or ()), *map(stable_id, request.keys or ())])
        if len(ids) > MAX_RECORDS:
            raise MemoryNodeError(
                "RESULT_LIMIT", f"{len(ids)} records at once are too many: ask for {MAX_RECORDS} at most"
            )
        return list(self._records(list(ids), call).values())

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        """Return one page in the order of ids, the only one there is."""
        self._rows.check(call)
        paging = Paging.of(request)
        if paging.fields != BY_ID:
            raise _invalid("orderBy: this store lists by id, ascending, only")
        limit = request.limit or DEFAULT_QUERY_LIMIT
        after = str(paging.after[0]) if paging.after else None
        rows = self._rows.page(after, paging.filter, call, limit=limit + 1, fields=["payload"])
        items = tuple(map(_record, rows[:limit]))
        if len(rows) <= limit:
            return trusted(MemoryQueryOutput, {"items": items})
        return trusted(MemoryQueryOutput, {"items": items, "next_cursor": paging.cursor([items[-1].id])})

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Sequence[MemoryHit]:
        """Return the records nearest to a query, best first, ties by id.

        By keyword, those that hold one of its words, scored by BM25; none for a query without words. By
        vector, scored by their cosine.

        Raises:
            MemoryNodeError: SEARCH_UNAVAILABLE for vectors when the store was opened without an embedding.
        """
        self._rows.check(call)
        query = _checked_query(request)
        filter = checked_filter(request.filter)
        limit = request.limit or DEFAULT_SEARCH_LIMIT
        if request.strategy == "vector":
            return self._by_vector(query, filter, limit, call)
        return self._by_keyword(query, filter, limit, call)

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Create the records; absent metadata differs from an empty object.

        Raises:
            MemoryNodeError: INVALID_INPUT for a key or a record that is too large; WRITE_UNCONFIRMED when
                Milvus did not confirm all: a part may have been written.
        """
        self._rows.check(call)
        drafts = request.memories
        refuse_repeated(drafts)
        ids = [str(uuid.uuid4()) if draft.key is None else stable_id(draft.key) for draft in drafts]
        records = [created(id, draft) for id, draft in zip(ids, drafts, strict=True)]
        keyed = {id: draft for id, draft in zip(ids, drafts, strict=True) if draft.key is not None}
        with self._rows.alone(call):
            kept = {
                id: checked_reuse(_text_row(record), keyed[id])
                for id, record in self._records(list(keyed), call).items()
            }
            self._put([record for record in records if record.id not in kept], call)
        return [kept.get(record.id, record) for record in records]

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Change the records, and index them anew; raises as `write` does."""
        self._rows.check(call)
        patches = request.memories
        with self._rows.alone(call):
            kept = self._records([patch.id for patch in patches], call)
            for patch in patches:
                if patch.id not in kept:
                    raise MemoryNodeError("NOT_FOUND", f"there is no record {patch.id!r:.80}")
            records = [item(patched(_text_row(kept[patch.id]), patch)) for patch in patches]
            self._put(records, call)
        return records

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        """Remove the records and return the ids that were there, in the order asked."""
        self._rows.check(call)
        ids = list(dict.fromkeys(request.ids))
        with self._rows.alone(call):
            kept = self._records(ids, call)
            deleted = tuple(id for id in ids if id in kept)
            self._rows.remove(deleted, call)
        return trusted(MemoryDeleteOutput, {"deleted": deleted})

    def _records(self, ids: Sequence[str], call: Call) -> dict[str, MemoryItem]:
        """Read the records with these ids; those that no record can have are as good as missing."""
        rows = self._rows.rows([id for id in ids if is_record_id(id)], call, ["payload"])
        return {id: _record(row) for id, row in rows.items()}

    def _put(self, records: Sequence[MemoryItem], call: Call) -> None:
        texts = [search_text(record.content) for record in records]
        rows = [_row(record, text) for record, text in zip(records, texts, strict=True)]
        if self._embedding is not None:
            embedded = [place for place, text in enumerate(texts) if text.strip()]
            given = [texts[place][:MAX_TEXT] for place in embedded]
            vectors = dict(zip(embedded, self._embedding.vectors(given, "document", call), strict=True))
            zero = [0.0] * self._embedding.dimensions
            for place, row in enumerate(rows):
                row |= {"vector": vectors.get(place, zero), "has_vector": place in vectors}
        self._rows.put(rows, call)

    def _by_keyword(self, query: str, filter: Mapping[str, str], limit: int, call: Call) -> list[MemoryHit]:
        wanted = words(query)
        if not wanted:
            return []
        found = self._rows.nearest(
            within(" ".join(wanted)), "sparse", filter, call, limit=limit, fields=["payload"]
        )
        return _hits([(row, abs(score)) for row, score in found])  # Milvus Lite gives bm25 below zero

    def _by_vector(self, query: str, filter: Mapping[str, str], limit: int, call: Call) -> list[MemoryHit]:
        if self._embedding is None:
            raise MemoryNodeError(
                "SEARCH_UNAVAILABLE",
                "this store was opened without an embedding: give MilvusStore one, or search by keyword",
            )
        if not query.strip():
            raise _invalid("query: must not be blank to be embedded")
        [vector] = self._embedding.vectors([query], "query", call)
        found = self._rows.nearest(
            vector, "vector", filter, call, limit=limit, fields=["payload"], condition="has_vector == true"
        )
        return _hits(found)


def open_milvus(rest: str) -> MilvusStore:
    """Open the store of `milvus://HOST:PORT[/COLLECTION]` or `milvus:///PATH.db`, without an embedding."""
    location, collection = location_of("milvus", rest)
    return MilvusStore(location, collection=collection or COLLECTION)


def _manifest(embedding: TextEmbedding | None) -> dict[str, Any]:
    return {
        "identity": None if embedding is None else embedding.identity,
        "dimensions": None if embedding is None else embedding.dimensions,
        "preprocessing": PREPROCESSING,
        "distance": "cosine",
    }


def _row(record: MemoryItem, text: str) -> dict[str, Any]:
    """Make the row of a record, but for its vector.

    Raises:
        MemoryNodeError: INVALID_INPUT when its key or its JSON is too large.
    """
    key, payload = record.key or "", json_text(record.to_wire())
    if len(key.encode()) > MAX_KEY_BYTES:
        raise _invalid(f"the key {key!r:.80} takes more than {MAX_KEY_BYTES} bytes")
    if len(payload.encode()) > MAX_BYTES:
        raise _invalid(f"a record takes more than {MAX_BYTES} bytes as JSON: split it, or use another store")
    metadata = record.metadata or {}
    filtered = {"key": record.key, "namespace": metadata.get("namespace"), "kind": metadata.get("kind")}
    digests = {field: value if isinstance(value, str) else None for field, value in filtered.items()}
    return {
        "id": record.id,
        "memory_key": key,
        "payload": payload,
        "words": within(" ".join(words(text))),
        **filter_digests(digests),
    }


def _record(row: Mapping[str, Any]) -> MemoryItem:
    """Read the record of a row; it was checked when it was written, so it is not checked again."""
    return trusted(MemoryItem, decode_json(row["payload"]))


def _text_row(record: MemoryItem) -> Row:
    return Row(record.id, record.key, json_text(record.content), metadata_text(record.metadata))


def _hits(found: Sequence[tuple[Mapping[str, Any], float]]) -> list[MemoryHit]:
    hits = [trusted(MemoryHit, {"memory": _record(row), "score": score}) for row, score in found]
    return sorted(hits, key=lambda hit: (-(hit.score or 0), hit.memory.id))


def _checked_query(request: MemorySearchInput) -> str:
    if request.strategy not in (None, "keyword", "vector"):
        raise _invalid(
            f"strategy: {request.strategy!r:.80} is unknown: this store has 'keyword' and 'vector'"
        )
    if request.options:
        raise _invalid("options: this store has none: leave them out")
    if not isinstance(request.query, str):
        raise _invalid(f"query: must be a string, not {request.query!r:.80}")
    return request.query


def _invalid(message: str) -> MemoryNodeError:
    return MemoryNodeError("INVALID_INPUT", message)
