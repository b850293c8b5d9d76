"""An index in a Qdrant collection, over Qdrant's client: a server, or a directory of this process alone.

A batch is checked before any of it is written. Qdrant has no transactions: a failure half-way through more
than 256 entries leaves a part of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Self, cast

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError
from ditto_tasks.contracts.index import IndexEntry, IndexHit, IndexManifest
from ditto_tasks.contracts.memory import MemoryItem
from providers.indexes._manifest import check_definition
from providers.indexes._records import index_filter
from providers.indexes._vectors import checked_entries, unit_vector
from providers.stores._failures import INDEX
from providers.stores._locations import location_of
from providers.stores._qdrant_collection import Point, QdrantCollection
from providers.stores._qdrant_driver import models
from providers.stores._qdrant_points import (
    MANIFEST_ID,
    first_id_after,
    is_point_id,
    matching,
    matching_vectors,
    payload_of,
    record_of,
)
from providers.stores._stable_id import stable_id

__all__ = ["QdrantIndex", "open_qdrant"]

VECTOR = "record"
SCORE_DIGITS = 6  # of a float32; products of equal vectors differ beyond them
MORE = 4  # times as many points are asked for again when those of the last score may go on
PAGE = 1_000  # points a request when many are listed

_NAMED = "named"  # in the payload of a record whose id is no UUID: its point's id is made of it
_ALL_NAMED = models.Filter(must=[models.FieldCondition(key=_NAMED, match=models.MatchValue(value=True))])
_NOT_NAMED = models.Filter(must_not=[_ALL_NAMED, models.HasIdCondition(has_id=[MANIFEST_ID])])
_LISTED = ["id", "digest"]  # what is read of a payload for a listing


class QdrantIndex:
    """Keeps entries as points whose payload is the whole record; safe to call from many threads.

    Args:
        location: `http://HOST:PORT` or `https://HOST:PORT` of a server, else the path of a directory.
        name: of the collection, made if missing.
        api_key: of the server.

    Raises:
        InvalidDefinition: no index can have this name or manifest.
        IndexMismatch: the collection was made with another manifest.
        StoreUnavailable: the server cannot be reached, or the directory not opened.
    """

    def __init__(
        self, location: str, name: str, manifest: IndexManifest, *, api_key: str | None = None
    ) -> None:
        check_definition(name, manifest)
        self._manifest = manifest
        self._dropped = False
        self._points = QdrantCollection(
            location, name, INDEX, vector=VECTOR, manifest=asdict(manifest), api_key=api_key
        )

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
        """Close the client of this process and refuse further calls; closing twice does nothing."""
        self._points.close()

    def drop(self, call: Call = NO_CALL) -> None:
        """Drop the collection and close; dropping twice does nothing."""
        if self._dropped:
            return
        self._points.check(call)
        with self._points.alone(call):
            self._points.drop(call)
        self._dropped = True
        self.close()

    def upsert(self, entries: Sequence[IndexEntry], call: Call = NO_CALL) -> None:
        """Put the entries in the place of those with the same ids."""
        self._points.check(call)
        points = [
            self._points.point(_point_id(entry.record.id), _payload(entry), vector.tolist())
            for entry, vector in checked_entries(entries, self._manifest.dimensions)
        ]
        with self._points.alone(call):
            self._points.put(points, call)

    def delete(self, ids: Sequence[str], call: Call = NO_CALL) -> Sequence[str]:
        """Remove the records and return the ids that were there, in the order asked."""
        self._points.check(call)
        wanted = {_point_id(id): id for id in ids}
        with self._points.alone(call):
            there = self._points.retrieve(list(wanted), call, payload=False)
            deleted = [point_id for point_id in wanted if point_id in there]
            self._points.remove(deleted, call)
        return [wanted[point_id] for point_id in deleted]

    def search(
        self,
        vector: Sequence[float],
        *,
        limit: int,
        filter: Mapping[str, Any] | None = None,
        call: Call = NO_CALL,
    ) -> Sequence[IndexHit]:
        """Return the nearest records, nearest first, ties by id."""
        self._points.check(call)
        condition = matching_vectors(index_filter(filter))
        query = unit_vector(vector, self._manifest.dimensions).tolist()
        asked = limit + 1  # one beyond the limit tells whether the last score ends there, as it mostly does
        while True:
            points = self._points.nearest(query, condition, call, limit=asked)
            hits = [IndexHit(_record(point), _score(point)) for point in points]
            if len(hits) < asked or hits[-1].score < hits[limit - 1].score:
                break
            asked *= MORE
        return sorted(hits, key=lambda hit: (-hit.score, hit.record.id))[:limit]

    def digests(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, str]:
        """Return the digest of each of these records that is there."""
        self._points.check(call)
        points = self._points.retrieve([_point_id(id) for id in ids], call, payload=_LISTED)
        return dict(map(_pair, points.values()))

    def vectors(self, ids: Sequence[str], call: Call = NO_CALL) -> Mapping[str, Sequence[float]]:
        """Return the vector of each of these records that is there."""
        self._points.check(call)
        wanted = [_point_id(id) for id in ids]
        points = self._points.retrieve(wanted, call, payload=["id"], vectors=[VECTOR])
        return {_pair_id(point): _vector(point) for point in points.values()}

    def page(self, after: str | None, *, limit: int, call: Call = NO_CALL) -> Sequence[tuple[str, str]]:
        """Return ids with digests in the order of ids.

        Records whose ids are no UUIDs are all read for every page.
        """
        self._points.check(call)
        listed = [pair for pair in self._all_named(call) if after is None or pair[0] > after]
        start = first_id_after(after or "")
        if start is not None:
            points = self._points.scroll(_NOT_NAMED, call, limit=limit, start=start, payload=_LISTED)
            listed += map(_pair, points)
        return sorted(listed)[:limit]

    def count(self, call: Call = NO_CALL) -> int:
        """Count the records."""
        self._points.check(call)
        return self._points.count(matching({}), call)

    def _all_named(self, call: Call) -> list[tuple[str, str]]:
        named: list[tuple[str, str]] = []
        start = first_id_after("")
        while start is not None:
            points = self._points.scroll(_ALL_NAMED, call, limit=PAGE, start=start, payload=_LISTED)
            named += map(_pair, points)
            start = first_id_after(str(points[-1].id)) if len(points) == PAGE else None
        return named


def open_qdrant(rest: str, *, name: str, manifest: IndexManifest) -> QdrantIndex:
    """Open the index of `qdrant://HOST:PORT` or `qdrant:///PATH`."""
    location, collection = location_of("qdrant", rest)
    if collection:
        raise InvalidDefinition(f"an index's collection is called as the index: leave /{collection:.80} out")
    return QdrantIndex(location, name, manifest)


def _point_id(id: str) -> str:
    return id if is_point_id(id) else stable_id(id)


def _payload(entry: IndexEntry) -> dict[str, Any]:
    payload = {**payload_of(entry.record), "digest": entry.digest}
    return payload if is_point_id(entry.record.id) else {**payload, _NAMED: True}


def _pair(point: Point) -> tuple[str, str]:
    payload = point.payload or {}
    return payload["id"], payload["digest"]


def _pair_id(point: Point) -> str:
    return str((point.payload or {})["id"])


def _vector(point: models.Record) -> Sequence[float]:
    vectors = point.vector if isinstance(point.vector, dict) else {}
    return cast("Sequence[float]", vectors.get(VECTOR, ()))


def _record(point: Point) -> MemoryItem:
    try:
        return record_of(point.payload)
    except ValueError as error:
        raise RetrievalError(
            "RETRIEVAL_INVALID_BACKEND_OUTPUT", "Qdrant holds a point without a record"
        ) from error


def _score(point: models.ScoredPoint) -> float:
    """Return the cosine, without what float32 adds to it."""
    return min(1.0, max(-1.0, round(point.score, SCORE_DIGITS)))
