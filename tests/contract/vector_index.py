"""What every vector index of ours must do. An index's test class gives the fixture `opened`.

`VectorIndexContract` is for all, `KeptIndexContract` for those that are there again when they are opened
again, `SharedIndexContract` for those that several instances and processes may have open at once.
"""

import math
import multiprocessing
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import (
    DeadlineExceeded,
    InvalidDefinition,
    InvocationCancelled,
    RetrievalError,
)
from ditto_tasks.contracts.index import IndexEntry, IndexHit, IndexManifest, IndexMismatch, VectorIndex
from ditto_tasks.contracts.memory import MemoryItem
from tests.contract.memory_store import WAIT, with_fixtures

DIMENSIONS = 4
MANIFEST = IndexManifest("model/1", DIMENSIONS, "content/1")
CLOSE = 1e-5  # what vectors kept as float32 may lose of a score
QUERY = (1.0, 0.0, 0.0, 0.0)

fork = multiprocessing.get_context("fork")

hostile = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        "\x00",
        "a\x00",
        "a\x00b",
        "\x01",
        "\x01\x01",
        "\\u0000",
        "\\",
        "%",
        "_",
        "*",
        "'",
        '"',
        "' OR 1=1 --",
        '" or 1 == 1 or "',
        "{}",
        "null",
        "a\n",
        "\U0001f600",
    ]
)
numbers = st.integers(-3, 3).map(float) | st.sampled_from([1e-300, 1e300, 0.5])
vectors = st.lists(numbers, min_size=DIMENSIONS, max_size=DIMENSIONS)


class Opened(Protocol):
    """Opens an index where only this test keeps any, and closes it after the test."""

    def __call__(self, manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex: ...


class VectorIndexContract:
    @pytest.fixture
    def index(self, opened: Opened) -> VectorIndex:
        return opened()

    # --- what is kept

    def test_knows_its_manifest(self, index: VectorIndex) -> None:
        assert index.manifest == MANIFEST

    def test_starts_empty(self, index: VectorIndex) -> None:
        assert index.count() == 0
        assert list(index.search(QUERY, limit=10)) == []
        assert list(index.page(None, limit=10)) == []
        assert dict(index.digests(["a"])) == {}
        assert list(index.delete(["a"])) == []

    def test_a_hit_holds_the_whole_record(self, index: VectorIndex) -> None:
        content = {"text": "hällo 用户 \x00 \\u0000", "n": [1, 2.5, None, True, 10**30]}
        record = MemoryItem(id="a", key="k\x00", content=content, metadata={"kind": "x", "n": 1.0})
        index.upsert([IndexEntry(record, QUERY, "d")])
        [hit] = index.search(QUERY, limit=1)
        assert hit.record == record
        assert hit.record.to_wire() == record.to_wire()

    def test_absent_fields_stay_absent_and_null_is_a_content(self, index: VectorIndex) -> None:
        index.upsert([IndexEntry(MemoryItem(id="a", content=None), QUERY, "d")])
        [hit] = index.search(QUERY, limit=1)
        assert hit.record.to_wire() == {"id": "a", "content": None}

    def test_an_upsert_takes_the_place_of_what_was_there(self, index: VectorIndex) -> None:
        index.upsert([entry("a", QUERY, kind="old", key="k"), entry("b", QUERY)])
        index.upsert([entry("a", [0.0, 1.0, 0.0, 0.0], kind="new", digest="new")])
        assert index.count() == 2
        assert dict(index.digests(["a", "b"])) == {"a": "new", "b": "digest of b"}
        assert found(index, filter={"kind": "old"}) == []
        assert found(index, filter={"key": "k"}) == []
        assert found(index, filter={"kind": "new"}) == ["a"]
        assert found(index) == ["b", "a"]

    def test_of_one_id_twice_in_a_batch_the_last_is_kept(self, index: VectorIndex) -> None:
        index.upsert([entry("a", QUERY, digest="first"), entry("a", QUERY, digest="last")])
        assert dict(index.digests(["a"])) == {"a": "last"}
        assert index.count() == 1

    def test_an_upsert_of_nothing_does_nothing(self, index: VectorIndex) -> None:
        index.upsert([])
        assert index.count() == 0

    def test_delete_says_what_was_there(self, index: VectorIndex) -> None:
        index.upsert([entry(id, QUERY) for id in "abc"])
        assert list(index.delete(["c", "missing", "a", "c"])) == ["c", "a"]
        assert list(index.delete(["c", "a"])) == []
        assert list(index.delete([])) == []
        assert index.count() == 1
        assert found(index) == ["b"]

    def test_vectors_are_at_length_1_or_zero(self, index: VectorIndex) -> None:
        index.upsert([entry("a", [3.0, 4.0, 0.0, 0.0]), entry("b", [0.0] * 4)])
        vectors = index.vectors(["b", "missing", "a"])
        assert sorted(vectors) == ["a", "b"]
        assert list(vectors["a"]) == pytest.approx([0.6, 0.8, 0.0, 0.0], abs=1e-6)
        assert list(vectors["b"]) == [0.0] * 4
        assert dict(index.vectors([])) == {}

    def test_digests_are_of_those_that_are_there(self, index: VectorIndex) -> None:
        index.upsert([entry(id, QUERY) for id in "abc"])
        assert dict(index.digests(["c", "missing", "a"])) == {"c": "digest of c", "a": "digest of a"}
        assert dict(index.digests([])) == {}

    def test_pages_go_through_all_ids_in_their_order(self, index: VectorIndex) -> None:
        ids = [str(uuid.uuid4()) for _ in range(25)]
        index.upsert([entry(id, QUERY) for id in ids])
        listed: list[tuple[str, str]] = []
        while page := list(index.page(listed[-1][0] if listed else None, limit=10)):
            assert len(page) <= 10
            listed += page
        assert listed == [(id, f"digest of {id}") for id in sorted(ids)]

    def test_a_page_starts_after_an_id_that_is_gone(self, index: VectorIndex) -> None:
        index.upsert([entry(id, QUERY) for id in "ace"])
        index.delete(["c"])
        assert list(index.page("b", limit=5)) == list(index.page("c", limit=5)) == [("e", "digest of e")]
        assert list(index.page("e", limit=5)) == []

    def test_many_entries_are_written_asked_for_and_removed_at_once(self, index: VectorIndex) -> None:
        ids = [f"{number:04}" for number in range(1_100)]
        index.upsert([entry(id, QUERY) for id in ids])
        assert index.count() == len(ids)
        assert sorted(index.digests(ids)) == ids
        assert [id for id, _ in index.page(None, limit=2_000)] == ids
        assert list(index.delete(ids)) == ids
        assert index.count() == 0

    # --- search

    def test_the_nearest_come_first_and_a_zero_vector_scores_nothing(self, opened: Opened) -> None:  # M13
        with opened(IndexManifest("model/1", 2, "content/1"), "flat") as index:
            index.upsert([entry("0", [1, 0]), entry("1", [0.5, 0.5]), entry("2", [0, 0])])
            hits = index.search([1, 0], limit=2)
            assert scored(hits) == {"0": pytest.approx(1, abs=CLOSE), "1": pytest.approx(0.7071, abs=1e-4)}
            assert scored(index.search([1, 0], limit=3))["2"] == 0
            assert [hit.score for hit in index.search([0, 0], limit=3)] == [0, 0, 0]
            assert found(index, [0, 0]) == ["0", "1", "2"]

    def test_scores_are_cosines(self, index: VectorIndex) -> None:
        index.upsert([entry("same", [2, 0, 0, 0]), entry("across", [0, 5, 0, 0])])
        index.upsert([entry("against", [-3, 0, 0, 0]), entry("near", [3, 4, 0, 0])])
        hits = index.search([10, 0, 0, 0], limit=10)
        assert [hit.record.id for hit in hits] == ["same", "near", "across", "against"]
        assert [hit.score for hit in hits] == pytest.approx([1, 0.6, 0, -1], abs=CLOSE)
        assert all(-1 <= hit.score <= 1 for hit in hits)

    def test_there_are_as_many_hits_as_asked_for(self, index: VectorIndex) -> None:
        index.upsert([entry(f"{number:03}", spread(number)) for number in range(150)])
        for limit in (1, 10, 149, 150, 200):
            assert len(index.search(QUERY, limit=limit)) == min(limit, 150)

    def test_ties_are_by_id(self, index: VectorIndex) -> None:
        ids = [f"{number:03}" for number in range(40)]
        index.upsert([entry(id, [0.3, 0.1, 0.7, 0.2]) for id in reversed(ids)])
        for limit in (3, 40):
            assert found(index, [0.1, 0.9, 0.2, 0.4], limit=limit) == ids[:limit]

    def test_vectors_are_any_sequence_of_numbers(self, index: VectorIndex) -> None:
        given: list[Any] = [(1, 0, 0, 0), [1.0, 0, 0, 0], np.array(QUERY), np.array(QUERY, dtype=np.float32)]
        index.upsert([entry(str(place), vector) for place, vector in enumerate(given)])
        for vector in given:
            assert found(index, vector) == ["0", "1", "2", "3"]

    @with_fixtures
    @given(kept=st.lists(vectors, max_size=8), query=vectors, limit=st.integers(1, 8))
    def test_a_search_is_the_sorted_list_cut(
        self, index: VectorIndex, kept: list[list[float]], query: list[float], limit: int
    ) -> None:
        namespace = str(uuid.uuid4())
        entries = [entry(f"{namespace}{n}", vector, namespace=namespace) for n, vector in enumerate(kept)]
        index.upsert(entries)
        hits = index.search(query, limit=limit, filter={"namespace": namespace})
        index.delete([one.record.id for one in entries])
        expected = {one.record.id: cosine(one.vector, query) for one in entries}
        best = sorted(expected.values(), reverse=True)[:limit]
        assert [hit.score for hit in hits] == pytest.approx(best, abs=CLOSE)
        for hit in hits:
            assert hit.score == pytest.approx(expected[hit.record.id], abs=CLOSE)

    # --- filters

    def test_filters_are_anded(self, index: VectorIndex) -> None:
        index.upsert(
            [
                entry("1", QUERY, key="a", namespace="n", kind="k"),
                entry("2", QUERY, key="b", namespace="n", kind="other"),
                entry("3", QUERY, key="c", kind="k"),
                entry("4", QUERY),
            ]
        )
        assert found(index, filter={}) == ["1", "2", "3", "4"]
        assert found(index, filter={"namespace": "n"}) == ["1", "2"]
        assert found(index, filter={"kind": "k"}) == ["1", "3"]
        assert found(index, filter={"namespace": "n", "kind": "k"}) == ["1"]
        assert found(index, filter={"key": "b", "namespace": "n"}) == ["2"]
        assert found(index, filter={"key": "b", "kind": "k"}) == []

    def test_a_filter_compares_strings_only(self, index: VectorIndex) -> None:
        values: list[Any] = ["1", 1, True, ["1"], None, {"1": "1"}]
        records = [MemoryItem(id=str(n), content=1, metadata={"kind": v}) for n, v in enumerate(values)]
        index.upsert([IndexEntry(record, QUERY, "d") for record in records])
        assert found(index, filter={"kind": "1"}) == ["0"]
        assert found(index, filter={"kind": "true"}) == []

    @pytest.mark.parametrize("rare", ["namespace", "kind", "key"])
    def test_a_filter_of_one_in_a_thousand_never_starves_a_search(
        self, index: VectorIndex, rare: str
    ) -> None:
        """The few that match are far from the query, behind all that do not."""
        common = [
            entry(f"c{n:05}", near(n), **{rare: f"common {n if rare == 'key' else n % 3}"})
            for n in range(2_000)
        ]
        few = 1 if rare == "key" else 20  # a key has one record in a store, and in an index most times
        wanted = [entry(f"r{n:02}", far(n), **{rare: "rare"}) for n in range(few)]
        for start in range(0, len(common), 500):
            index.upsert(common[start : start + 500])
        index.upsert(wanted)
        for limit in (1, 10, 20):
            hits = index.search(QUERY, limit=limit, filter={rare: "rare"})
            assert len(hits) == min(limit, few)
            assert all(hit.record.id.startswith("r") for hit in hits)

    @pytest.mark.parametrize(
        ("filter", "named"),
        [
            ({"kind') = 'x' OR 1=1 --": 1}, "OR 1=1"),  # M03
            ({"tenant": "a"}, "tenant"),
            ({"metadata.kind": "a"}, "metadata.kind"),
            ({"kind": 1}, "kind"),
            ({"kind": None}, "kind"),
            ({"namespace": ["a"]}, "namespace"),
            ({"key": True}, "key"),
        ],
    )
    def test_an_unknown_filter_is_refused(
        self, index: VectorIndex, filter: dict[str, Any], named: str
    ) -> None:
        index.upsert([entry("a", QUERY, namespace="other")])
        with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_INPUT") as refusal:
            index.search(QUERY, limit=10, filter=filter)
        assert named in refusal.value.message

    @pytest.mark.parametrize("field", ["namespace", "kind", "key"])
    def test_a_filter_has_no_wildcards(self, index: VectorIndex, field: str) -> None:  # M01
        names = ["john_doe", "john-doe", "john%", "JOHN_DOE", "john_doe ", "john_doe\x00x", "john", "joh*"]
        index.upsert([entry(name, QUERY, **{field: name}) for name in names])
        for name in names:
            assert found(index, filter={field: name}) == [name]

    @with_fixtures
    @given(
        mine=hostile, theirs=hostile, key=hostile.filter(bool), field=st.sampled_from(["namespace", "kind"])
    )
    def test_nothing_of_another_tenant_is_seen(
        self, index: VectorIndex, mine: str, theirs: str, key: str, field: str
    ) -> None:
        assume(mine != theirs)
        run = str(uuid.uuid4())
        a, b = f"{run}a", f"{run}b"
        index.upsert([entry(a, QUERY, key=key, **{field: theirs}), entry(b, QUERY, **{field: mine})])
        try:
            assert found(index, filter={field: mine}) == [b]
            assert found(index, filter={field: theirs}) == [a]
            assert found(index, filter={field: mine, "key": key}) == []
            assert found(index, filter={field: theirs, "key": key}) == [a]
            assert found(index, filter={"key": key}) == [a]
        finally:
            index.delete([a, b])

    @with_fixtures
    @given(ids=st.lists(hostile.filter(bool), min_size=2, max_size=6, unique=True))
    def test_any_text_is_an_id_and_names_one_record(self, index: VectorIndex, ids: list[str]) -> None:
        first, *others = ids
        index.upsert([entry(id, QUERY) for id in ids])
        try:
            assert dict(index.digests([first])) == {first: f"digest of {first}"}
            assert [id for id, _ in index.page(None, limit=10)] == sorted(ids)
            assert list(index.page(first, limit=10)) == [
                (id, f"digest of {id}") for id in sorted(ids) if id > first
            ]
            assert list(index.delete([first])) == [first]
            assert sorted(found(index)) == sorted(others)
            assert index.count() == len(others)
        finally:
            index.delete(ids)

    # --- what is refused

    @pytest.mark.parametrize(
        "vector",
        [
            [],
            [1.0, 0.0, 0.0],
            [1.0, 0.0, 0.0, 0.0, 0.0],
            [1.0, 0.0, 0.0, math.nan],
            [1.0, 0.0, 0.0, math.inf],
            [1.0, 0.0, 0.0, -math.inf],
            [1.0, 0.0, 0.0, True],
            [True, False, False, False],
            [1.0, 0.0, 0.0, None],
            [1.0, 0.0, 0.0, "1"],
            ["1", "0", "0", "0"],
            [1.0, 0.0, 0.0, [1.0]],
            [[1.0, 0.0, 0.0, 0.0]],
            [1.0, 0.0, 0.0, 10**400],
            [1.0, 0.0, 0.0, 1j],
            np.array([1.0, 0.0, 0.0, np.nan]),
            np.array([True, False, False, False]),
            np.zeros((1, 4)),
        ],
        ids=repr,
    )
    def test_what_is_no_vector_is_refused_and_nothing_is_touched(
        self, index: VectorIndex, vector: Any
    ) -> None:
        index.upsert([entry("kept", QUERY)])
        with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_EMBEDDING"):
            index.upsert([entry("kept", [0, 1, 0, 0], digest="new"), entry("a", QUERY), entry("b", vector)])
        with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_EMBEDDING"):
            index.search(vector, limit=10)
        assert list(index.page(None, limit=10)) == [("kept", "digest of kept")]

    @pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a b", "a.b", "a\n", "é", "a" * 42, 'a"; --'])
    def test_a_name_is_letters_digits_and_underscores(self, opened: Opened, name: str) -> None:
        with pytest.raises(InvalidDefinition):
            opened(MANIFEST, name)

    @pytest.mark.parametrize("dimensions", [0, -1, 1.5, True, "4"])
    def test_dimensions_are_a_positive_integer(self, opened: Opened, dimensions: Any) -> None:
        with pytest.raises(InvalidDefinition, match="dimensions"):
            opened(IndexManifest("model/1", dimensions, "content/1"))

    def test_the_longest_name_is_one(self, opened: Opened) -> None:
        index = opened(MANIFEST, "a" + "_0" * 20)
        index.upsert([entry("a", QUERY)])
        assert found(index) == ["a"]

    # --- calls and closing

    @pytest.mark.parametrize("place", range(8))
    def test_a_call_that_is_not_wanted_does_nothing(self, index: VectorIndex, place: int) -> None:
        index.upsert([entry("a", QUERY)])
        act = calls(index)[place]
        cancel = Cancellation()
        cancel.cancel("changed my mind")
        with pytest.raises(InvocationCancelled, match="changed my mind"):
            act(Call(cancel=cancel))
        with pytest.raises(DeadlineExceeded):
            act(Call(deadline=0.0))
        assert list(index.page(None, limit=10)) == [("a", "digest of a")]

    def test_closing_twice_is_fine_and_calls_are_refused_from_then_on(self, index: VectorIndex) -> None:
        with index as same:
            assert same is index
        index.close()
        for act in calls(index):
            with pytest.raises(RetrievalError, match="RETRIEVAL_PROVIDER_UNAVAILABLE"):
                act(Call())

    def test_a_dropped_index_is_closed_and_dropping_twice_is_fine(self, index: VectorIndex) -> None:
        index.upsert([entry("a", QUERY)])
        index.drop()
        for use in uses(index):
            with pytest.raises(RetrievalError, match="RETRIEVAL_PROVIDER_UNAVAILABLE"):
                use(Call())
        index.drop()
        index.close()

    def test_many_threads_use_one_index(self, index: VectorIndex) -> None:
        def work(number: int) -> None:
            id, namespace = f"{number:03}", f"n{number}"
            index.upsert([entry(id, spread(number), namespace=namespace)])
            assert found(index, filter={"namespace": namespace}) == [id]
            assert dict(index.digests([id])) == {id: f"digest of {id}"}
            if number % 2:
                assert list(index.delete([id])) == [id]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(48)))
        assert index.count() == 24

    def test_of_many_threads_that_upsert_one_record_one_wins(self, index: VectorIndex) -> None:
        start = threading.Barrier(8)

        def work(number: int) -> None:
            start.wait(WAIT)
            index.upsert([entry(id, QUERY, kind=f"k{number}", digest=str(number)) for id in ("a", "b", "c")])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert index.count() == 3
        for hit in index.search(QUERY, limit=3):
            digest = index.digests([hit.record.id])[hit.record.id]
            assert (hit.record.metadata or {})["kind"] == f"k{digest}"


class KeptIndexContract(VectorIndexContract):
    """What an index that outlives its instance must do, too."""

    def test_everything_is_there_when_it_is_opened_again(self, opened: Opened) -> None:
        with opened() as index:
            index.upsert([entry("a", [3, 4, 0, 0], key="k\x00", namespace="n"), entry("b", [0, 0, 0, 0])])
            before = list(index.search(QUERY, limit=10))
        with opened() as index:
            assert index.manifest == MANIFEST
            assert list(index.search(QUERY, limit=10)) == before
            assert found(index, filter={"key": "k\x00", "namespace": "n"}) == ["a"]
            assert list(index.page(None, limit=10)) == [("a", "digest of a"), ("b", "digest of b")]
            assert index.count() == 2

    @pytest.mark.parametrize(
        "other",
        [
            IndexManifest("model/2", DIMENSIONS, "content/1"),
            IndexManifest("model/1", DIMENSIONS + 1, "content/1"),
            IndexManifest("model/1", DIMENSIONS, "content/2"),
        ],
        ids=["model", "dimensions", "preprocessing"],
    )
    def test_another_manifest_is_refused_and_both_are_named(
        self, opened: Opened, other: IndexManifest
    ) -> None:
        with opened() as index:
            index.upsert([entry("a", QUERY)])
        with pytest.raises(IndexMismatch) as refusal:
            opened(other)
        for manifest in (MANIFEST, other):
            assert manifest.model in str(refusal.value)
            assert str(manifest.dimensions) in str(refusal.value)
            assert manifest.preprocessing in str(refusal.value)
        assert refusal.value.kept == MANIFEST
        with opened() as index:
            assert found(index) == ["a"]

    def test_an_empty_index_keeps_its_manifest(self, opened: Opened) -> None:
        opened().close()
        with pytest.raises(IndexMismatch):
            opened(IndexManifest("model/2", DIMENSIONS, "content/1"))

    def test_indexes_of_other_names_are_apart(self, opened: Opened) -> None:
        with opened(MANIFEST, "one") as one:
            one.upsert([entry("a", QUERY)])
        with opened(IndexManifest("model/2", 2, "content/1"), "two") as two:
            assert two.count() == 0
            two.upsert([entry("b", [1, 0])])
            two.delete(["a"])
        with opened(MANIFEST, "one") as one:
            assert found(one) == ["a"]

    @pytest.mark.parametrize(
        "manifest",
        [MANIFEST, IndexManifest("model/2", DIMENSIONS + 1, "content/2")],
        ids=["the same", "another"],
    )
    def test_a_dropped_index_can_be_made_anew(self, opened: Opened, manifest: IndexManifest) -> None:
        dropped = opened()
        dropped.upsert([entry("a", QUERY), entry("b", QUERY)])
        dropped.delete(["b"])
        dropped.drop()
        anew, vector = opened(manifest), [1.0] * manifest.dimensions
        assert anew.manifest == manifest
        assert anew.count() == 0
        assert list(anew.page(None, limit=10)) == []
        assert found(anew, vector) == []
        anew.upsert([entry("c", vector)])
        dropped.drop()
        assert found(anew, vector) == ["c"]

    def test_other_instances_of_a_dropped_index_are_refused(self, opened: Opened) -> None:
        index, other = opened(), opened()
        index.upsert([entry("a", QUERY)])
        assert found(other) == ["a"]
        index.drop()
        refuses_as_gone(other)
        other.drop()
        with opened(IndexManifest("model/2", DIMENSIONS, "content/1")) as anew:  # nobody made it again
            assert anew.count() == 0

    def test_dropping_amid_calls_of_others_ends_each_as_gone(self, opened: Opened) -> None:
        index, other = opened(), opened()
        start = threading.Barrier(8)

        def use_until_refused(number: int) -> str:
            use = uses(other)[number]
            use(Call())
            start.wait(WAIT)
            try:
                while True:
                    use(Call())
            except RetrievalError as refusal:
                return str(refusal)

        with ThreadPoolExecutor(7) as pool:
            refusals = [pool.submit(use_until_refused, number) for number in range(7)]
            start.wait(WAIT)
            index.drop()
            told = {refusal.result(WAIT) for refusal in refusals}
        assert told == {"RETRIEVAL_PROVIDER_UNAVAILABLE: The index notes is gone: it was dropped"}
        assert opened().count() == 0

    def test_an_older_instance_puts_no_vectors_of_another_length_in(self, opened: Opened) -> None:
        index, other = opened(), opened()
        other.upsert([entry("a", QUERY)])
        assert found(other) == ["a"]
        index.drop()
        longer = [1.0] * (DIMENSIONS + 1)
        anew = opened(IndexManifest("model/2", DIMENSIONS + 1, "content/1"))
        anew.upsert([entry("b", longer)])
        with pytest.raises(RetrievalError):
            other.upsert([entry("b", QUERY), entry("c", QUERY)])
        with pytest.raises(RetrievalError):
            found(other)
        assert found(anew, longer) == ["b"]
        assert anew.count() == 1

    def test_dropping_an_index_leaves_others_as_they_are(self, opened: Opened) -> None:
        index, others = opened(), [opened(MANIFEST, name) for name in ("note", "notes_2", "x")]
        for each in (index, *others):
            each.upsert([entry("a", QUERY), entry("b", QUERY)])
            each.delete(["b"])
        index.drop()
        for name, other in zip(("note", "notes_2", "x"), others, strict=True):
            for same in (other, opened(MANIFEST, name)):
                assert found(same) == ["a"]
                assert dict(same.digests(["a", "b"])) == {"a": "digest of a"}
                assert same.count() == 1


class SharedIndexContract(KeptIndexContract):
    """What an index that several instances may have open at once must do, too."""

    def test_two_instances_see_what_the_other_wrote(self, opened: Opened) -> None:
        one, two = opened(), opened()
        one.upsert([entry("a", QUERY), entry("b", [0, 1, 0, 0])])
        assert found(two) == ["a", "b"]
        two.upsert([entry("b", QUERY, digest="new"), entry("c", [0, 0, 1, 0])])
        two.delete(["a"])
        assert found(one) == ["b", "c"]
        assert dict(one.digests(["a", "b"])) == {"b": "new"}
        assert one.count() == two.count() == 2

    def test_many_open_it_for_the_first_time_at_once(self, opened: Opened) -> None:
        start = threading.Barrier(6)

        def work(number: int) -> None:
            start.wait(WAIT)
            opened().upsert([entry(str(number), QUERY)])

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        assert found(opened()) == ["0", "1", "2", "3", "4", "5"]

    def test_two_processes_see_what_the_other_wrote(self, opened: Opened) -> None:
        index = opened()
        index.upsert([entry("parent", QUERY)])

        def work() -> None:
            with opened() as own:
                assert found(own) == ["parent"]
                own.upsert([entry("child", QUERY)])

        in_a_child(work)
        assert found(index) == ["child", "parent"]

    def test_an_index_that_another_process_dropped_is_gone(self, opened: Opened) -> None:
        index = opened()
        index.upsert([entry("a", QUERY)])
        assert found(index) == ["a"]

        def work() -> None:
            with opened() as own:
                own.drop()

        in_a_child(work)
        refuses_as_gone(index)

    def test_an_index_opened_before_a_fork_serves_parent_and_child(self, opened: Opened) -> None:
        index = opened()
        index.upsert([entry("before", QUERY)])

        def work() -> None:
            assert found(index) == ["before"]
            index.upsert([entry("child", QUERY)])

        in_a_child(work)
        index.upsert([entry("parent", QUERY)])
        assert found(index) == ["before", "child", "parent"]


def closed_after(open_index: Opened) -> Iterator[Opened]:
    """Make the fixture `opened` of what opens an index: whatever a test opens is closed after it."""
    given: list[VectorIndex] = []

    def opened(manifest: IndexManifest = MANIFEST, name: str = "notes") -> VectorIndex:
        index = open_index(manifest, name)
        given.append(index)
        return index

    yield opened
    for index in given:
        index.close()


def entry(
    id: str, vector: Sequence[float], *, key: str | None = None, digest: str | None = None, **metadata: str
) -> IndexEntry:
    fields: dict[str, Any] = {"id": id, "content": {"text": f"content of {id}"}}
    if key is not None:
        fields["key"] = key
    if metadata:
        fields["metadata"] = metadata
    return IndexEntry(MemoryItem(**fields), vector, digest if digest is not None else f"digest of {id}")


def found(
    index: VectorIndex,
    vector: Sequence[float] = QUERY,
    *,
    limit: int = 10,
    filter: dict[str, Any] | None = None,
) -> list[str]:
    return [hit.record.id for hit in index.search(vector, limit=limit, filter=filter)]


def scored(hits: Sequence[IndexHit]) -> dict[str, float]:
    return {hit.record.id: hit.score for hit in hits}


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    def unit(vector: Sequence[float]) -> list[float]:
        largest = max(map(abs, vector)) or 1.0
        scaled = [number / largest for number in vector]
        return [number / (math.hypot(*scaled) or 1.0) for number in scaled]

    return sum(a * b for a, b in zip(unit(one), unit(other), strict=True))


def spread(number: int) -> list[float]:
    """Give vectors that all differ in their angle to the query."""
    return [math.cos(number / 50), math.sin(number / 50), 0.0, 0.0]


def near(number: int) -> list[float]:
    return [1.0, number / 10_000, 0.0, 0.0]


def far(number: int) -> list[float]:
    return [-1.0, 0.0, 1 + number / 100, 0.0]


def refuses_as_gone(index: VectorIndex) -> None:
    told = "RETRIEVAL_PROVIDER_UNAVAILABLE: The index notes is gone: it was dropped"
    for use in uses(index):
        with pytest.raises(RetrievalError, match=told):
            use(Call())


def calls(index: VectorIndex) -> list[Callable[[Call], Any]]:
    return [*uses(index), index.drop]


def uses(index: VectorIndex) -> list[Callable[[Call], Any]]:
    return [
        lambda call: index.upsert([entry("b", QUERY)], call),
        lambda call: index.delete(["a"], call),
        lambda call: index.search(QUERY, limit=10, call=call),
        lambda call: index.digests(["a"], call),
        lambda call: index.vectors(["a"], call),
        lambda call: index.page(None, limit=10, call=call),
        lambda call: index.count(call),
    ]


def in_a_child(work: Callable[[], None]) -> None:
    process = fork.Process(target=work, daemon=True)
    process.start()
    process.join(WAIT)
    assert process.exitcode == 0
