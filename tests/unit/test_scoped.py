from collections.abc import Iterator
from typing import Any

import pytest

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.memory import (
    MemoryDeleteInput,
    MemoryDeleteOutput,
    MemoryGetInput,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemorySearchProvider,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.nodes.memory import Memory
from providers.stores import Store, open_store
from providers.stores.scoped import ScopedSearchStore, ScopedStore, scoped

OWN = "team-a:alice"
FOREIGN = "team-b:bob"


class Leaky:
    """A store without search that answers everything with one foreign record, and notes the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.record = MemoryItem(
            id="f", key=f"{FOREIGN}:k", content="secret", metadata={"namespace": FOREIGN}
        )

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> list[MemoryItem]:
        self.calls.append("get")
        return [self.record]

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        self.calls.append("query")
        return MemoryQueryOutput(items=(self.record,))

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> list[MemoryItem]:
        self.calls.append("write")
        return [self.record]

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> list[MemoryItem]:
        self.calls.append("update")
        return [self.record]

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        self.calls.append("delete")
        return MemoryDeleteOutput(deleted=request.ids)


class LeakySearch(Leaky):
    def search(self, request: Any, call: Call = NO_CALL) -> list[dict[str, Any]]:
        self.calls.append("search")
        return [{"memory": self.record.to_wire(), "score": 1.0}]


@pytest.fixture(params=["memory://", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Store]:
    url = request.param if request.param == "memory://" else f"sqlite:///{tmp_path}/memory.db"
    with open_store(url) as store:
        yield store


@pytest.fixture
def everything(store: Store) -> Memory:
    return Memory(store)


@pytest.fixture
def memory(store: Store) -> Memory:
    return Memory(scoped(store, OWN))


@pytest.fixture
def foreign(everything: Memory) -> dict[str, Any]:
    draft = {"key": f"{FOREIGN}:k", "content": "apple", "metadata": {"namespace": FOREIGN}}
    [record] = everything.write({"memories": [draft]}).unwrap()
    return dict(record)


@pytest.mark.parametrize(
    "namespace", ["", "a", "a:", ":b", "a:b:c", "a:b\n", "a b:c", "a:é", "a:b%", "a.b:c", "a:b "]
)
def test_a_namespace_has_two_plain_parts(store: Store, namespace: str) -> None:
    with pytest.raises(InvalidDefinition, match="part:part"):
        scoped(store, namespace)


def test_written_records_carry_the_namespace(memory: Memory, everything: Memory) -> None:
    drafts = [
        {"key": f"{OWN}:a", "content": 1},
        {"key": f"{OWN}:b", "content": 2, "metadata": {"kind": "k"}},
        {"key": f"{OWN}:c", "content": 3, "metadata": {"namespace": OWN}},
    ]
    written = memory.write({"memories": drafts}).unwrap()
    assert [record["metadata"] for record in written] == [
        {"namespace": OWN},
        {"kind": "k", "namespace": OWN},
        {"namespace": OWN},
    ]
    keys = [draft["key"] for draft in drafts]
    assert memory.get({"keys": keys}).unwrap() == everything.get({"keys": keys}).unwrap() == written


@pytest.mark.parametrize(
    "draft",
    [
        {"content": 1},
        {"key": "k", "content": 1},
        {"key": OWN, "content": 1},
        {"key": f"{OWN}x:k", "content": 1},
        {"key": f"{FOREIGN}:k", "content": 1},
        {"key": f"{OWN}:k", "content": 1, "metadata": {"namespace": FOREIGN}},
        {"key": f"{OWN}:k", "content": 1, "metadata": {"namespace": None}},
    ],
)
def test_a_write_outside_the_scope_is_denied_whole(
    memory: Memory, everything: Memory, draft: dict[str, Any]
) -> None:
    good = {"key": f"{OWN}:good", "content": 1}
    assert _code(memory.write({"memories": [good, draft]})) == "SCOPE_DENIED"
    assert everything.query({}).unwrap() == {"items": []}


def test_foreign_ids_are_missing_and_foreign_keys_denied(memory: Memory, foreign: dict[str, Any]) -> None:
    assert memory.get({"ids": [foreign["id"]]}).unwrap() == []
    assert _code(memory.get({"keys": [foreign["key"]]})) == "SCOPE_DENIED"


def test_queries_and_searches_find_own_records(memory: Memory, foreign: dict[str, Any]) -> None:
    [own] = memory.write({"memories": [{"key": f"{OWN}:k", "content": "apple"}]}).unwrap()
    for filter in ({}, {"namespace": OWN}, {"key": own["key"]}):
        assert memory.query({"filter": filter}).unwrap() == {"items": [own]}
        found = memory.search({"query": "apple", "filter": filter}).unwrap()
        assert [hit["memory"] for hit in found] == [own]
    assert memory.query({"filter": {"key": foreign["key"]}}).unwrap() == {"items": []}


def test_pages_go_on_within_the_scope(memory: Memory, foreign: dict[str, Any]) -> None:
    drafts = [{"key": f"{OWN}:{number}", "content": number} for number in range(3)]
    memory.write({"memories": drafts}).unwrap()
    first = memory.query({"limit": 2, "orderBy": [{"field": "key"}]}).unwrap()
    request = {"limit": 2, "orderBy": [{"field": "key"}], "cursor": first["nextCursor"]}
    second = memory.query(request).unwrap()
    assert [item["content"] for item in first["items"] + second["items"]] == [0, 1, 2]


def test_an_update_keeps_the_namespace(memory: Memory) -> None:
    draft = {"key": f"{OWN}:k", "content": 1, "metadata": {"kind": "k"}}
    [own] = memory.write({"memories": [draft]}).unwrap()

    def updated(**fields: Any) -> Any:
        return memory.update({"memories": [{"id": own["id"], **fields}]}).unwrap()[0]

    assert updated(content=2)["metadata"] == {"kind": "k", "namespace": OWN}
    assert updated(metadata={})["metadata"] == {"namespace": OWN}
    assert updated(metadata={"namespace": FOREIGN, "a": 1})["metadata"] == {"namespace": OWN, "a": 1}


def test_foreign_records_are_neither_updated_nor_deleted(
    memory: Memory, everything: Memory, foreign: dict[str, Any]
) -> None:
    [own] = memory.write({"memories": [{"key": f"{OWN}:k", "content": 1}]}).unwrap()
    patches = [{"id": own["id"], "content": 2}, {"id": foreign["id"], "content": 2}]
    assert _code(memory.update({"memories": patches})) == "NOT_FOUND"
    assert memory.delete({"ids": [foreign["id"]]}).unwrap() == {"deleted": []}
    assert everything.get({"ids": [own["id"], foreign["id"]]}).unwrap() == [own, foreign]
    assert memory.delete({"ids": [foreign["id"], own["id"]]}).unwrap() == {"deleted": [own["id"]]}


def test_a_record_needs_both_namespace_and_prefix(memory: Memory, everything: Memory) -> None:
    drafts = [
        {"key": f"{OWN}:k", "content": 1, "metadata": {"namespace": FOREIGN}},
        {"key": "k", "content": 1, "metadata": {"namespace": OWN}},
        {"content": 1, "metadata": {"namespace": OWN}},
        {"key": f"{OWN}:bare", "content": 1},
    ]
    written = everything.write({"memories": drafts}).unwrap()
    assert memory.get({"ids": [record["id"] for record in written]}).unwrap() == []
    assert _code(memory.query({})) == "SCOPE_DENIED"


def test_what_is_denied_never_reaches_the_store() -> None:
    leaky = LeakySearch()
    memory = Memory(scoped(leaky, OWN))
    foreign = {"namespace": FOREIGN}
    denied = [
        memory.get({"keys": [f"{OWN}:k", f"{FOREIGN}:k"]}),
        memory.query({"filter": foreign}),
        memory.query({"filter": {"namespace": 1}}),
        memory.search({"query": "x", "filter": foreign}),
        memory.write({"memories": [{"content": 1}]}),
    ]
    assert [_code(result) for result in denied] == ["SCOPE_DENIED"] * 5
    assert leaky.calls == []


def test_a_store_that_leaks_is_stopped() -> None:
    leaky = LeakySearch()
    memory = Memory(scoped(leaky, OWN))
    assert memory.get({"ids": ["f"]}).unwrap() == []
    assert _code(memory.query({})) == "SCOPE_DENIED"
    assert _code(memory.search({"query": "x"})) == "SCOPE_DENIED"
    assert _code(memory.update({"memories": [{"id": "f", "content": 1}]})) == "NOT_FOUND"
    assert memory.delete({"ids": ["f"]}).unwrap() == {"deleted": []}
    assert leaky.calls == ["get", "query", "search", "get", "get"]


def test_a_scope_searches_only_if_its_store_does() -> None:
    assert not isinstance(scoped(Leaky(), OWN), MemorySearchProvider)
    assert isinstance(scoped(LeakySearch(), OWN), MemorySearchProvider)
    assert not isinstance(ScopedStore(LeakySearch(), OWN), MemorySearchProvider)
    assert _code(Memory(scoped(Leaky(), OWN)).search({"query": "x"})) == "SEARCH_UNAVAILABLE"
    with pytest.raises(InvalidDefinition, match="no search"):
        ScopedSearchStore(Leaky(), OWN)


def _code(result: NodeResult) -> str:
    assert result.error is not None, result
    return result.error.code
