"""One collection of Milvus, for a store or an index: made, asked and changed in bounded requests.

No text of a caller is ever part of an expression, whose values Milvus Lite cannot bind: rows have ids of
hexadecimal digits and dashes, and what filters compare are digests.
"""

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import NodeError, StoreUnavailable
from ditto_tasks.contracts.index import IndexMismatch
from ditto_tasks.contracts.json_value import canonical_json, decode_json
from providers.chunks import chunks
from providers.stores._failures import Failures
from providers.stores._manifests import index_manifest
from providers.stores._milvus_connections import MilvusConnection
from providers.stores._milvus_driver import DataType, Function, FunctionType, MilvusClient, MilvusException
from providers.stores._waiting import held

__all__ = ["MAX_BYTES", "MAX_HITS", "Fields", "MilvusCollection", "Row", "filter_digests", "within"]

MAX_BYTES = 65_535  # of a text in a row
MAX_HITS = 16_384  # of one search
NOT_FOUND = 100  # Milvus's code of a collection that is not there
CHUNK = 500  # rows a request; after each the call may stop
MANIFEST_ID = "manifest"  # sorts behind all ids of rows
FILTERED = ("key", "namespace", "kind")

Row = dict[str, Any]

_locks: dict[tuple[str, str], threading.Lock] = {}  # of the writers to a collection

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fields:
    """What rows of a collection have beside id, payload and digests.

    Attributes:
        texts: names of further texts.
        dimensions: of the field `vector`, compared by cosine; None: there is none.
        words: whether texts in the field `words` are found by BM25.
    """

    texts: tuple[str, ...] = ()
    dimensions: int | None = None
    words: bool = False


class MilvusCollection:
    """A collection, read with strong consistency, and a row that says what made it.

    All comparing of vectors is exact: a graph may give fewer than asked for behind a filter.

    Args:
        location: as `MilvusConnection` takes it.
        name: of the collection, made if missing.
        manifest: what makes its vectors, as a JSON object; kept in a row.

    Raises:
        IndexMismatch: the collection was made with another manifest.
        StoreUnavailable: Milvus cannot be reached, or the file not opened.
    """

    def __init__(
        self,
        location: str,
        name: str,
        failures: Failures,
        fields: Fields,
        *,
        manifest: dict[str, Any],
        token: str = "",
    ) -> None:
        self._name = name
        self._fields = fields
        self._failures = failures
        self._connection = MilvusConnection(location, failures, token=token)
        self._writes = _locks.setdefault((location, name), threading.Lock())
        self.check = self._connection.check
        self.close = self._connection.close
        try:
            self._open(manifest)
        except NodeError as error:
            self.close()
            raise StoreUnavailable(f"Milvus collection {name} at {location}: {error.message}") from error
        except BaseException:
            self.close()
            raise

    def alone(self, call: Call) -> AbstractContextManager[None]:
        """Keep other writers of this process out; those of other processes are never kept out."""
        return held(self._writes, call)

    def rows(self, ids: Sequence[str], call: Call, fields: Sequence[str]) -> dict[str, Row]:
        """Read the rows with these ids; what is missing is left out."""
        found: dict[str, Row] = {}
        for chunk in chunks(ids, CHUNK):
            rows = self._query(f"id in [{', '.join(map(_quoted, chunk))}]", call, fields)
            found.update((row["id"], row) for row in rows)
        return found

    def page(
        self, after: str | None, digests: Mapping[str, str], call: Call, *, limit: int, fields: Sequence[str]
    ) -> list[Row]:
        """Read at most `limit` rows in the order of ids, those greater than `after`."""
        conditions = [*_conditions(digests), *([] if after is None else [f"id > {_quoted(after)}"])]

        def first(client: Any, seconds: float) -> list[Row]:
            rows = client.query_iterator(
                self._name,
                batch_size=limit,
                limit=limit,
                filter=" and ".join(conditions),
                output_fields=["id", *fields],
                timeout=seconds,
                consistency_level="Strong",
            )
            try:
                return list(rows.next())
            finally:
                rows.close()

        return self._run(first, call)

    def nearest(
        self,
        data: Any,
        field: str,
        digests: Mapping[str, str],
        call: Call,
        *,
        limit: int,
        fields: Sequence[str],
        condition: str = "",
    ) -> list[tuple[Row, float]]:
        """Find rows by a vector, or by words in the field `sparse`; best first, with what Milvus scores."""
        conditions = [*_conditions(digests), *([condition] if condition else [])]
        [hits] = self._run(
            lambda client, seconds: client.search(
                self._name,
                data=[data],
                anns_field=field,
                limit=min(limit, MAX_HITS),
                filter=" and ".join(conditions),
                output_fields=list(fields),
                timeout=seconds,
                consistency_level="Strong",
            ),
            call,
        )
        return [({"id": hit["id"], **hit["entity"]}, float(hit["distance"])) for hit in hits]

    def put(self, rows: Sequence[Row], call: Call) -> None:
        """Put the rows in the place of those with their ids; return once Milvus has confirmed each part."""
        for chunk in chunks(rows, CHUNK):
            answer = self._run(
                lambda client, seconds, chunk=chunk: client.upsert(self._name, chunk, timeout=seconds),  # type: ignore[misc]
                call,
            )
            if answer["upsert_count"] != len(chunk):
                raise self._failures.is_refused("WRITE_UNCONFIRMED", "did not confirm all of a change")

    def remove(self, ids: Sequence[str], call: Call) -> None:
        """Remove the rows with these ids."""
        for chunk in chunks(ids, CHUNK):
            self._run(
                lambda client, seconds, chunk=chunk: client.delete(self._name, ids=chunk, timeout=seconds),  # type: ignore[misc]
                call,
            )

    def drop(self, call: Call) -> None:
        """Remove the collection, if it is there, with all rows."""
        self._run(lambda client, seconds: client.drop_collection(self._name, timeout=seconds), call)

    def count(self, call: Call) -> int:
        """Count the rows."""
        [row] = self._query(" and ".join(_conditions({})), call, ["count(*)"])
        return int(row["count(*)"])

    def _query(self, expression: str, call: Call, fields: Sequence[str]) -> list[Row]:
        return self._run(
            lambda client, seconds: list(
                client.query(
                    self._name,
                    filter=expression,
                    output_fields=list(fields),
                    timeout=seconds,
                    consistency_level="Strong",
                )
            ),
            call,
        )

    def _run(self, work: Callable[[MilvusClient, float], T], call: Call) -> T:
        return self._connection.run(lambda client, seconds: self._unless_gone(work, client, seconds), call)

    def _unless_gone(
        self, work: Callable[[MilvusClient, float], T], client: MilvusClient, seconds: float
    ) -> T:
        """Do `work`; say so when somebody dropped the collection."""
        try:
            return work(client, seconds)
        except MilvusException as error:
            if error.code != NOT_FOUND:
                raise
            raise self._failures.is_gone(self._name) from error

    def _open(self, manifest: dict[str, Any]) -> None:
        """Make the collection if it is missing, and hold its manifest against the one given."""
        if not self._exists():
            try:
                self._run(self._create, NO_CALL)
            except NodeError:
                if not self._exists():  # or else somebody was faster
                    raise
        self._run(lambda client, seconds: client.load_collection(self._name, timeout=seconds), NO_CALL)
        kept = self.rows([MANIFEST_ID], NO_CALL, ["payload"]).get(MANIFEST_ID)
        if kept is None:
            self.put([self._manifest_row(manifest)], NO_CALL)
        elif decode_json(kept["payload"]) != manifest:
            raise IndexMismatch(
                f"Milvus collection {self._name} was made with {kept['payload']}, and is to be opened with "
                f"{canonical_json(manifest)}: name another collection",
                index_manifest(decode_json(kept["payload"])),
            )

    def _exists(self) -> bool:
        return self._run(
            lambda client, seconds: bool(client.has_collection(self._name, timeout=seconds)), NO_CALL
        )

    def _manifest_row(self, manifest: dict[str, Any]) -> Row:
        row: Row = {"id": MANIFEST_ID, "payload": canonical_json(manifest), **filter_digests({})}
        row |= dict.fromkeys(self._fields.texts, "")
        if self._fields.dimensions is not None:
            row |= {"vector": [0.0] * self._fields.dimensions, "has_vector": False}
        return row | ({"words": ""} if self._fields.words else {})

    def _create(self, client: Any, seconds: float) -> None:
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", DataType.VARCHAR, max_length=MAX_BYTES, is_primary=True)
        for name in ("payload", *self._fields.texts):
            schema.add_field(name, DataType.VARCHAR, max_length=MAX_BYTES)
        for name in filter_digests({}):
            schema.add_field(name, DataType.VARCHAR, max_length=64)
        indexes = client.prepare_index_params()
        if self._fields.dimensions is not None:
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self._fields.dimensions)
            schema.add_field("has_vector", DataType.BOOL)
            indexes.add_index("vector", index_type="FLAT", metric_type="COSINE")
        if self._fields.words:
            schema.add_field("words", DataType.VARCHAR, max_length=MAX_BYTES, enable_analyzer=True)
            schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
            schema.add_function(Function("bm25", FunctionType.BM25, ["words"], ["sparse"]))
            indexes.add_index("sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25")
        client.create_collection(
            self._name, schema=schema, index_params=indexes, consistency_level="Strong", timeout=seconds
        )


def filter_digests(filter: Mapping[str, str | None]) -> dict[str, str]:
    """Return the fields that stand for what filters compare; empty for what is no string."""
    return {f"{field}_digest": _digest(filter.get(field)) for field in FILTERED}


def within(text: str) -> str:
    """Cut a text to what a row can hold."""
    return text.encode()[:MAX_BYTES].decode(errors="ignore")


def _digest(value: str | None) -> str:
    return "" if value is None else hashlib.sha256(value.encode()).hexdigest()


def _conditions(digests: Mapping[str, str]) -> list[str]:
    wanted = [f"{field}_digest == {_quoted(_digest(value))}" for field, value in digests.items()]
    return [f"id != {_quoted(MANIFEST_ID)}", *wanted]


def _quoted(text: str) -> str:
    """Quote an id or a digest; anything else is a fault of ours."""
    if not text.replace("-", "").isalnum() or not text.isascii():
        raise ValueError("only ids and digests are ever part of an expression")
    return f'"{text}"'
