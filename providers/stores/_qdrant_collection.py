"""One collection of Qdrant, for a store or an index: made, asked and changed in bounded requests."""

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import NodeError, StoreUnavailable
from ditto_tasks.contracts.index import IndexMismatch
from providers.chunks import chunks
from providers.stores._failures import Failures
from providers.stores._manifests import index_manifest
from providers.stores._qdrant_connections import QdrantConnection, seconds
from providers.stores._qdrant_driver import QdrantClient, UnexpectedResponse, models
from providers.stores._qdrant_points import FILTER_PATHS, MANIFEST_ID

__all__ = ["Point", "QdrantCollection"]

CHUNK = 256  # points a request; after each the call may stop

NOT_FOUND = 404  # HTTP's

_STRONG = models.WriteOrdering.STRONG
_MAJORITY = models.ReadConsistencyType.MAJORITY

Point = models.Record | models.ScoredPoint

T = TypeVar("T")


class QdrantCollection:
    """A collection with one vector a point, compared by cosine, and a point that says what made the vectors.

    Args:
        location: as `QdrantConnection` takes it.
        name: of the collection, made if missing.
        vector: name of the vector.
        manifest: what makes the vectors, `dimensions` among it; None: points have none, and of a collection
            that is there any manifest is right.

    Attributes:
        holds_vectors: whether something says what makes the vectors of this collection.

    Raises:
        IndexMismatch: the collection was made with another manifest, or holds points and has none.
        StoreUnavailable: Qdrant cannot be reached, or the directory not opened.
    """

    def __init__(
        self,
        location: str,
        name: str,
        failures: Failures,
        *,
        vector: str,
        manifest: dict[str, Any] | None,
        api_key: str | None = None,
    ) -> None:
        self._name = name
        self._vector = vector
        self._failures = failures
        self._connection = QdrantConnection(location, failures, api_key=api_key)
        self.check = self._connection.check
        self.alone = self._connection.alone
        self.close = self._connection.close
        try:
            with self.alone(NO_CALL):
                self._open(manifest)
        except NodeError as error:
            self.close()
            raise StoreUnavailable(f"Qdrant collection {name} at {location}: {error.message}") from error
        except BaseException:
            self.close()
            raise

    def retrieve(
        self,
        ids: Sequence[str],
        call: Call,
        *,
        payload: bool | list[str] = True,
        vectors: bool | list[str] = False,
    ) -> dict[str, models.Record]:
        """Read the points with these ids, which must be UUIDs; what is missing is left out."""
        points: dict[str, models.Record] = {}
        for chunk in chunks(ids, CHUNK):
            found = self._run(
                lambda client, chunk=chunk: client.retrieve(  # type: ignore[misc]
                    self._name,
                    chunk,
                    with_payload=payload,
                    with_vectors=vectors,
                    consistency=_MAJORITY,
                    timeout=seconds(call),
                ),
                call,
            )
            points.update((str(point.id), point) for point in found)
        return points

    def scroll(
        self,
        condition: models.Filter,
        call: Call,
        *,
        limit: int,
        start: str | None,
        payload: bool | list[str] = True,
    ) -> list[models.Record]:
        """Read at most `limit` points in the order of ids, from the id `start` on."""
        points, _ = self._run(
            lambda client: client.scroll(
                self._name,
                scroll_filter=condition,
                limit=limit,
                offset=start,
                with_payload=payload,
                consistency=_MAJORITY,
                timeout=seconds(call),
            ),
            call,
        )
        return points

    def nearest(
        self, vector: list[float], condition: models.Filter | None, call: Call, *, limit: int
    ) -> list[models.ScoredPoint]:
        """Find the points nearest to a vector, nearest first; as many as there are, up to `limit`.

        A server's graph may miss some behind a narrow filter: when fewer come back than were asked for, they
        are few, and it is asked to compare all of them.
        """
        points = self._query(vector, condition, call, limit, None)
        if len(points) < limit and not self._connection.is_embedded:
            points = self._query(vector, condition, call, limit, models.SearchParams(exact=True))
        return points

    def count(self, condition: models.Filter, call: Call) -> int:
        """Count the points that meet a condition."""
        return self._run(
            lambda client: client.count(self._name, condition, exact=True, timeout=seconds(call)), call
        ).count

    def put(
        self,
        points: Sequence[models.PointStruct],
        call: Call,
        mode: models.UpdateMode = models.UpdateMode.UPSERT,
    ) -> None:
        """Write the points, and return once Qdrant has confirmed each part."""
        for chunk in chunks(points, CHUNK):
            self._change(
                lambda client, chunk=chunk: client.upsert(  # type: ignore[misc]
                    self._name, chunk, wait=True, ordering=_STRONG, update_mode=mode, timeout=seconds(call)
                ),
                call,
            )

    def remove(self, ids: Sequence[str], call: Call) -> None:
        """Remove the points with these ids, and return once Qdrant has confirmed each part."""
        for chunk in chunks(ids, CHUNK):
            self._change(
                lambda client, chunk=chunk: client.delete(  # type: ignore[misc]
                    self._name,
                    models.PointIdsList(points=chunk),
                    wait=True,
                    ordering=_STRONG,
                    timeout=seconds(call),
                ),
                call,
            )

    def drop(self, call: Call) -> None:
        """Remove the collection, if it is there, with all points."""
        self._run(lambda client: client.delete_collection(self._name, timeout=seconds(call)), call)

    def point(self, id: str, payload: dict[str, Any], vector: Sequence[float] | None) -> models.PointStruct:
        """Make a point of this collection; None: it has no vector."""
        named: dict[str, Any] = {} if vector is None else {self._vector: list(vector)}
        return models.PointStruct(id=id, vector=named, payload=payload)

    def _open(self, manifest: dict[str, Any] | None) -> None:
        if not self._exists():
            self._create(manifest)
        kept = self.retrieve([MANIFEST_ID], NO_CALL).get(MANIFEST_ID)
        self.holds_vectors = manifest is not None or kept is not None
        if manifest is None:
            return
        if kept is None:
            self._keep(manifest)
        elif kept.payload != manifest:
            raise IndexMismatch(
                f"Qdrant collection {self._name} was made with {kept.payload}, and is to be opened with "
                f"{manifest}: the embedding model or the preprocessing changed: name another collection",
                index_manifest(kept.payload),
            )

    def _exists(self) -> bool:
        return self._run(lambda client: client.collection_exists(self._name), NO_CALL)

    def _create(self, manifest: dict[str, Any] | None) -> None:
        vectors = {}
        if manifest is not None:
            distance = models.Distance.COSINE
            vectors = {self._vector: models.VectorParams(size=manifest["dimensions"], distance=distance)}
        try:
            self._run(lambda client: client.create_collection(self._name, vectors_config=vectors), NO_CALL)
        except NodeError:
            if not self._exists():  # or else somebody was faster
                raise
        if not self._connection.is_embedded:
            for path in FILTER_PATHS.values():
                self._run(
                    lambda client, path=path: client.create_payload_index(  # type: ignore[misc]
                        self._name, path, models.PayloadSchemaType.KEYWORD, wait=True
                    ),
                    NO_CALL,
                )

    def _keep(self, manifest: dict[str, Any]) -> None:
        """Write the manifest of a collection that has none, if it is empty and of the right vectors."""
        size = self._run(lambda client: _size(client, self._name, self._vector), NO_CALL)
        if size != manifest["dimensions"] or self.count(models.Filter(), NO_CALL):
            raise IndexMismatch(
                f"Qdrant collection {self._name} does not say what made its vectors of {size} dimensions, "
                f"and is to be opened with {manifest}: name another collection"
            )
        self.put([self.point(MANIFEST_ID, manifest, None)], NO_CALL)

    def _query(
        self,
        vector: list[float],
        condition: models.Filter | None,
        call: Call,
        limit: int,
        params: models.SearchParams | None,
    ) -> list[models.ScoredPoint]:
        return self._run(
            lambda client: client.query_points(
                self._name,
                query=_Nearest(nearest=vector),
                using=self._vector,
                query_filter=condition,
                search_params=params,
                limit=limit,
                consistency=_MAJORITY,
                timeout=seconds(call),
            ),
            call,
        ).points

    def _change(self, work: Callable[[QdrantClient], models.UpdateResult], call: Call) -> None:
        if self._run(work, call).status != models.UpdateStatus.COMPLETED:
            raise self._failures.is_refused("WRITE_UNCONFIRMED", "did not confirm the change")

    def _run(self, work: Callable[[QdrantClient], T], call: Call) -> T:
        return self._connection.run(lambda client: self._unless_gone(work, client), call)

    def _unless_gone(self, work: Callable[[QdrantClient], T], client: QdrantClient) -> T:
        """Do `work`; when it is refused, ask whether somebody dropped the collection."""
        try:
            return work(client)
        except UnexpectedResponse as error:
            if error.status_code != NOT_FOUND or client.collection_exists(self._name):
                raise
            raise self._failures.is_gone(self._name) from error
        except ValueError as error:  # the only refusal that a directory has
            if client.collection_exists(self._name):
                raise self._failures.is_refused("QDRANT_ERROR", "refused the request") from error
            raise self._failures.is_gone(self._name) from error


class _Nearest(models.NearestQuery):
    """A query of one request, which Qdrant's client without a server need not copy number by number."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self


def _size(client: QdrantClient, collection: str, vector: str) -> int | None:
    """Return the length of the collection's vectors, None when it has none of this name under cosine."""
    vectors = client.get_collection(collection).config.params.vectors
    found = vectors.get(vector) if isinstance(vectors, dict) else None
    return found.size if found is not None and found.distance == models.Distance.COSINE else None
