"""Bringing the entries of an index up to the records that they stand for."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.index import IndexEntry, VectorIndex
from ditto_tasks.contracts.memory import (
    MemoryGetInput,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemoryStore,
)
from ditto_tasks.contracts.reindex import NO_DRIFT, Drift, ReindexFailure, ReindexPageOutput
from ditto_tasks.contracts.retrieval import EmbeddingProvider, RetrievalCall
from providers.embedding.batching import embed_contents
from providers.embedding.records import record_digest
from providers.indexes.look import Look, Looks, is_indexed

__all__ = ["Differences", "bring_up", "differences", "drift"]

_PAGE = 1000  # records read at once
_REFUSED = ("RETRIEVAL_INVALID_INPUT", "RETRIEVAL_INVALID_EMBEDDING")  # of one record; others are of them all


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a record cannot be embedded as it was when it had this digest."""

    digest: str
    reason: str


@dataclass(slots=True)
class _Page:
    """What has been done so far, by record: a record that is looked at again is counted once.

    Attributes:
        drift: how far the entries were behind at the first look.
        looks: how each record was written in Python when it was looked at last, and its digest.
    """

    drift: Drift | None = None
    looks: dict[str, tuple[str, str]] = field(default_factory=dict)
    embedded: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    failed: dict[str, _Refusal] = field(default_factory=dict)

    def digest(self, record: MemoryItem) -> str:
        """Return a record's digest; one that is written as before has that which it had.

        Equal values may be written in several ways, but one way is never that of two values: `==` would not
        do, by which 1 is True.
        """
        written = repr((record.content, record.key, record.metadata))
        last = self.looks.get(record.id)
        if last is not None and last[0] == written:
            return last[1]
        digest = record_digest(record)
        self.looks[record.id] = (written, digest)
        return digest

    def refused(self, record: MemoryItem, digest: str) -> bool:
        """Tell whether the record was refused as it is now; one that was written since deserves a try."""
        return record.id in self.failed and self.failed[record.id].digest == digest

    def output(self, ids: Sequence[str]) -> ReindexPageOutput:
        touched = self.embedded | self.removed | set(self.failed)
        return ReindexPageOutput(
            embedded=len(self.embedded),
            unchanged=len(set(ids) - touched),
            removed=len(self.removed),
            failed=tuple(ReindexFailure(id=id, reason=told.reason) for id, told in self.failed.items()),
            drift=self.drift or NO_DRIFT,
        )


def bring_up(
    store: MemoryStore,
    index: VectorIndex,
    embedding: EmbeddingProvider,
    ids: Sequence[str],
    call: RetrievalCall,
    *,
    seen: Look | None = None,
) -> ReindexPageOutput:
    """Make the entries of these records what the records are: embed what changed, remove what is gone.

    Records in which runs keep their place have no entries.

    What was written is held against the store once more, and again until both agree: whoever writes an entry
    last has seen the record's last state, so that writes that come meanwhile are neither lost nor undone. A
    store that tells what changed is asked only for that. A record that is written between its caller's look
    and the death of this process is left to the next run.

    Args:
        seen: a look at just these records that was had before; None: they are looked at now.

    Raises:
        RetrievalError: of the embedding or the index, when it is not one record's;
            RETRIEVAL_INVALID_EMBEDDING, before anything is touched, when the call's defaults have vectors of
            another length than the index.
        MemoryNodeError: of the store.
    """
    _check_dimensions(index, call)
    page, looks, pending = _Page(), Looks(store, index, call), tuple(dict.fromkeys(ids))
    while pending:
        call.check()
        look, seen = seen or looks.at(pending), None
        pending = looks.written(_bring_up_once(index, embedding, look, call, page), look)
    return page.output(ids)


def _check_dimensions(index: VectorIndex, call: RetrievalCall) -> None:
    """Refuse what would refuse every record, and so remove its entry."""
    configured, kept = call.embedding.dimensions, index.manifest.dimensions
    if configured not in (None, kept):
        raise RetrievalError(
            "RETRIEVAL_INVALID_EMBEDDING",
            f"embedding.dimensions is {configured}, and the index holds vectors of {kept} numbers: "
            "leave the setting out, or open an index of that length",
        )


@dataclass(slots=True)
class Differences:
    """Ids of records whose entries are not what they are, by what is wrong; see `Drift`.

    Attributes:
        records: how many records there are.
        entries: how many the index has.
        generation: that which was compared.
        is_of_wrong_generation: whether all its vectors are another embedding's than the configured one's.
    """

    records: int = 0
    entries: int = 0
    generation: int = 1
    is_of_wrong_generation: bool = False
    missing: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    orphaned: list[str] = field(default_factory=list)

    def drift(self) -> Drift:
        """Count them."""
        return Drift(
            missing=len(self.missing),
            stale=len(self.stale),
            orphaned=len(self.orphaned),
        )

    @property
    def wrong_generation(self) -> int:
        """Count the entries that are not of the configured embedding: all, or none."""
        return self.entries if self.is_of_wrong_generation else 0


def drift(store: MemoryStore, index: VectorIndex, call: RetrievalCall) -> tuple[int, Drift]:
    """Read store and index whole and compare them; returns the number of records, and how they differ.

    What is written meanwhile may be counted as differing.
    """
    found, entries = _behind(store, index, call)
    drift = found.drift()
    orphaned = max(0, index.count(call) - entries)
    return found.records, Drift(missing=drift.missing, stale=drift.stale, orphaned=orphaned)


def differences(store: MemoryStore, index: VectorIndex, call: RetrievalCall) -> Differences:
    """Compare as `drift` does, and tell which records differ."""
    found, entries = _behind(store, index, call)
    found.entries = index.count(call)
    if found.entries > entries:
        found.orphaned = list(_orphans(store, index, call))
    return found


def _behind(store: MemoryStore, index: VectorIndex, call: RetrievalCall) -> tuple[Differences, int]:
    """Find what is missing or stale; returns how many entries there are that belong to a record, too."""
    found, entries = Differences(), 0
    for read in _pages(store, call):
        page = [record for record in read if is_indexed(record)]
        known = index.digests([record.id for record in page], call)
        found.records += len(page)
        entries += len(known)
        found.missing += [record.id for record in page if record.id not in known]
        found.stale += [
            record.id for record, digest in _digested(page) if known.get(record.id, digest) != digest
        ]
    return found, entries


def _orphans(store: MemoryStore, index: VectorIndex, call: RetrievalCall) -> Iterator[str]:
    after: str | None = None
    while page := index.page(after, limit=_PAGE, call=call):
        ids = [id for id, _ in page]
        kept = {
            record.id
            for record in map(MemoryItem.from_wire, store.get(MemoryGetInput(ids=tuple(ids), keys=()), call))
            if is_indexed(record)
        }
        yield from (id for id in ids if id not in kept)
        after = ids[-1]


def _pages(store: MemoryStore, call: RetrievalCall) -> Iterator[Sequence[MemoryItem]]:
    request = MemoryQueryInput(limit=_PAGE)
    while True:
        call.check()
        page = MemoryQueryOutput.from_wire(store.query(request, call))
        yield page.items
        if page.next_cursor is None:
            return
        request = MemoryQueryInput(limit=_PAGE, cursor=page.next_cursor)


def _digested(records: Sequence[MemoryItem]) -> Iterator[tuple[MemoryItem, str]]:
    return ((record, record_digest(record)) for record in records)


def _bring_up_once(
    index: VectorIndex,
    embedding: EmbeddingProvider,
    look: Look,
    call: RetrievalCall,
    page: _Page,
) -> tuple[str, ...]:
    """Do what is to be done by a look; returns the records that it touched."""
    records, known = look.records, look.entries
    digests = {id: page.digest(record) for id, record in records.items()}
    stale = [
        record
        for id, record in records.items()
        if digests[id] != known.get(id) and not page.refused(record, digests[id])
    ]
    page.drift = page.drift or _difference(digests, known)
    for record in stale:
        page.failed.pop(record.id, None)
    entries = _embedded(embedding, stale, digests, call, page.failed)
    if entries:
        index.upsert(entries, call)
    refused = [record.id for record in stale if record.id in page.failed]
    gone = [*(id for id in known if id not in records), *refused]
    removed = index.delete(gone, call) if gone else ()
    page.embedded = (page.embedded | {entry.record.id for entry in entries}) - set(removed)
    page.removed = (page.removed | set(removed)) - page.embedded - set(page.failed)
    return tuple(dict.fromkeys([*(entry.record.id for entry in entries), *removed]))


def _difference(digests: Mapping[str, str], known: Mapping[str, str]) -> Drift:
    return Drift(
        missing=sum(id not in known for id in digests),
        stale=sum(known.get(id, digest) != digest for id, digest in digests.items()),
        orphaned=sum(id not in digests for id in known),
    )


def _embedded(
    embedding: EmbeddingProvider,
    records: Sequence[MemoryItem],
    digests: Mapping[str, str],
    call: RetrievalCall,
    failed: dict[str, _Refusal],
) -> list[IndexEntry]:
    """Embed records, all at once or, when one of them is refused, one by one to find which."""
    if not records:
        return []
    try:
        vectors = embed_contents(embedding, records, "document", call=call)
    except RetrievalError as error:
        if error.code not in _REFUSED:
            raise
        if len(records) > 1:
            return [
                entry for record in records for entry in _embedded(embedding, [record], digests, call, failed)
            ]
        failed[records[0].id] = _Refusal(digests[records[0].id], error.message)
        return []
    return [
        IndexEntry(record, vector, digests[record.id])
        for record, vector in zip(records, vectors, strict=True)
    ]
