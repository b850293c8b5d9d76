"""An index in a Milvus collection, over Milvus's client: a server, or Milvus Lite on a file of one process.

A batch is checked before any of it is written. Milvus has no transactions: a failure half-way through more
than 500 entries leaves a part of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError
from ditto_tasks.contracts.index import IndexEntry, IndexHit, IndexManifest
from providers.indexes._manifest import check_definition
from providers.indexes._records import filter_values, index_filter, read_record, record_text
from providers.indexes._vectors import Vector, checked_entries, unit_vector
from providers.stores._failures import INDEX
from providers.stores._locations import location_of
from providers.stores._milvus_collection import (
    MAX_BYTES,
    MAX_HITS,
    Fields,
    MilvusCollection,
    Row,
    filter_digests,
)

__all__ = ["MilvusIndex", "open_milvus"]

SCORE_DIGITS = 6  # of a float32; products of equal vectors differ beyond them
MORE = 4  # times as many hits are asked for again when those of the last score may go on


class MilvusIndex:
    """Keeps entries as rows whose payload is the whole record; safe to call from many threads.

    A record's JSON, its digest, and its id in hexadecimal have at most 65,535 bytes each.

    Args:
        location: `http://HOST:PORT` or `https://HOST:PORT` of a server, else the path of a file, `.db` at
            its end.
        name: of the collection, made if missing.
        token: of the server.

    Raises:
        InvalidDefinition: no index can have this name or manifest.
        IndexMismatch: the collection was made with another manifest.
        StoreUnavailable: the server cannot be reached, or the file not opened.
    """

    def __init__(self, location: str, name: str, manifest: IndexManifest, *, token: str = "") -> None:
        check_definition(name, manifest)
        self._manifest = manifest
        self._dropped = False
        fields = Fields(texts=("digest",), dimensions=manifest.dimensions)
        self._rows = MilvusCollection(location, name, INDEX, fields, manifest=asdict(manifest), token=token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def manifest(self) -> IndexManifest:
        """What made the vectors."""
        return self._manifest

    def close(self) -> None:
        """Close the client and refuse further calls; closing twice does nothing."""
        self._rows.close()

    def drop(self, call: Call = NO_CALL) -> None:
        """Drop the collection and close; dropping twice does nothing."""
        if self._dropped:
            return
        self._rows.check(call)
        with self._rows.alone(call):
            self._rows.drop(call)
        self._dropped = True
        self.close()

    def upsert(self, entries: Sequence[IndexEntry], call: Call = NO_CALL) -> None:
        """Put the entries in the place of those with the same ids.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a record that is too large, too.
        """
        self._rows.check(call)
        rows = [_row(entry, vector) for entry, vector in checked_entries(entries, self._manifest.dimensions)]
        with self._rows.alone(call):
            self._rows.put(rows, call)

    def delete(self, ids: Sequence[str], call: Call = NO_CALL) -> Sequence[str]:
        """Remove the records and return the ids that were there, in the order asked."""
        self._rows.check(call)
        wanted = {_row_id(id): id for id in ids}
        with self._rows.alone(call):
            there = self._rows.rows(list(wanted), call, ["id"])
            deleted = [row_id for row_id in wanted if row_id in there]
            self._rows.remove(deleted, call)
        return [wanted[row_id] for row_id in deleted]

    def search(
        self,
        vector: Sequence[float],
        *,
        limit: int,
        filter: Mapping[str, Any] | None = None,
        call: Call = NO_CALL,
    ) -> Sequence[IndexHit]:
        """Return the nearest records, nearest first, ties by id."""
        self._rows.check(call)
        wanted = index_filter(filter)
        query = unit_vector(vector, self._manifest.dimensions).tolist()
        asked = limit + 1  # one beyond the limit tells whether the last score ends there, as it mostly does
        while True:
            found = self._rows.nearest(query, "vector", wanted, call, limit=asked, fields=["payload"])
            scores = [_score(score) for _, score in found]
            if len(found) < asked or asked >= MAX_HITS or scores[-1] < scores[limit - 1]:
                break
            asked *= MORE
        hits = [
            IndexHit(read_record(row["payload"]), score)
            for (row, _), score in zip(found, scores, strict=True)
        ]
        return sorted(hits, key=lambda hit: (-hit.score, hit.record.id))[:limit]

    def digests(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, str]:
        """Return the digest of each of these records that is there."""
        self._rows.check(call)
        rows = self._rows.rows([_row_id(id) for id in ids], call, ["digest"])
        return {_record_id(row_id): row["digest"] for row_id, row in rows.items()}

    def vectors(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, Sequence[float]]:
        """Return the vector of each of these records that is there."""
        self._rows.check(call)
        rows = self._rows.rows([_row_id(id) for id in ids], call, ["vector"])
        return {_record_id(row_id): row["vector"] for row_id, row in rows.items()}

    def page(self, after: str | None, *, limit: int, call: Call = NO_CALL) -> Sequence[tuple[str, str]]:
        """Return ids with digests in the order of ids."""
        self._rows.check(call)
        start = None if after is None else _row_id(after)
        rows = self._rows.page(start, {}, call, limit=limit, fields=["digest"])
        return [(_record_id(row["id"]), row["digest"]) for row in rows]

    def count(self, call: Call = NO_CALL) -> int:
        """Count the records."""
        self._rows.check(call)
        return self._rows.count(call)


def open_milvus(rest: str, *, name: str, manifest: IndexManifest) -> MilvusIndex:
    """Open the index of `milvus://HOST:PORT` or `milvus:///PATH.db`."""
    location, collection = location_of("milvus", rest)
    if collection:
        raise InvalidDefinition(f"an index's collection is called as the index: leave /{collection:.80} out")
    return MilvusIndex(location, name, manifest)


def _row(entry: IndexEntry, vector: Vector) -> Row:
    row: Row = {
        "id": _row_id(entry.record.id),
        "payload": record_text(entry.record),
        "digest": entry.digest,
        "vector": vector.tolist(),
        "has_vector": True,
        **filter_digests(filter_values(entry.record)),
    }
    for field in ("id", "payload", "digest"):
        if len(row[field].encode()) > MAX_BYTES:
            raise RetrievalError(
                "RETRIEVAL_INVALID_INPUT",
                f"record {entry.record.id!r:.80}: its {field} takes more than {MAX_BYTES} bytes",
            )
    return row


def _row_id(id: str) -> str:
    """Write an id in hexadecimal: of one alphabet, and in the same order."""
    return id.encode().hex()


def _record_id(row_id: str) -> str:
    return bytes.fromhex(row_id).decode()


def _score(cosine: float) -> float:
    """Return the cosine, without what float32 adds to it."""
    return min(1.0, max(-1.0, round(cosine, SCORE_DIGITS)))
