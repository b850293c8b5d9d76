"""Entries of an index brought up to their records, while others write, and after failures."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from ditto_tasks import Call, Cancellation, InvocationCancelled
from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.errors import MemoryNodeError, RetrievalError
from ditto_tasks.contracts.index import IndexEntry, IndexManifest
from ditto_tasks.contracts.memory import (
    MemoryDeleteInput,
    MemoryGetInput,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.reindex import ReindexPageOutput
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    EmbeddingDefaults,
    Purpose,
    RetrievalCall,
    RetrievalDefaults,
)
from providers.embedding.records import RECORD_TEXT, RecordEmbedding, record_digest
from providers.indexes.in_memory import InMemoryIndex
from providers.indexes.sync import bring_up
from providers.stores import _feed
from providers.stores.in_memory import InMemoryStore
from tests.doubles import Letters, Quiet

REFUSED = "!"  # in a text: the embedding takes none with it


class Picky(Letters):
    """Refuses texts with an exclamation mark, with this code."""

    def __init__(self, code: str = "RETRIEVAL_INVALID_INPUT") -> None:
        super().__init__()
        self.code = code

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        vectors = super().embed(contents, purpose, call)
        if any(REFUSED in text for text in contents):
            raise RetrievalError(self.code, "it shouts")
        return vectors


class Meddling(Picky):
    """Lets something happen while it embeds: one thing each time, until there is none left."""

    def __init__(self, *meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self._meanwhile = list(meanwhile)

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        if self._meanwhile:
            self._meanwhile.pop(0)()
        return super().embed(contents, purpose, call)


class FailingIndex(InMemoryIndex):
    """Fails as often as it is told, before anything is changed."""

    failures = 0

    def upsert(self, entries: Sequence[IndexEntry], call: Call = NO_CALL) -> None:
        self._fail()
        super().upsert(entries, call)

    def delete(self, ids: Sequence[str], call: Call = NO_CALL) -> Sequence[str]:
        self._fail()
        return super().delete(ids, call)

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RetrievalError("RETRIEVAL_BACKEND_ERROR", "the index did not confirm it")


class Library:
    """A store with an index of it, and what a test does to them."""

    def __init__(self, *, tells_changes: bool) -> None:
        self.store = InMemoryStore()
        self._read: Any = self.store if tells_changes else Quiet(self.store)
        self.index = FailingIndex("records", IndexManifest("letters/1", 3, RECORD_TEXT))

    def write(self, *contents: Any) -> tuple[str, ...]:
        drafts = [{"content": content} for content in contents]
        written = self.store.write(MemoryWriteInput.from_wire({"memories": drafts}))
        return tuple(record.id for record in written)

    def update(self, id: str, **fields: Any) -> None:
        self.store.update(MemoryUpdateInput.from_wire({"memories": [{"id": id, **fields}]}))

    def delete(self, id: str) -> None:
        self.store.delete(MemoryDeleteInput(ids=(id,)))

    def bring_up(
        self, *ids: str, embedding: Letters | None = None, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> ReindexPageOutput:
        return bring_up(self._read, self.index, RecordEmbedding(embedding or Picky()), ids, call)

    def indexed(self) -> dict[str, Any]:
        """Return the content of each entry by id, in the order of ids."""
        hits = self.index.search([1.0, 1.0, 1.0], limit=1000)
        return {hit.record.id: hit.record.content for hit in sorted(hits, key=lambda hit: hit.record.id)}

    def is_current(self, *ids: str) -> bool:
        """Tell whether entries are what these records are, and where they are."""
        records = self.store.get(MemoryGetInput(ids=ids))
        return self.index.digests(ids) == {record.id: record_digest(record) for record in records}


@pytest.fixture(params=[True, False], ids=["told what changed", "not told"])
def library(request: pytest.FixtureRequest) -> Library:
    return Library(tells_changes=request.param)


def told(output: ReindexPageOutput) -> dict[str, Any]:
    """Return what was done, zeros left out."""
    counts = {name: getattr(output, name) for name in ("embedded", "unchanged", "removed")}
    failed = {failure.id: failure.reason for failure in output.failed}
    return {name: count for name, count in counts.items() if count} | ({"failed": failed} if failed else {})


class TestOneAfterTheOther:
    def test_a_new_record_is_embedded_as_a_document(self, library: Library) -> None:
        a, b = library.write("aa", {"text": "b", "n": 1})
        embedding = Picky()
        assert told(library.bring_up(a, b, embedding=embedding)) == {"embedded": 2}
        assert library.indexed() == {a: "aa", b: {"text": "b", "n": 1}}
        [(texts, purpose)] = embedding.asked
        assert (len(texts), purpose) == (2, "document")
        [hit] = library.index.search([1.0, 0.0, 0.0], limit=1)
        assert (hit.record.id, hit.score) == (a, 1.0)

    def test_what_has_not_changed_is_not_embedded_again(self, library: Library) -> None:
        ids = library.write("a", "b")
        library.bring_up(*ids)
        embedding = Picky()
        assert told(library.bring_up(*ids, embedding=embedding)) == {"unchanged": 2}
        assert embedding.asked == []

    @pytest.mark.parametrize(
        "change", [{"content": "c"}, {"metadata": {}}, {"metadata": {"kind": "note"}}], ids=str
    )
    def test_what_has_changed_is(self, library: Library, change: dict[str, Any]) -> None:
        a, b = library.write("a", "b")
        library.bring_up(a, b)
        library.update(a, **change)
        assert told(library.bring_up(a, b)) == {"embedded": 1, "unchanged": 1}
        assert library.is_current(a, b)

    def test_what_is_gone_is_removed(self, library: Library) -> None:
        a, b = library.write("a", "b")
        library.bring_up(a, b)
        library.delete(a)
        assert told(library.bring_up(a, b)) == {"removed": 1, "unchanged": 1}
        assert list(library.indexed()) == [b]

    def test_what_never_was_is_unchanged(self, library: Library) -> None:
        assert told(library.bring_up("nowhere")) == {"unchanged": 1}

    def test_only_what_is_named_is_touched_and_a_name_counts_once(self, library: Library) -> None:
        a, b = library.write("a", "b")
        assert told(library.bring_up(a, a, "nowhere", "nowhere")) == {"embedded": 1, "unchanged": 1}
        assert list(library.indexed()) == [a]
        assert not library.is_current(b)

    def test_nothing_is_nothing(self, library: Library) -> None:
        assert told(library.bring_up()) == {}

    def test_all_at_once(self, library: Library) -> None:
        new, changed, gone, same = library.write("a", "b", "c", "abc")
        library.bring_up(changed, gone, same)
        library.update(changed, content="bb")
        library.delete(gone)
        output = library.bring_up(new, changed, gone, same)
        assert told(output) == {"embedded": 2, "removed": 1, "unchanged": 1}
        assert library.is_current(new, changed, gone, same)


class TestMeanwhile:
    @pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), ("1", 1), ({}, [])])
    def test_a_change_to_what_python_takes_for_equal_or_alike_is_one(
        self, library: Library, before: Any, after: Any
    ) -> None:
        [a] = library.write({"text": "a", "seen": before})
        change = Meddling(lambda: library.update(a, content={"text": "a", "seen": after}))
        assert told(library.bring_up(a, embedding=change)) == {"embedded": 1}
        assert library.is_current(a)

    """What happens between the read of a record and the write of its entry."""

    def test_an_update_is_not_lost(self, library: Library) -> None:
        [a] = library.write("a")
        meddling = Meddling(lambda: library.update(a, content="b"), lambda: library.update(a, content="c"))
        assert told(library.bring_up(a, embedding=meddling)) == {"embedded": 1}
        assert library.indexed() == {a: "c"}
        assert library.is_current(a)

    def test_a_delete_is_not_undone(self, library: Library) -> None:
        a, b = library.write("a", "b")
        output = library.bring_up(a, b, embedding=Meddling(lambda: library.delete(a)))
        assert told(output) == {"embedded": 1, "removed": 1}
        assert library.indexed() == {b: "b"}

    def test_a_delete_that_was_brought_up_elsewhere_is_not_undone(self, library: Library) -> None:
        [a] = library.write("a")
        library.bring_up(a)
        library.update(a, content="b")

        def delete_and_bring_up() -> None:
            library.delete(a)
            library.bring_up(a)

        library.bring_up(a, embedding=Meddling(delete_and_bring_up))
        assert library.indexed() == {}

    def test_an_update_that_was_brought_up_elsewhere_is_not_undone(self, library: Library) -> None:
        [a] = library.write("a")

        def update_and_bring_up() -> None:
            library.update(a, content="b")
            assert told(library.bring_up(a)) == {"embedded": 1}

        library.bring_up(a, embedding=Meddling(update_and_bring_up))
        assert library.indexed() == {a: "b"}

    def test_an_update_that_is_refused_leaves_no_entry(self, library: Library) -> None:
        [a] = library.write("a")
        output = library.bring_up(a, embedding=Meddling(lambda: library.update(a, content="b!")))
        assert told(output) == {"failed": {a: "it shouts"}}
        assert library.indexed() == {}

    def test_an_update_of_a_refused_record_that_was_brought_up_elsewhere_stays(
        self, library: Library
    ) -> None:
        [a] = library.write("a!")

        def update_and_bring_up() -> None:
            library.update(a, content="b")
            assert told(library.bring_up(a)) == {"embedded": 1}

        output = library.bring_up(a, embedding=Meddling(update_and_bring_up))
        assert library.indexed() == {a: "b"}
        assert told(output) == {"embedded": 1}

    def test_an_update_among_many_others_is_not_lost(self, library: Library) -> None:
        [a] = library.write("a")

        def write_much() -> None:
            library.write(*"b" * 150)
            library.update(a, content="c")

        library.bring_up(a, embedding=Meddling(write_much))
        assert library.indexed() == {a: "c"}

    def test_an_update_is_not_lost_where_the_store_has_forgotten_what_changed(
        self, library: Library, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_feed, "MAX_TOMBSTONES", 1)
        [a] = library.write("a")
        others = library.write(*"bcde")

        def update_and_forget() -> None:
            library.update(a, content="c")
            for other in others:
                library.delete(other)

        library.bring_up(a, embedding=Meddling(update_and_forget))
        assert library.indexed() == {a: "c"}

    def test_a_write_of_another_record_is_none_of_its_business(self, library: Library) -> None:
        [a] = library.write("a")
        library.bring_up(a, embedding=Meddling(lambda: library.write("b")))
        assert list(library.indexed()) == [a]

    def test_a_cancel_ends_it(self, library: Library) -> None:
        [a] = library.write("a")
        token = Cancellation()
        with pytest.raises(InvocationCancelled):
            library.bring_up(
                a, embedding=Meddling(lambda: token.cancel("enough")), call=RetrievalCall(cancel=token)
            )
        assert library.indexed() == {}
        assert told(library.bring_up(a)) == {"embedded": 1}


class TestRefusal:
    @pytest.mark.parametrize("code", ["RETRIEVAL_INVALID_INPUT", "RETRIEVAL_INVALID_EMBEDDING"])
    def test_a_record_that_is_refused_is_told_and_removed_and_the_rest_goes_on(
        self, library: Library, code: str
    ) -> None:
        ids = library.write("a", "b", "c")
        library.bring_up(*ids)
        library.update(ids[1], content="b!")
        library.update(ids[2], content="cc")
        output = library.bring_up(*ids, embedding=Picky(code))
        assert told(output) == {"embedded": 1, "unchanged": 1, "failed": {ids[1]: "it shouts"}}
        assert set(library.indexed()) == {ids[0], ids[2]}

    def test_once_it_is_right_it_is_there(self, library: Library) -> None:
        [a] = library.write("a!")
        assert told(library.bring_up(a)) == {"failed": {a: "it shouts"}}
        library.update(a, content="a")
        assert told(library.bring_up(a)) == {"embedded": 1}

    def test_a_model_that_gives_no_vector_for_it_refuses_it_too(self, library: Library) -> None:
        class Broken(Letters):
            def embed(self, contents: Sequence[Any], *rest: Any) -> Any:
                return [[float("nan")] * 3 if REFUSED in text else [1.0, 0, 0] for text in contents]

        a, b = library.write("a!", "b")
        output = library.bring_up(a, b, embedding=Broken())
        assert [failure.id for failure in output.failed] == [a]
        assert list(library.indexed()) == [b]

    def test_other_failures_of_the_model_are_of_them_all(self, library: Library) -> None:
        a, b = library.write("a!", "b")
        with pytest.raises(RetrievalError) as raised:
            library.bring_up(a, b, embedding=Picky("RETRIEVAL_TIMEOUT"))
        assert raised.value.code == "RETRIEVAL_TIMEOUT"
        assert library.indexed() == {}

    def test_a_model_with_vectors_of_another_length_spoils_nothing(self, library: Library) -> None:
        class Longer(Letters):
            def embed(self, contents: Sequence[Any], *rest: Any) -> Any:
                return [[1.0, 2.0, 3.0, 4.0] for _ in contents]

        [a] = library.write("a")
        library.bring_up(a)
        library.update(a, content="b")
        longer = Longer()
        longer.dimensions = 4
        with pytest.raises(RetrievalError) as raised:
            library.bring_up(a, embedding=longer)
        assert raised.value.code == "RETRIEVAL_INVALID_EMBEDDING"
        assert library.indexed() == {a: "a"}


class TestFailure:
    def test_when_entries_cannot_be_written_a_second_run_completes_it(self, library: Library) -> None:
        a, b = library.write("a", "b")
        library.index.failures = 1
        with pytest.raises(RetrievalError, match="did not confirm"):
            library.bring_up(a, b)
        assert library.indexed() == {}
        assert told(library.bring_up(a, b)) == {"embedded": 2}

    def test_when_entries_cannot_be_removed_a_second_run_completes_it(self, library: Library) -> None:
        a, b = library.write("a", "b")
        library.bring_up(a, b)
        library.delete(a)
        library.index.failures = 1
        with pytest.raises(RetrievalError, match="did not confirm"):
            library.bring_up(a, b)
        assert told(library.bring_up(a, b)) == {"removed": 1, "unchanged": 1}
        assert library.is_current(a, b)

    def test_a_failing_store_raises(self, library: Library) -> None:
        [a] = library.write("a")
        library.store.close()
        with pytest.raises(MemoryNodeError):
            library.bring_up(a)


def test_several_writers_at_once_end_with_the_last_state_of_every_record(library: Library) -> None:
    """Each brings up what it has written; texts with `!` are refused, some records are deleted."""
    ids = library.write(*(f"a{n}" for n in range(8)))

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(40):
            id = chance.choice(ids)
            with suppress(MemoryNodeError):  # another has deleted it
                if chance.random() < 0.02:
                    library.delete(id)
                else:
                    library.update(id, content=chance.choice("abc!") * chance.randint(1, 5))
            library.bring_up(*chance.sample(ids, 3), id)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4), timeout=60))
    records = library.store.get(MemoryGetInput(ids=ids))
    due = {record.id: record for record in records if REFUSED not in record.content}
    assert library.index.digests(ids) == {id: record_digest(record) for id, record in due.items()}
    assert library.indexed() == {id: record.content for id, record in due.items()}


def test_a_length_that_is_not_the_index_s_is_refused_and_no_entry_is_touched(library: Library) -> None:
    [a] = library.write("a")
    library.bring_up(a)
    before = library.indexed()
    library.update(a, content="b")
    wrong = RetrievalDefaults(embedding=EmbeddingDefaults(dimensions=4))

    with pytest.raises(RetrievalError, match=r"embedding\.dimensions is 4"):
        library.bring_up(a, call=RetrievalCall(defaults=wrong))
    assert library.indexed() == before
