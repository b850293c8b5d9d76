"""Brings the store to what files say: reads by key, then deletes, updates and writes in batches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ditto_tasks.contracts.errors import NoWorkerAvailable
from ditto_tasks.contracts.json_value import JsonObject, encode_json
from ditto_tasks.contracts.reindex import RECORDS_TARGET
from ditto_tasks.ingest import Changes, Document, compare, key_of
from ditto_tasks.runtime import Runtime

__all__ = ["Counts", "ingest_documents"]

_GROUP = 500  # passages read, compared and written before the next are: bounds memory and a call's wait
_RECORDS = 50  # in one call; several workers then share a group
_RECORD_BYTES = (
    16_384  # a record in an answer, at most: a passage with its metadata in UTF-8 has less than half
)
_EMBEDDED = 16  # records in one REINDEX.PAGE: the least that fills a batch; several workers share the rest
_EMBEDDING_TIME = 600.0  # seconds for the embedding of one group
_IDS = 5000  # in one MEMORY.DELETE
_BEYOND = 16  # positions after a document's last that are looked at, and again as long as one is found

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """What an ingestion did, in passages; the skipped are files.

    Attributes:
        embedded: passages whose vectors were made anew.
        unembedded: those that the model refused; keyword search finds them all the same.
        is_indexed: False when no worker was there to embed.
    """

    new: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    files: int = 0
    skipped: int = 0
    embedded: int = 0
    unembedded: int = 0
    is_indexed: bool = True

    def add(self, changes: Changes, documents: Sequence[Document]) -> None:
        """Count one group."""
        self.new += len(changes.new)
        self.changed += len(changes.changed)
        self.unchanged += changes.unchanged
        self.removed += len(changes.removed)
        self.files += len(documents)


def ingest_documents(
    runtime: Runtime, documents: Iterable[Document | None], on_progress: Callable[[int], None]
) -> Counts:
    """Make the records of these documents what their passages are.

    Ends where a call failed, and may be run again. Records of documents that are not among them stay. Where a
    worker serves REINDEX.PAGE, the index of vectors is brought up to the records, unchanged ones, too.

    Args:
        documents: None for a file that was skipped.
        on_progress: told how many passages were done.

    Raises:
        NodeFailed: a call's result was no success.
        DittoError: a call could not be made.
    """
    _require(runtime, "MEMORY.GET", "MEMORY.WRITE", "MEMORY.UPDATE", "MEMORY.DELETE")
    counts = Counts(is_indexed="REINDEX.PAGE" in _served(runtime))
    for group, skipped in _groups(documents):
        counts.skipped += skipped
        stored = _stored(runtime, group)
        changes = compare([passage for document in group for passage in document.passages], stored)
        written = _apply(runtime, changes)
        counts.add(changes, group)
        if counts.is_indexed:
            _index(runtime, [*(record["id"] for record in stored.values()), *written], counts)
        on_progress(sum(len(document.passages) for document in group))
    return counts


def _require(runtime: Runtime, *nodes: str) -> None:
    served = _served(runtime)
    for node in nodes:
        if node not in served:
            raise NoWorkerAvailable(
                f"no live worker serves {node}: start one with `ditto-tasks worker memory`"
            )


def _served(runtime: Runtime) -> set[str]:
    return {node for worker in runtime.workers() for node in worker.nodes}


def _groups(documents: Iterable[Document | None]) -> Iterator[tuple[list[Document], int]]:
    """Gather documents until they make a group; with each, how many files were skipped meanwhile."""
    group: list[Document] = []
    size = skipped = 0
    for document in documents:
        if document is None:
            skipped += 1
            continue
        group.append(document)
        size += len(document.passages)
        if size >= _GROUP:
            yield group, skipped
            group, size, skipped = [], 0, 0
    yield group, skipped


def _stored(runtime: Runtime, group: Sequence[Document]) -> dict[str, JsonObject]:
    """Read the records of these documents, and those left of longer versions of them."""
    keys = [passage.key for document in group for passage in document.passages]
    found = _get(runtime, keys)
    ends = {document.path: len(document.passages) for document in group}
    while ends:
        beyond = {
            path: [key_of(path, end + step) for step in range(1, _BEYOND + 1)] for path, end in ends.items()
        }
        more = _get(runtime, [key for keys in beyond.values() for key in keys])
        found |= more
        ends = {
            path: ends[path] + _BEYOND for path, keys in beyond.items() if any(key in more for key in keys)
        }
    return found


def _get(runtime: Runtime, keys: Sequence[str]) -> dict[str, JsonObject]:
    size = max(1, min(_RECORDS, runtime.config.transport.max_body_bytes // _RECORD_BYTES))
    inputs = [{"keys": part} for part in _parts(keys, size)]
    return {item["key"]: item for result in runtime.map("MEMORY.GET", inputs) for item in result.unwrap()}


def _apply(runtime: Runtime, changes: Changes) -> list[str]:
    """Delete, update and write; returns the ids of what is new."""
    for ids in _parts(changes.removed, _IDS):
        runtime.invoke("MEMORY.DELETE", {"ids": ids}).unwrap()
    patches = [
        {"id": id, "content": passage.content, "metadata": passage.metadata}
        for id, passage in changes.changed
    ]
    drafts = [
        {"key": passage.key, "content": passage.content, "metadata": passage.metadata}
        for passage in changes.new
    ]
    for result in runtime.map("MEMORY.UPDATE", _batched_inputs(runtime, patches)):
        result.unwrap()
    written = runtime.map("MEMORY.WRITE", _batched_inputs(runtime, drafts))
    return [record["id"] for result in written for record in result.unwrap()]


def _index(runtime: Runtime, ids: Sequence[str], counts: Counts) -> None:
    inputs = [{"target": RECORDS_TARGET, "ids": part} for part in _parts(ids, _EMBEDDED)]
    for result in runtime.map("REINDEX.PAGE", inputs, timeout=_EMBEDDING_TIME):
        page = result.unwrap()
        counts.embedded += page["embedded"]
        counts.unembedded += len(page["failed"])


def _batched_inputs(runtime: Runtime, records: Sequence[JsonObject]) -> list[JsonObject]:
    return [{"memories": batch} for batch in _batches(runtime, records)]


def _batches(runtime: Runtime, records: Sequence[JsonObject]) -> Iterator[list[JsonObject]]:
    """Gather records for one call each, well below the limit of a message."""
    limit = runtime.config.transport.max_body_bytes // 2
    batch: list[JsonObject] = []
    size = 0
    for record in records:
        length = len(encode_json(record))
        if batch and (len(batch) == _RECORDS or size + length > limit):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += length
    if batch:
        yield batch


def _parts(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
