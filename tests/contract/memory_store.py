"""What stores of ours must do; a store's test class inherits what it promises, and gives the fixture `store`.

`MemoryStoreContract` is every store's; `RandomIdContract` is for those whose ids do not follow from keys,
`SortedListingContract` for those that list in other orders than by id, `KeywordSearchContract` for those that
find words, `ChangeFeedContract` for those that tell what changed, and `KeptFeedContract` if their records are
there after reopening.
"""

import base64
import json
import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import DeadlineExceeded, InvocationCancelled, MemoryNodeError
from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.contracts.memory import (
    ChangeFeed,
    MemoryDeleteInput,
    MemoryGetInput,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemorySearchInput,
    MemorySearchProvider,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.nodes.memory import Memory
from providers.stores import Store, _feed
from providers.stores.in_memory import InMemoryStore

WRITERS = 16
WAIT = 30.0  # seconds; a bound on what ends within a few milliseconds
CHANGES = 40  # of each of the writers that a follower follows
MOST_PAGES = 10_000

with_fixtures = settings(
    max_examples=int(os.environ.get("STORE_EXAMPLES", "40")),
    database=None,  # a failure of one store is no example for another
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,  # each example has a namespace or a key of its own
        HealthCheck.differing_executors,  # the classes that inherit a test share nothing
    ],
)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", "a", "a\x00", "a\x00b", "A", "\U0001f600", "\uffff", '"', "\\u0000"]
)
sort_values = (
    scalars
    | texts
    | st.integers(-3, 3)
    | st.sampled_from([0.0, -0.0, 1.0, 2**53, 2**53 + 1, -(2**63), 10**30, 10**400, 5e-324])
    | st.lists(st.integers(0, 2) | texts, max_size=2)
    | st.dictionaries(st.sampled_from("ab"), st.booleans(), max_size=2)
)
metadatas = st.none() | st.dictionaries(st.sampled_from(["rank", "due-date"]), sort_values)
orders = st.lists(
    st.fixed_dictionaries(
        {"field": st.sampled_from(["rank", "due-date", "key", "id"])},
        optional={"direction": st.sampled_from(["asc", "desc"])},
    ),
    max_size=3,
)
ranks = st.none() | st.integers(0, 2)
unknown_filters = pytest.mark.parametrize(
    ("filter", "named"),
    [
        ({"kind') = 'x' OR 1=1 --": 1}, "OR 1=1"),  # M03
        ({"tenant": "a"}, "tenant"),
        ({"metadata.kind": "a"}, "metadata.kind"),
        ({"kind": 1}, "kind"),
        ({"kind": None}, "kind"),
        ({"namespace": ["a"]}, "namespace"),
    ],
)
cursors = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.recursive(
    scalars | texts | st.sampled_from(["\\ud800", "01bff0000000000000", "zz"]), st.lists, max_leaves=4
).map(lambda value: base64.urlsafe_b64encode(encode_json(value)).decode())


class MemoryStoreContract:
    @pytest.fixture
    def memory(self, store: Store) -> Memory:
        return Memory(store)

    # --- WRITE and GET

    def test_a_written_record_is_read_by_id_and_by_key(self, memory: Memory) -> None:
        draft = {"key": "k", "content": {"text": "hi", "n": [1, 2.5, None, True]}, "metadata": {"a": 1}}
        [written] = memory.write({"memories": [draft]}).unwrap()
        assert str(uuid.UUID(written["id"])) == written["id"]
        assert written == {"id": written["id"], **draft}
        assert memory.get({"ids": [written["id"]]}).unwrap() == [written]
        assert memory.get({"keys": ["k"]}).unwrap() == [written]

    def test_a_record_asked_for_by_id_and_key_comes_once(self, store: Store) -> None:
        [record] = store.write(MemoryWriteInput.from_wire({"memories": [{"key": "k", "content": 1}]}))
        found = store.get(MemoryGetInput.from_wire({"ids": [_id(record)], "keys": ["k"]}))
        assert [_id(item) for item in found] == [_id(record)]

    def test_missing_ids_and_keys_are_left_out(self, memory: Memory) -> None:
        assert memory.get({"ids": ["no", " "], "keys": ["no"]}).unwrap() == []

    def test_records_come_in_the_order_of_the_drafts(self, memory: Memory) -> None:
        written = _write(memory, *({"content": number} for number in range(1_100)))
        assert [record["content"] for record in written] == list(range(1_100))
        ids = [record["id"] for record in reversed(written)]
        assert [record["id"] for record in memory.get({"ids": ids}).unwrap()] == ids

    @pytest.mark.parametrize("content", [None, 0, "", [], {}, 1.0, 10**30, {"a": None}, "\x7f\u2028é漢😀"])
    def test_any_json_value_is_a_content(self, memory: Memory, content: Any) -> None:
        [record] = _write(memory, {"content": content})
        assert memory.get({"ids": [record["id"]]}).unwrap()[0]["content"] == content

    def test_absent_fields_stay_absent(self, memory: Memory) -> None:
        [bare, empty] = _write(memory, {"content": 1}, {"content": 1, "metadata": {}})
        assert set(bare) == {"id", "content"}
        assert empty["metadata"] == {}
        ids = [bare["id"], empty["id"]]
        assert memory.get({"ids": ids}).unwrap() == [bare, empty]

    def test_nul_and_its_written_form_are_both_kept(self, memory: Memory) -> None:  # M07
        real, written = "what is the \u0000 weather", "what is the \\u0000 weather"
        for content in (real, written):
            [record] = _write(memory, {"key": content, "content": content, "metadata": {"kind": content}})
            assert memory.get({"keys": [content]}).unwrap() == [record]
            assert record["content"] == content
            assert memory.query({"filter": {"kind": content}}).unwrap() == {"items": [record]}
            assert memory.query({"filter": {"key": content}}).unwrap() == {"items": [record]}

    def test_a_value_that_is_not_json_refuses_the_whole_batch(self, memory: Memory) -> None:  # M08
        bad = {"content": 1, "metadata": {"score": float("nan"), "other": 1}}
        result = memory.write({"memories": [{"content": "good"}, bad]})
        assert _code(result) == "INVALID_INPUT"
        assert "score" in _message(result)
        assert memory.query({}).unwrap() == {"items": []}

    def test_what_was_given_and_what_is_returned_are_copies(self, store: Store) -> None:
        request = MemoryWriteInput.from_wire({"memories": [{"key": "k", "content": {"list": [1]}}]})
        [written] = store.write(request)
        request.memories[0].content["list"].append(2)
        _content(written)["list"].append(3)
        [read] = store.get(MemoryGetInput(keys=("k",)))
        assert _content(read) == {"list": [1]}

    # --- keys

    def test_the_same_record_twice_is_one_record(self, memory: Memory) -> None:
        [first] = _write(memory, {"key": "k", "content": {"a": 1, "b": 2}, "metadata": {"x": 1, "y": [1]}})
        again = {"key": "k", "content": {"b": 2.0, "a": 1}, "metadata": {"y": [1.0], "x": 1}}
        assert _write(memory, again) == [first]
        assert memory.query({}).unwrap() == {"items": [first]}

    @pytest.mark.parametrize(
        "other",
        [
            {"content": 2, "metadata": {"a": 1}},
            {"content": True, "metadata": {"a": 1}},
            {"content": 1, "metadata": {"a": True}},
            {"content": 1, "metadata": {}},
            {"content": 1},
        ],
    )
    def test_another_record_under_a_key_is_a_conflict(self, memory: Memory, other: dict[str, Any]) -> None:
        [first] = _write(memory, {"key": "k", "content": 1, "metadata": {"a": 1}})
        result = memory.write({"memories": [{"content": "new"}, {"key": "k", **other}]})
        assert _code(result) == "KEY_CONFLICT"
        assert memory.query({}).unwrap() == {"items": [first]}

    def test_absent_and_empty_metadata_differ(self, memory: Memory) -> None:
        _write(memory, {"key": "bare", "content": 1}, {"key": "empty", "content": 1, "metadata": {}})
        assert _code(memory.write({"memories": [{"key": "empty", "content": 1}]})) == "KEY_CONFLICT"
        result = memory.write({"memories": [{"key": "bare", "content": 1, "metadata": {}}]})
        assert _code(result) == "KEY_CONFLICT"

    def test_a_key_twice_in_one_batch_is_refused(self, memory: Memory) -> None:
        same = {"key": "k", "content": 1}
        result = memory.write({"memories": [same, same]})
        assert _code(result) == "INVALID_INPUT"
        assert "'k'" in _message(result)
        assert memory.query({}).unwrap() == {"items": []}

    def test_a_key_is_free_again_after_its_record_is_deleted(self, memory: Memory) -> None:
        [first] = _write(memory, {"key": "k", "content": 1})
        memory.delete({"ids": [first["id"]]}).unwrap()
        [second] = _write(memory, {"key": "k", "content": 2})
        assert memory.get({"keys": ["k"]}).unwrap() == [second]

    def test_the_id_of_a_record_without_a_key_is_random(self, memory: Memory) -> None:
        [first, second] = _write(memory, {"content": 1}, {"content": 1})
        assert uuid.UUID(first["id"]).version == uuid.UUID(second["id"]).version == 4
        assert first["id"] != second["id"]

    def test_one_of_many_writers_of_a_key_wins(self, memory: Memory) -> None:  # M19
        start = threading.Barrier(WRITERS)

        def write(number: int) -> NodeResult:
            start.wait(WAIT)
            return memory.write({"memories": [{"key": "k", "content": number if number % 2 else "same"}]})

        with ThreadPoolExecutor(WRITERS) as pool:
            results = list(pool.map(write, range(WRITERS)))
        [kept] = memory.query({}).unwrap()["items"]
        assert memory.get({"keys": ["k"]}).unwrap() == [kept]
        for number, result in enumerate(results):
            if kept["content"] == (number if number % 2 else "same"):
                assert result.unwrap() == [kept]
            else:
                assert _code(result) == "KEY_CONFLICT"

    # --- UPDATE and DELETE

    def test_update_replaces_what_is_given(self, memory: Memory) -> None:  # M18
        [record] = _write(memory, {"key": "k", "content": "old", "metadata": {"a": 1, "b": 2}})
        id = record["id"]

        def update(**fields: Any) -> Any:
            [changed] = memory.update({"memories": [{"id": id, **fields}]}).unwrap()
            assert memory.get({"ids": [id]}).unwrap() == [changed]
            return changed

        assert update(content="new") == {**record, "content": "new"}
        assert update(metadata={"a": 9}) == {**record, "content": "new", "metadata": {"a": 9}}
        assert update(metadata={}) == {**record, "content": "new", "metadata": {}}
        assert update(content=None) == {**record, "content": None, "metadata": {}}

    def test_an_update_with_a_missing_record_changes_nothing(self, memory: Memory) -> None:
        [record] = _write(memory, {"content": "old"})
        patches = [{"id": record["id"], "content": "new"}, {"id": "missing", "content": "new"}]
        assert _code(memory.update({"memories": patches})) == "NOT_FOUND"
        assert memory.get({"ids": [record["id"]]}).unwrap() == [record]

    def test_updates_come_in_the_order_of_the_patches(self, memory: Memory) -> None:
        records = _write(memory, *({"content": number} for number in range(600)))
        patches = [{"id": record["id"], "content": "new"} for record in reversed(records)]
        updated = memory.update({"memories": patches}).unwrap()
        assert [record["id"] for record in updated] == [patch["id"] for patch in patches]

    def test_filters_see_an_update(self, memory: Memory) -> None:
        [record] = _write(memory, {"content": "apple", "metadata": {"kind": "fruit"}})
        patch = {"id": record["id"], "content": "carrot", "metadata": {"kind": "root"}}
        [changed] = memory.update({"memories": [patch]}).unwrap()
        assert memory.query({"filter": {"kind": "fruit"}}).unwrap() == {"items": []}
        assert memory.query({"filter": {"kind": "root"}}).unwrap() == {"items": [changed]}

    def test_delete_says_what_was_there(self, memory: Memory) -> None:
        [first, second, kept] = _write(memory, {"content": "x 1"}, {"content": "x 2"}, {"content": "x 3"})
        ids = [second["id"], "missing", first["id"], second["id"]]
        assert memory.delete({"ids": ids}).unwrap() == {"deleted": [second["id"], first["id"]]}
        assert memory.delete({"ids": ids}).unwrap() == {"deleted": []}
        assert memory.query({}).unwrap() == {"items": [kept]}

    def test_delete_takes_an_id_twice(self, store: Store) -> None:
        [record] = store.write(MemoryWriteInput.from_wire({"memories": [{"content": 1}]}))
        deleted = store.delete(MemoryDeleteInput(ids=(_id(record), _id(record))))
        assert list(deleted.deleted) == [_id(record)]  # type: ignore[union-attr]

    # --- QUERY: filters

    def test_filters_are_anded(self, memory: Memory) -> None:
        _write(
            memory,
            {"key": "a", "content": 1, "metadata": {"namespace": "n", "kind": "k"}},
            {"key": "b", "content": 2, "metadata": {"namespace": "n", "kind": "other"}},
            {"key": "c", "content": 3, "metadata": {"kind": "k"}},
            {"content": 4},
        )

        def contents(**filter: str) -> list[Any]:
            items = memory.query({"filter": filter}).unwrap()["items"]
            return sorted(item["content"] for item in items)

        assert contents() == [1, 2, 3, 4]
        assert contents(namespace="n") == [1, 2]
        assert contents(kind="k") == [1, 3]
        assert contents(namespace="n", kind="k") == [1]
        assert contents(key="b", namespace="n") == [2]
        assert contents(key="b", kind="k") == []

    def test_a_namespace_has_no_wildcards(self, memory: Memory) -> None:  # M01
        names = ["john_doe", "john-doe", "john%", "JOHN_DOE", "john_doe\x00x"]
        _write(memory, *({"content": name, "metadata": {"namespace": name}} for name in names))
        for name in names:
            items = memory.query({"filter": {"namespace": name}}).unwrap()["items"]
            assert [item["content"] for item in items] == [name]

    @unknown_filters
    def test_an_unknown_filter_is_refused(self, memory: Memory, filter: dict[str, Any], named: str) -> None:
        _write(memory, {"content": "secret", "metadata": {"namespace": "other"}})
        result = memory.query({"filter": filter})
        assert _code(result) == "INVALID_INPUT"
        assert named in _message(result)

    def test_a_filter_compares_strings_only(self, memory: Memory) -> None:
        values: list[Any] = ["1", 1, True, ["1"], None]
        _write(memory, *({"content": repr(value), "metadata": {"kind": value}} for value in values))
        [item] = memory.query({"filter": {"kind": "1"}}).unwrap()["items"]
        assert item["content"] == "'1'"

    # --- QUERY: pages

    def test_pages_by_id_continue_after_the_last_id(self, memory: Memory) -> None:
        ids = sorted(record["id"] for record in _write(memory, *({"content": n} for n in range(3))))
        first = memory.query({"limit": 2}).unwrap()
        assert [item["id"] for item in first["items"]] == ids[:2]
        assert first["nextCursor"] == ids[1]
        second = memory.query({"limit": 2, "cursor": ids[1], "orderBy": [{"field": "id"}]}).unwrap()
        assert [item["id"] for item in second["items"]] == ids[2:]
        assert "nextCursor" not in second

    def test_a_full_last_page_has_no_cursor(self, memory: Memory) -> None:
        _write(memory, {"content": 1}, {"content": 2})
        assert "nextCursor" not in memory.query({"limit": 2}).unwrap()

    def test_a_query_without_a_limit_gives_a_hundred(self, store: Store, memory: Memory) -> None:
        _write(memory, *({"content": number} for number in range(101)))
        assert len(_listed(store)) == 100

    def test_inserts_and_deletes_never_make_a_page_by_id_repeat_or_skip(self, memory: Memory) -> None:
        _walk_amid_changes(memory, [None] * 24, [])

    @pytest.mark.parametrize("field", ["a b", "a.b", "$", "x'", 'x"', "1a", "é", "a\n", "id; --"])
    def test_an_order_by_what_is_no_field_name_is_refused(self, memory: Memory, field: str) -> None:
        assert _code(memory.query({"orderBy": [{"field": field}]})) == "INVALID_INPUT"

    @with_fixtures
    @given(cursor=cursors, order=orders)
    def test_any_text_is_a_cursor_or_refused(
        self, memory: Memory, cursor: str, order: list[dict[str, str]]
    ) -> None:
        result = memory.query({"cursor": cursor, "orderBy": order})
        assert result.status == "success" or _code(result) == "INVALID_INPUT"

    # --- calls and closing

    def test_is_a_search_provider(self, store: Store) -> None:
        assert isinstance(store, MemorySearchProvider)

    @pytest.mark.parametrize("index", range(6))
    def test_a_call_that_is_not_wanted_does_nothing(self, store: Store, index: int) -> None:
        [record] = store.write(MemoryWriteInput.from_wire({"memories": [{"content": 1}]}))
        act = _calls(store, _id(record))[index]
        cancel = Cancellation()
        cancel.cancel("changed my mind")
        with pytest.raises(InvocationCancelled, match="changed my mind"):
            act(Call(cancel=cancel))
        with pytest.raises(DeadlineExceeded):
            act(Call(deadline=0.0))
        assert len(_listed(store)) == 1

    def test_closing_twice_is_fine_and_calls_are_refused_from_then_on(self, store: Store) -> None:
        with store as same:
            assert same is store
        store.close()
        for act in _calls(store, "x"):
            with pytest.raises(MemoryNodeError, match="STORE_UNAVAILABLE"):
                act(Call())

    def test_many_threads_use_one_store(self, memory: Memory) -> None:
        def work(number: int) -> None:
            [record] = _write(memory, {"key": f"k{number}", "content": f"apple {number}"})
            assert memory.get({"ids": [record["id"]]}).unwrap() == [record]
            memory.update({"memories": [{"id": record["id"], "content": "pear"}]}).unwrap()
            if number % 2:
                memory.delete({"ids": [record["id"]]}).unwrap()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(64)))
        assert len(memory.query({}).unwrap()["items"]) == 32


class RandomIdContract:
    @pytest.fixture
    def memory(self, store: Store) -> Memory:
        return Memory(store)

    def test_an_id_says_nothing_of_the_key_and_never_comes_again(self, memory: Memory) -> None:
        [first] = _write(memory, {"key": "k", "content": 1})
        assert uuid.UUID(first["id"]).version == 4
        memory.delete({"ids": [first["id"]]}).unwrap()
        [second] = _write(memory, {"key": "k", "content": 2})
        assert second["id"] != first["id"]


class SortedListingContract:
    @pytest.fixture
    def memory(self, store: Store) -> Memory:
        return Memory(store)

    def test_records_without_a_key_come_first_in_the_order_of_keys(self, memory: Memory) -> None:
        _write(memory, {"key": "b", "content": 2}, {"key": "a", "content": 1}, {"content": 0})
        items = memory.query({"orderBy": [{"field": "key"}]}).unwrap()["items"]
        assert [item["content"] for item in items] == [0, 1, 2]

    @pytest.mark.parametrize("direction", ["asc", "desc"])
    def test_ties_are_each_listed_once_while_records_come_and_go(
        self, memory: Memory, direction: str
    ) -> None:  # M16
        records = _write(memory, *({"content": n, "metadata": {"rank": 1}} for n in range(7)))
        by_id = sorted(record["id"] for record in records)
        request = {"orderBy": [{"field": "rank", "direction": direction}], "limit": 3}
        first = memory.query(request).unwrap()
        _write(memory, {"content": "new", "metadata": {"rank": 1}})
        memory.delete({"ids": [by_id[0], by_id[2]]}).unwrap()  # the cursor's own record, too
        rest = list(_pages(memory, {**request, "cursor": first["nextCursor"]}))
        listed = [item["id"] for item in first["items"] + rest if item["content"] != "new"]
        assert listed == by_id

    def test_orders_by_several_fields(self, memory: Memory) -> None:
        pairs = [("b", 1), ("a", 2), ("a", 1), ("b", 2)]
        _write(memory, *({"content": [x, y], "metadata": {"x": x, "y": y}} for x, y in pairs))
        order = [{"field": "x", "direction": "desc"}, {"field": "y"}]
        listed = [tuple(item["content"]) for item in _pages(memory, {"orderBy": order, "limit": 1})]
        assert listed == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]

    @with_fixtures
    @given(metadata=st.lists(metadatas, max_size=8), order=orders, limit=st.integers(1, 5))
    def test_pages_are_the_sorted_list_cut(
        self, memory: Memory, metadata: list[Any], order: list[dict[str, str]], limit: int
    ) -> None:
        namespace = str(uuid.uuid4())
        drafts = [
            {
                **({"key": f"{namespace}{number}"} if number % 3 else {}),
                "content": number,
                "metadata": {**(fields or {}), "namespace": namespace},
            }
            for number, fields in enumerate(metadata)
        ]
        expected = _write(memory, *drafts)
        expected.sort(key=lambda record: record["id"])
        for field in reversed(order):
            expected.sort(key=_oracle(field["field"]), reverse=field.get("direction") == "desc")
        listed = list(_pages(memory, {"orderBy": order, "limit": limit, "filter": {"namespace": namespace}}))
        assert [item["content"] for item in listed] == [record["content"] for record in expected]

    @with_fixtures
    @given(ranks=st.lists(ranks, min_size=24, max_size=24), order=orders)
    def test_inserts_and_deletes_never_make_a_page_repeat_or_skip(
        self, memory: Memory, ranks: list[int | None], order: list[dict[str, str]]
    ) -> None:
        _walk_amid_changes(memory, ranks, order)

    def test_a_cursor_of_another_order_or_filter_is_refused(self, memory: Memory) -> None:
        _write(memory, *({"content": n, "metadata": {"kind": "k", "rank": n}} for n in range(3)))
        by_rank = {"orderBy": [{"field": "rank"}], "limit": 1}
        cursor = memory.query(by_rank).unwrap()["nextCursor"]
        others: list[dict[str, Any]] = [
            {},
            {"orderBy": [{"field": "rank", "direction": "desc"}]},
            {"orderBy": [{"field": "kind"}]},
            {"orderBy": [{"field": "rank"}, {"field": "kind"}]},
            {**by_rank, "filter": {"kind": "k"}},
        ]
        for other in others:
            assert _code(memory.query({**other, "cursor": cursor})) == "INVALID_INPUT"
        by_id = memory.query({"limit": 1}).unwrap()["nextCursor"]
        assert _code(memory.query({**by_rank, "cursor": by_id})) == "INVALID_INPUT"


class KeywordSearchContract:
    @pytest.fixture
    def memory(self, store: Store) -> Memory:
        return Memory(store)

    def test_every_value_is_searched_and_no_name(self, memory: Memory) -> None:
        content = {"text": ["Apple pie", {"deep": 358}], "price": 2.5, "ready": True, "note": None}
        _write(memory, {"key": "somekey", "content": content, "metadata": {"tag": "hidden"}})
        for query in ("apple", "PIE", "358", "2.5", "apple pie"):
            assert _found(memory, query) == [content], query
        for query in ("text", "deep", "price", "somekey", "tag", "hidden", "true", "null"):
            assert _found(memory, query) == [], query

    @pytest.mark.parametrize(
        ("query", "hits"),
        [
            ("PROJECT updates", True),
            ("100%", True),
            ("10%", False),
            ("chin", False),
            ("%", True),
            ("_", False),
        ],
    )
    def test_a_query_is_words_not_a_pattern(self, memory: Memory, query: str, hits: bool) -> None:
        content = {"text": "For project updates, 100% Chinese"}
        _write(memory, {"content": content})
        assert _found(memory, query) == ([content] if hits else [])

    @pytest.mark.parametrize(
        ("query", "hits"),
        [("x_y", True), ("xay", False), ("y!z", True), ("_", True), ("!", True), ("*", False)],
    )
    def test_punctuation_is_literal(self, memory: Memory, query: str, hits: bool) -> None:
        _write(memory, {"content": "x_y!z"})
        assert _found(memory, query) == (["x_y!z"] if hits else [])

    @pytest.mark.parametrize(
        ("query", "content"),
        [
            ("memory:safe", "is memory safe"),  # M04
            ('say "hi', "they say hi"),
            ("foo AND", "a foo"),
            ("(rust", "rust never sleeps"),
            ("*", "two * three"),
            ("NOT", "not at all"),
            ("NEAR(a b, 2)", "near a"),
            ("words : x", "x"),
            ("^start", "the start"),
            ("-minus", "minus"),
            ('"', 'a " quote'),
            ("'", "it's"),
            ("\x00", "a \x00 b"),
            ("b\x00c", "b c"),
            ("++", "c++"),
            ("😀", "so 😀"),
            ("\U0001fae8", "newer \U0001fae8"),
            ("café", "CAFE\u0301"),
            ("straße", "STRASSE"),
            ("hello", "ｈｅｌｌｏ"),
        ],
    )
    def test_no_character_has_a_meaning(self, memory: Memory, query: str, content: str) -> None:
        _write(memory, {"content": content}, {"content": "unrelated"})
        assert _found(memory, query) == [content]

    def test_a_hyphenated_id_is_found_first(self, memory: Memory) -> None:  # M05
        _write(memory, {"content": "358 apples"}, {"content": "TCK-359 open"}, {"content": "TCK-358 done"})
        assert _found(memory, "TCK-358")[0] == "TCK-358 done"

    @pytest.mark.parametrize(
        "query", ["用", "用户", "喜欢简", "Python", "python编程", "編", "カタ", "한국", "𠮷"]
    )
    def test_chinese_japanese_and_korean_are_found_in_any_part(self, memory: Memory, query: str) -> None:
        content = "用户喜欢简短的回答，Python编程。編集カタカナ 한국어 𠮷野家"
        _write(memory, {"content": content}, {"content": "other"})
        assert _found(memory, query) == [content]

    def test_chinese_characters_apart_are_no_phrase(self, memory: Memory) -> None:
        _write(memory, {"content": "用户喜欢简短"})
        assert _found(memory, "用喜") == []

    def test_relevance_comes_first_and_scores_fall(self, memory: Memory) -> None:
        _write(
            memory,
            {"content": "one apple among very many other words that say nothing"},
            {"content": "apple apple pie"},
            *({"content": f"filler {number}"} for number in range(5)),
        )
        hits = memory.search({"query": "apple pie"}).unwrap()
        assert [hit["memory"]["content"][:5] for hit in hits] == ["apple", "one a"]
        assert hits[0]["score"] > hits[1]["score"] > 0

    def test_a_word_in_every_record_still_has_a_positive_score(self, memory: Memory) -> None:
        _write(memory, *({"content": "apple"} for _ in range(3)))
        assert all(hit["score"] > 0 for hit in memory.search({"query": "apple"}).unwrap())

    def test_a_search_without_a_limit_gives_ten(self, store: Store, memory: Memory) -> None:
        _write(memory, *({"content": f"apple * {number}"} for number in range(11)))
        assert len(store.search(MemorySearchInput(query="apple"))) == 10
        assert len(store.search(MemorySearchInput(query="*"))) == 10
        assert len(memory.search({"query": "apple", "limit": 3}).unwrap()) == 3

    def test_a_search_keeps_to_the_filter(self, memory: Memory) -> None:
        _write(
            memory,
            {"key": "a", "content": "apple *", "metadata": {"namespace": "n"}},
            {"key": "b", "content": "apple *", "metadata": {"namespace": "m"}},
            {"key": "c", "content": "apple *"},
        )
        for query in ("apple", "*"):
            for filter in ({"namespace": "m"}, {"key": "b"}, {"namespace": "m", "key": "b"}):
                hits = memory.search({"query": query, "filter": filter}).unwrap()
                assert [hit["memory"]["key"] for hit in hits] == ["b"]

    @pytest.mark.parametrize("query", ["", " ", "\n\t", "\u3000"])
    def test_a_blank_query_finds_nothing(self, memory: Memory, query: str) -> None:
        _write(memory, {"content": "a b \n\t"})
        assert _found(memory, query) == []

    @pytest.mark.parametrize(
        "request_",
        [
            {"query": 1},
            {"query": None},
            {"query": ["a"]},
            {"query": "a", "strategy": "vector"},
            {"query": "a", "options": {"k": 1}},
        ],
    )
    def test_what_search_cannot_do_is_refused(self, memory: Memory, request_: dict[str, Any]) -> None:
        assert _code(memory.search(request_)) == "INVALID_INPUT"

    def test_keyword_is_a_strategy_and_no_options_are_fine(self, memory: Memory) -> None:
        _write(memory, {"content": "apple"})
        assert len(memory.search({"query": "apple", "strategy": "keyword", "options": {}}).unwrap()) == 1

    @with_fixtures
    @given(text=st.text(st.characters(exclude_categories=["Cs"])))
    def test_any_text_can_be_searched_for_and_finds_itself(self, memory: Memory, text: str) -> None:
        key = str(uuid.uuid4())
        _write(memory, {"key": key, "content": text})
        hits = memory.search({"query": text, "filter": {"key": key}}).unwrap()
        assert [hit["memory"]["content"] for hit in hits] == ([text] if text.strip() else [])

    def test_a_long_query_is_searched_whole(self, memory: Memory) -> None:
        _write(memory, {"content": "needle"})
        query = " ".join(f"w{number}" for number in range(2_000)) + " needle"
        assert _found(memory, query) == ["needle"]

    # --- what else of the store shows in a search

    def test_a_search_sees_updates_and_deletes(self, memory: Memory) -> None:
        [changed, removed, _] = _write(memory, {"content": "apple"}, {"content": "x 2"}, {"content": "x 3"})
        memory.update({"memories": [{"id": changed["id"], "content": "carrot"}]}).unwrap()
        memory.delete({"ids": [removed["id"]]}).unwrap()
        assert _found(memory, "apple") == []
        assert _found(memory, "carrot") == ["carrot"]
        assert _found(memory, "x") == ["x 3"]

    def test_a_search_takes_a_namespace_without_wildcards(self, memory: Memory) -> None:  # M01
        names = ["john_doe", "john-doe", "john%", "JOHN_DOE", "john_doe\x00x"]
        _write(memory, *({"content": name, "metadata": {"namespace": name}} for name in names))
        for name in names:
            found = memory.search({"query": "john", "filter": {"namespace": name}}).unwrap()
            assert [hit["memory"]["content"] for hit in found] in ([name], [])

    @unknown_filters
    def test_a_search_refuses_an_unknown_filter(
        self, memory: Memory, filter: dict[str, Any], named: str
    ) -> None:
        _write(memory, {"content": "secret", "metadata": {"namespace": "other"}})
        result = memory.search({"query": "secret", "filter": filter})
        assert _code(result) == "INVALID_INPUT"
        assert named in _message(result)

    def test_many_threads_search_what_they_wrote(self, memory: Memory) -> None:
        def work(number: int) -> None:
            [record] = _write(memory, {"content": f"apple {number}"})
            assert memory.search({"query": f"apple {number}"}).unwrap()
            memory.update({"memories": [{"id": record["id"], "content": "pear"}]}).unwrap()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(64)))
        assert _found(memory, "apple") == []


class ChangeFeedContract:
    @pytest.fixture
    def memory(self, store: Store) -> Memory:
        return Memory(store)

    @pytest.fixture
    def feed(self, store: Store) -> ChangeFeed:
        assert isinstance(store, ChangeFeed)
        return store

    def test_nothing_has_changed_at_first(self, feed: ChangeFeed) -> None:
        page = feed.changes(feed.change_cursor(), limit=10)
        assert page.ids == ()
        assert page.is_last
        assert feed.changes(page.cursor, limit=10).ids == ()

    def test_each_write_update_and_delete_is_told_once(self, feed: ChangeFeed, memory: Memory) -> None:
        cursor = feed.change_cursor()
        [record] = _write(memory, {"content": 1})
        for change in (
            lambda: None,
            lambda: memory.update({"memories": [{"id": record["id"], "content": 2}]}).unwrap(),
            lambda: memory.update({"memories": [{"id": record["id"], "metadata": {"a": 1}}]}).unwrap(),
            lambda: memory.delete({"ids": [record["id"]]}).unwrap(),
        ):
            change()
            ids, cursor = _changed(feed, cursor)
            assert ids == [record["id"]]
            assert _changed(feed, cursor)[0] == []

    def test_changes_of_before_the_cursor_are_not_told(self, feed: ChangeFeed, memory: Memory) -> None:
        [kept, removed] = _write(memory, {"content": 1}, {"content": 2})
        memory.delete({"ids": [removed["id"]]}).unwrap()
        cursor = feed.change_cursor()
        assert _changed(feed, cursor)[0] == []
        memory.update({"memories": [{"id": kept["id"], "content": 3}]}).unwrap()
        assert _changed(feed, cursor)[0] == [kept["id"]]

    def test_changes_come_oldest_first_and_a_record_at_its_last(
        self, feed: ChangeFeed, memory: Memory
    ) -> None:
        cursor = feed.change_cursor()
        ids = [_write(memory, {"content": number})[0]["id"] for number in range(5)]
        memory.update({"memories": [{"id": ids[1], "content": "new"}]}).unwrap()
        memory.delete({"ids": [ids[0]]}).unwrap()
        memory.update({"memories": [{"id": ids[3], "content": "new"}]}).unwrap()
        assert _changed(feed, cursor)[0] == [ids[2], ids[4], ids[1], ids[0], ids[3]]

    def test_pages_go_on_where_the_one_before_ended(self, feed: ChangeFeed, memory: Memory) -> None:
        cursor = feed.change_cursor()
        batch = [record["id"] for record in _write(memory, *({"content": n} for n in range(7)))]
        memory.delete({"ids": batch[:3]}).unwrap()
        for limit in (1, 2, 3, 7, 8):
            ids, end = _changed(feed, cursor, limit)
            assert sorted(ids) == sorted(batch)
            assert set(ids[4:]) == set(batch[:3])
            assert _changed(feed, end)[0] == []

    def test_a_full_page_is_the_last_when_nothing_comes_after(self, feed: ChangeFeed, memory: Memory) -> None:
        cursor = feed.change_cursor()
        _write(memory, {"content": 1}, {"content": 2})
        assert not feed.changes(cursor, limit=1).is_last
        assert feed.changes(cursor, limit=2).is_last

    def test_a_deleted_record_stays_deleted_when_its_key_is_used_again(
        self, feed: ChangeFeed, memory: Memory
    ) -> None:
        [first] = _write(memory, {"key": "k", "content": 1})
        cursor = feed.change_cursor()
        memory.delete({"ids": [first["id"]]}).unwrap()
        [second] = _write(memory, {"key": "k", "content": 2})
        assert _changed(feed, cursor)[0] == [first["id"], second["id"]]
        assert memory.get({"ids": [first["id"], second["id"]]}).unwrap() == [second]

    def test_what_changes_nothing_is_no_change(self, feed: ChangeFeed, memory: Memory) -> None:
        [record] = _write(memory, {"key": "k", "content": 1})
        cursor = feed.change_cursor()
        _write(memory, {"key": "k", "content": 1})
        assert _code(memory.write({"memories": [{"content": 1}, {"key": "k", "content": 2}]}))
        patches = [{"id": record["id"], "content": 2}, {"id": "missing", "content": 2}]
        assert _code(memory.update({"memories": patches}))
        memory.delete({"ids": ["missing"]}).unwrap()
        memory.write({"memories": []})
        assert _changed(feed, cursor)[0] == []

    def test_a_record_beside_an_existing_one_is_told_alone(self, feed: ChangeFeed, memory: Memory) -> None:
        _write(memory, {"key": "k", "content": 1})
        cursor = feed.change_cursor()
        [_, fresh] = _write(memory, {"key": "k", "content": 1}, {"content": 2})
        assert _changed(feed, cursor)[0] == [fresh["id"]]

    def test_a_batch_of_many_is_told_whole(self, feed: ChangeFeed, memory: Memory) -> None:
        cursor = feed.change_cursor()
        ids = {record["id"] for record in _write(memory, *({"content": n} for n in range(1_100)))}
        assert set(_changed(feed, cursor, 400)[0]) == ids
        memory.update({"memories": [{"id": id, "content": 0} for id in ids]}).unwrap()
        cursor = feed.change_cursor()
        memory.delete({"ids": list(ids)}).unwrap()
        assert set(_changed(feed, cursor, 400)[0]) == ids

    @pytest.mark.parametrize("cursor", ["", "x", "é", "bnVsbA==", "W10=", "WyJhIiwxXQ==", "\ud800"])
    def test_what_is_no_cursor_is_refused(self, feed: ChangeFeed, cursor: str) -> None:
        with pytest.raises(MemoryNodeError, match="INVALID_INPUT"):
            feed.changes(cursor, limit=1)

    @with_fixtures
    @given(data=st.data())
    def test_any_text_in_a_cursor_is_taken_or_refused(self, feed: ChangeFeed, data: st.DataObject) -> None:
        parts = json.loads(base64.urlsafe_b64decode(feed.change_cursor()))
        place = data.draw(st.integers(0, len(parts) - 1))
        parts[place] = data.draw(
            st.integers(-1, 2**65) | texts | st.sampled_from([None, "1:1:", "9:1:", "5:9:7,6", "\ud800"])
        )
        cursor = base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()
        assert _refusal(feed, cursor) in (None, "INVALID_INPUT", "CURSOR_EXPIRED")

    def test_a_cursor_of_another_store_is_refused(self, feed: ChangeFeed) -> None:
        with InMemoryStore() as other, pytest.raises(MemoryNodeError, match="INVALID_INPUT"):
            feed.changes(other.change_cursor(), limit=1)

    @pytest.mark.parametrize("limit", [0, -1])
    def test_a_limit_below_one_is_refused(self, feed: ChangeFeed, limit: int) -> None:
        with pytest.raises(MemoryNodeError, match="INVALID_INPUT"):
            feed.changes(feed.change_cursor(), limit=limit)

    def test_a_cursor_expires_when_deletions_after_it_are_forgotten(
        self, feed: ChangeFeed, memory: Memory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_feed, "MAX_TOMBSTONES", 3)
        records = [record["id"] for record in _write(memory, *({"content": n} for n in range(8)))]
        cursors = []
        for id in records:
            cursors.append(feed.change_cursor())
            memory.delete({"ids": [id]}).unwrap()
        for cursor in cursors[:5]:
            with pytest.raises(MemoryNodeError, match="CURSOR_EXPIRED"):
                feed.changes(cursor, limit=1)
        for place, cursor in enumerate(cursors[5:], 5):
            assert _changed(feed, cursor)[0] == records[place:]

    def test_a_delete_forgets_at_most_twice_what_it_adds(
        self, feed: ChangeFeed, memory: Memory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = [record["id"] for record in _write(memory, *({"content": n} for n in range(14)))]
        cursors = []
        for place in range(10):
            cursors.append(feed.change_cursor())
            memory.delete({"ids": [ids[place]]}).unwrap()
        monkeypatch.setattr(_feed, "MAX_TOMBSTONES", 1)
        for step in range(1, 4):
            memory.delete({"ids": [ids[9 + step]]}).unwrap()
            with pytest.raises(MemoryNodeError, match="CURSOR_EXPIRED"):
                feed.changes(cursors[2 * step - 1], limit=1)
            assert feed.changes(cursors[2 * step], limit=1).ids == (ids[2 * step],)

    def test_deletes_that_forget_do_not_get_in_each_others_way(
        self, feed: ChangeFeed, memory: Memory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = [record["id"] for record in _write(memory, *({"content": n} for n in range(400)))]
        memory.delete({"ids": ids[:200]}).unwrap()
        monkeypatch.setattr(_feed, "MAX_TOMBSTONES", 5)
        cursor = feed.change_cursor()

        def delete(start: int) -> str:
            return memory.delete({"ids": ids[start : start + 10][:: 1 if start % 20 else -1]}).status

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(delete, range(200, 390, 5))) == {"success"}
        with pytest.raises(MemoryNodeError, match="CURSOR_EXPIRED"):
            feed.changes(cursor, limit=1)
        assert _changed(feed, feed.change_cursor())[0] == []

    @pytest.mark.parametrize("index", range(2))
    def test_a_call_for_changes_that_is_not_wanted_is_ended(self, feed: ChangeFeed, index: int) -> None:
        cursor = feed.change_cursor()
        cancel = Cancellation()
        cancel.cancel("changed my mind")
        for call, error in (
            (Call(cancel=cancel), InvocationCancelled),
            (Call(deadline=0.0), DeadlineExceeded),
        ):
            with pytest.raises(error):
                feed.changes(cursor, limit=1, call=call) if index else feed.change_cursor(call)

    def test_a_closed_store_tells_nothing(self, store: Store, feed: ChangeFeed) -> None:
        cursor = feed.change_cursor()
        store.close()
        with pytest.raises(MemoryNodeError, match="STORE_UNAVAILABLE"):
            feed.change_cursor()
        with pytest.raises(MemoryNodeError, match="STORE_UNAVAILABLE"):
            feed.changes(cursor, limit=1)

    def test_a_follower_beside_eight_writers_misses_nothing(self, feed: ChangeFeed, memory: Memory) -> None:
        follower = Follower(feed, memory)
        start = threading.Barrier(9)

        def change(seed: int) -> None:
            choice, own = random.Random(seed), [f"{seed}"]
            start.wait(WAIT)
            for _ in range(CHANGES):
                own = _changed_somehow(memory, choice, own)

        with ThreadPoolExecutor(8) as pool:
            writers = [pool.submit(change, seed) for seed in range(8)]
            start.wait(WAIT)
            while not all(writer.done() for writer in writers):
                follower.follow(limit=5)
            for writer in writers:
                writer.result(WAIT)
        follower.catch_up()
        assert follower.records == {record["id"]: record for record in _everything(memory)}


class KeptFeedContract:
    """The fixture `reopened` opens the same records anew."""

    def test_a_cursor_outlives_the_store_that_gave_it(
        self, store: Store, reopened: Callable[[], Store]
    ) -> None:
        assert isinstance(store, ChangeFeed)
        [first, second] = _write(Memory(store), {"content": 1}, {"content": 2})
        cursor = store.change_cursor()
        Memory(store).delete({"ids": [first["id"]]}).unwrap()
        store.close()
        with reopened() as again:
            assert isinstance(again, ChangeFeed)
            Memory(again).update({"memories": [{"id": second["id"], "content": 3}]}).unwrap()
            assert _changed(again, cursor)[0] == [first["id"], second["id"]]


class Follower:
    """Keeps a picture of a store's records by following its changes."""

    def __init__(self, feed: ChangeFeed, memory: Memory) -> None:
        self._feed = feed
        self._memory = memory
        self._cursor = feed.change_cursor()
        self.records = {record["id"]: record for record in _everything(memory)}

    def follow(self, limit: int = 100) -> bool:
        """Take one page in; tells whether it was the last."""
        page = self._feed.changes(self._cursor, limit=limit)
        assert len(set(page.ids)) == len(page.ids) <= limit
        now = {record["id"]: record for record in self._memory.get({"ids": list(page.ids)}).unwrap()}
        for id in page.ids:
            self.records.pop(id, None)
        self.records.update(now)
        self._cursor = page.cursor
        return page.is_last

    def catch_up(self) -> None:
        for _ in range(MOST_PAGES):
            if self.follow():
                return
        pytest.fail("the changes have no end")


def _changed(feed: ChangeFeed, cursor: str, limit: int = 1_000) -> tuple[list[str], str]:
    """Read on to the last page; gives the ids and the cursor after them."""
    ids: list[str] = []
    for _ in range(MOST_PAGES):
        page = feed.changes(cursor, limit=limit)
        assert len(page.ids) <= limit
        ids += page.ids
        cursor = page.cursor
        if page.is_last:
            return ids, cursor
    pytest.fail("the changes have no end")


def _refusal(feed: ChangeFeed, cursor: str) -> str | None:
    try:
        feed.changes(cursor, limit=1)
    except MemoryNodeError as refusal:
        return refusal.code
    return None


def _changed_somehow(memory: Memory, choice: random.Random, own: list[str]) -> list[str]:
    """Write, update or delete a few records; `own` names the writer, then its records."""
    name, *ids = own
    some = choice.sample(ids, min(len(ids), 3))
    what = choice.choice(("write", "update", "delete"))
    if what == "write" or not some:
        drafts = [
            {"content": choice.random(), "metadata": {"writer": name}} for _ in range(choice.randint(1, 5))
        ]
        return [*own, *(record["id"] for record in _write(memory, *drafts))]
    if what == "update":
        memory.update({"memories": [{"id": id, "content": choice.random()} for id in some]}).unwrap()
        return own
    memory.delete({"ids": some}).unwrap()
    return [id for id in own if id not in some]


def _everything(memory: Memory) -> list[dict[str, Any]]:
    return list(_pages(memory, {"limit": 1_000}))


def _write(memory: Memory, *drafts: dict[str, Any]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = memory.write({"memories": list(drafts)}).unwrap()
    return written


def _found(memory: Memory, query: str) -> list[Any]:
    return [hit["memory"]["content"] for hit in memory.search({"query": query}).unwrap()]


def _pages(memory: Memory, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    while True:
        page = memory.query(request).unwrap()
        assert len(page["items"]) <= request["limit"]
        yield from page["items"]
        if "nextCursor" not in page:
            return
        request = {**request, "cursor": page["nextCursor"]}


def _walk_amid_changes(memory: Memory, ranks: list[int | None], order: list[dict[str, str]]) -> None:
    """List in small pages while records come and go: 24 with these ranks, half of them there at first."""
    namespace = str(uuid.uuid4())
    drafts = iter([{"content": 1, "metadata": {"rank": rank, "namespace": namespace}} for rank in ranks])
    steady = [record["id"] for record in _write(memory, *islice(drafts, 12))]
    request = {"orderBy": order, "limit": 2, "filter": {"namespace": namespace}}
    page = memory.query(request).unwrap()
    seen = [item["id"] for item in page["items"]]
    while "nextCursor" in page:
        _write(memory, *islice(drafts, 1))
        memory.delete({"ids": [steady.pop()]}).unwrap()
        page = memory.query({**request, "cursor": page["nextCursor"]}).unwrap()
        seen += [item["id"] for item in page["items"]]
    assert len(seen) == len(set(seen))
    assert set(steady) <= set(seen)


def _code(result: NodeResult) -> str:
    assert result.error is not None, result
    return result.error.code


def _message(result: NodeResult) -> str:
    assert result.error is not None, result
    return result.error.message


def _listed(store: Store) -> Sequence[MemoryItem]:
    return MemoryQueryOutput.from_wire(store.query(MemoryQueryInput())).items


def _id(record: Any) -> str:
    id: str = record.id
    return id


def _content(record: Any) -> Any:
    return record.content


def _calls(store: Store, id: str) -> list[Callable[[Call], Any]]:
    return [
        lambda call: store.get(MemoryGetInput(ids=(id,)), call),
        lambda call: store.query(MemoryQueryInput(), call),
        lambda call: store.search(MemorySearchInput(query="x"), call),
        lambda call: store.write(MemoryWriteInput.from_wire({"memories": [{"content": 2}]}), call),
        lambda call: store.update(
            MemoryUpdateInput.from_wire({"memories": [{"id": id, "content": 2}]}), call
        ),
        lambda call: store.delete(MemoryDeleteInput(ids=(id,)), call),
    ]


def _oracle(field: str) -> Callable[[dict[str, Any]], Any]:
    """Give the order of values in Python's own terms."""

    def key(record: dict[str, Any]) -> tuple[int, Any]:
        if field == "id":
            return (0, record["id"])
        value = record.get("key") if field == "key" else record["metadata"].get(field)
        if value is None:
            return (0, 0)
        if isinstance(value, int | float):
            return (1, _double(value))
        if isinstance(value, str):
            return (2, value)
        return (3, encode_json(value).decode())

    return key


def _double(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
