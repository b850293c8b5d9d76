"""The six MEMORY nodes over stores that record what they are asked and answer what they are told."""

import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ditto_tasks import Cancellation, DittoConfig, InvalidDefinition, NodeResult, Runtime
from ditto_tasks.config.model import MemoryWorker, Workers
from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import DeadlineExceeded, MemoryNodeError
from ditto_tasks.contracts.memory import (
    MemoryDeleteOutput,
    MemoryGetInput,
    MemoryHit,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
)
from ditto_tasks.nodes import Memory
from ditto_tasks.nodes.boundary import new_execution_id
from workers.memory import memory_worker

A = {"id": "a", "key": "ka", "content": 1}
B: dict[str, Any] = {"id": "b", "key": "kb", "content": None, "metadata": {}}
SECRET = "password=secret"

INPUTS: dict[str, Any] = {
    "MEMORY.GET": {"ids": ["a"]},
    "MEMORY.QUERY": {},
    "MEMORY.SEARCH": {"query": "text"},
    "MEMORY.WRITE": {"memories": [{"content": 1}]},
    "MEMORY.UPDATE": {"memories": [{"id": "a", "content": 1}]},
    "MEMORY.DELETE": {"ids": ["a"]},
}
NO_INPUTS: list[Any] = [None, [], "text", MemoryDeleteOutput(deleted=())]
NO_ANSWERS: list[Any] = [None, 1, "text", b"", {"x": 1}, object()]
NO_ITEMS: list[Any] = [None, 1, {"content": 1}, {"id": "a"}]
NO_SCORES: list[dict[str, Any]] = [{"score": score} for score in (float("nan"), True, "1")]
NO_RECORDS: list[dict[str, Any]] = [
    *({"id": id} for id in ("", 1)),
    *({"key": key} for key in ("", None)),
    {"metadata": []},
    {"metadata": None},
    *({"content": content} for content in (float("nan"), {1})),
]
every_node = pytest.mark.parametrize("node", INPUTS)


class RecordingStore:
    """Answers every call with the same answer, or raises it, and notes what it was asked."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.seen: list[Call] = []

    def _answered(self, operation: str, request: Any, call: Call) -> Any:
        self.calls.append((operation, request.to_wire()))
        self.seen.append(call)
        answer = self.answer() if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def get(self, request: Any, call: Call = NO_CALL) -> Any:
        return self._answered("get", request, call)

    def query(self, request: Any, call: Call = NO_CALL) -> Any:
        return self._answered("query", request, call)

    def write(self, request: Any, call: Call = NO_CALL) -> Any:
        return self._answered("write", request, call)

    def update(self, request: Any, call: Call = NO_CALL) -> Any:
        return self._answered("update", request, call)

    def delete(self, request: Any, call: Call = NO_CALL) -> Any:
        return self._answered("delete", request, call)


class SearchingStore(RecordingStore):
    def search(self, request: Any, call: Call = NO_CALL) -> Any:
        return self._answered("search", request, call)


def failure(result: NodeResult) -> tuple[str, str]:
    assert result.error is not None
    assert "output" not in result.to_wire()
    return result.status, result.error.code


def limits_of(store: RecordingStore) -> list[int]:
    return [request["limit"] for _, request in store.calls]


@pytest.mark.parametrize(
    ("node", "input"),
    [
        ("MEMORY.GET", {}),
        ("MEMORY.GET", {"ids": [""]}),
        *(("MEMORY.QUERY", {"limit": limit}) for limit in (0, None, 10_001, 1.5)),
        ("MEMORY.QUERY", {"orderBy": [{"field": "id", "direction": "sideways"}]}),
        ("MEMORY.SEARCH", {}),
        ("MEMORY.WRITE", {"memories": [{}]}),
        ("MEMORY.WRITE", {"memories": [{"content": None, "metadata": []}]}),
        ("MEMORY.UPDATE", {"memories": [{"id": "a"}]}),
        ("MEMORY.UPDATE", {"memories": [{"id": "a", "content": 1, "key": "new"}]}),
        ("MEMORY.UPDATE", {"memories": [{"id": "a", "content": 1}, {"id": "a", "content": 2}]}),
        ("MEMORY.DELETE", {"ids": [1]}),
        *((node, bad) for node in INPUTS for bad in NO_INPUTS),
    ],
)
def test_an_invalid_input_fails_before_the_store_is_asked(node: str, input: Any) -> None:
    store = SearchingStore()
    assert failure(Memory(store).execute(node, input)) == ("failed", "INVALID_INPUT")
    assert store.calls == []


def test_a_name_that_is_no_memory_node() -> None:
    assert failure(Memory(RecordingStore()).execute("MEMORY.FORGET", {})) == ("failed", "UNKNOWN_NODE")


def test_every_call_has_an_execution_id_of_its_own() -> None:
    memory = Memory(RecordingStore([]))
    results = [memory.get({"ids": ["a"]}) for _ in range(3)]
    assert len({result.execution_id for result in results}) == 3
    assert {result.node for result in results} == {"MEMORY.GET"}


def test_an_execution_id_is_a_random_uuid_in_its_usual_form() -> None:
    texts = [new_execution_id() for _ in range(100)]
    ids = [uuid.UUID(text) for text in texts]
    assert [str(id) for id in ids] == texts
    assert {(id.version, id.variant) for id in ids} == {(4, uuid.RFC_4122)}


def test_the_six_methods_call_the_six_nodes() -> None:
    memory = Memory(SearchingStore([]))
    methods = [memory.get, memory.query, memory.search, memory.write, memory.update, memory.delete]
    assert [method(None).node for method in methods] == list(memory.nodes) == list(INPUTS)


class TestGet:
    def test_a_single_space_is_an_id(self) -> None:
        store = RecordingStore([])
        assert Memory(store).get({"ids": [" "]}).unwrap() == []
        assert store.calls == [("get", {"ids": [" "], "keys": []})]

    @pytest.mark.parametrize("input", [{"ids": []}, {"keys": []}, {"ids": [], "keys": []}])
    def test_nothing_asked_is_nothing_found_without_the_store(self, input: Any) -> None:
        store = RecordingStore()
        assert Memory(store).get(input).unwrap() == []
        assert store.calls == []

    def test_ids_and_keys_are_asked_once_and_answered_in_their_order(self) -> None:
        store = RecordingStore([B, A])
        result = Memory(store).get({"ids": ["a", "a", "missing"], "keys": ["kb", "ka", "kb"]})
        assert store.calls == [("get", {"ids": ["a", "missing"], "keys": ["kb", "ka"]})]
        assert result.unwrap() == [A, B]

    def test_a_typed_input_and_typed_answers_are_as_good(self) -> None:
        store = RecordingStore((MemoryItem.from_wire(B), MemoryItem.from_wire(A)))
        assert Memory(store).get(MemoryGetInput(ids=("b", "a"))).unwrap() == [B, A]

    def test_a_record_that_nobody_asked_for_is_dropped(self) -> None:
        extra = {"id": "x", "key": "kx", "content": 2}
        assert Memory(RecordingStore([extra, A])).get({"keys": ["ka"]}).unwrap() == [A]

    def test_an_unknown_field_of_a_record_is_dropped(self) -> None:
        assert Memory(RecordingStore([{**A, "secret": 1}])).get({"ids": ["a"]}).unwrap() == [A]


class TestLimits:
    @pytest.fixture
    def store(self) -> RecordingStore:
        """Answers queries and searches with nothing."""
        store = SearchingStore()
        store.answer = lambda: {"items": []} if store.calls[-1][0] == "query" else []
        return store

    def test_the_constructor_comes_before_the_call_and_the_request_before_both(
        self, store: RecordingStore
    ) -> None:
        config = DittoConfig(workers=Workers(memory=MemoryWorker(query_limit=3, search_limit=2)))
        with Runtime(config, workers=[memory_worker(store, defaults={"queryLimit": 4})]) as runtime:
            for node, input in [
                ("MEMORY.QUERY", {}),
                ("MEMORY.SEARCH", {"query": "a"}),
                ("MEMORY.QUERY", {"limit": 7}),
                ("MEMORY.QUERY", {}),
            ]:
                runtime.invoke(node, input).unwrap()
        assert limits_of(store) == [4, 2, 7, 4]

    def test_the_constants_come_last(self, store: RecordingStore) -> None:
        memory = Memory(store)
        memory.query({})
        memory.search({"query": 1})
        assert limits_of(store) == [100, 10]

    def test_the_direct_call_takes_limits_of_its_own(self) -> None:
        store = SearchingStore({"items": []})
        memory = Memory(store)
        memory.execute("MEMORY.QUERY", {}, defaults={"queryLimit": 6})
        assert limits_of(store) == [6]
        assert failure(memory.execute("MEMORY.QUERY", {}, defaults={"queryLimit": 0})) == (
            "failed",
            "INVALID_INPUT",
        )

    def test_the_defaults_are_copied(self) -> None:
        store, defaults = SearchingStore({"items": []}), {"queryLimit": 4}
        memory = Memory(store, defaults=defaults)
        defaults["queryLimit"] = 9
        memory.query({})
        assert limits_of(store) == [4]

    @pytest.mark.parametrize("limit", [0, 10_001, 1.5, True, None, "4"])
    def test_a_default_out_of_range_is_refused_where_it_is_given(self, limit: Any) -> None:
        with pytest.raises(InvalidDefinition, match="memory defaults: queryLimit"):
            Memory(RecordingStore(), defaults={"queryLimit": limit})

    def test_a_request_reaches_the_store_as_it_is_but_for_the_limit(self) -> None:
        store = SearchingStore([])
        input = {"query": {"vector": [1]}, "strategy": "Own", "filter": {"a": None}, "options": {"x": [1]}}
        Memory(store).search(input).unwrap()
        assert store.calls == [("search", {**input, "limit": 10})]
        assert "limit" not in input


class TestSearch:
    def test_without_any_search_it_is_unavailable_and_the_rest_works(self) -> None:
        store = RecordingStore({"items": []})
        memory = Memory(store)
        assert failure(memory.search({"query": "a"})) == ("failed", "SEARCH_UNAVAILABLE")
        assert failure(memory.search({})) == ("failed", "INVALID_INPUT")
        assert memory.query({}).unwrap() == {"items": []}

    def test_a_search_of_its_own_wins_over_the_stores(self) -> None:
        store, search = SearchingStore([]), SearchingStore([{"memory": A}])
        assert Memory(store, search=search).search({"query": "a"}).unwrap() == [{"memory": A}]
        assert store.calls == []

    def test_hits_keep_their_order_whatever_their_scores(self) -> None:
        hits = [{"memory": A, "score": -3}, {"memory": B, "score": 12.5, "metadata": {"why": "text"}}]
        assert Memory(SearchingStore(hits)).search({"query": "a"}).unwrap() == hits

    def test_typed_hits_are_as_good(self) -> None:
        hit = MemoryHit(memory=MemoryItem(id="a", content=1), score=0.5)
        assert Memory(SearchingStore([hit])).search({"query": None}).unwrap() == [
            {"memory": {"id": "a", "content": 1}, "score": 0.5}
        ]


class TestWriting:
    def test_null_is_a_content(self) -> None:
        item = {"id": "n", "content": None}
        store = RecordingStore([item])
        assert Memory(store).write({"memories": [{"content": None}]}).unwrap() == [item]
        assert store.calls == [("write", {"memories": [{"content": None}]})]

    def test_nothing_to_do_is_done_without_the_store(self) -> None:
        store = RecordingStore()
        memory = Memory(store)
        assert memory.write({"memories": []}).unwrap() == []
        assert memory.update({"memories": []}).unwrap() == []
        assert memory.delete({"ids": []}).unwrap() == {"deleted": []}
        assert store.calls == []

    def test_empty_metadata_is_given_on_absent_metadata_is_not(self) -> None:
        store = RecordingStore([A, B])
        patches = [{"id": "a", "metadata": {}}, {"id": "b", "content": 2}]
        Memory(store).update({"memories": patches}).unwrap()
        assert store.calls == [("update", {"memories": patches})]

    def test_each_id_is_deleted_once(self) -> None:
        store = RecordingStore({"deleted": ["b"]})
        assert Memory(store).delete({"ids": ["a", "b", "a"]}).unwrap() == {"deleted": ["b"]}
        assert store.calls == [("delete", {"ids": ["a", "b"]})]

    def test_a_missing_record_is_the_stores_to_tell(self) -> None:
        store = RecordingStore(MemoryNodeError("NOT_FOUND", "there is no record 'a'"))
        result = Memory(store).update(INPUTS["MEMORY.UPDATE"])
        assert failure(result) == ("failed", "NOT_FOUND")
        assert result.error is not None
        assert result.error.message == "there is no record 'a'"


@pytest.mark.parametrize(
    ("node", "input", "answer"),
    [
        *((node, INPUTS[node], bad) for node in INPUTS for bad in NO_ANSWERS),
        *((node, INPUTS[node], [bad]) for node in INPUTS for bad in NO_ITEMS),
        *(
            (node, INPUTS[node], [{**A, **bad}])
            for node in ("MEMORY.GET", "MEMORY.WRITE", "MEMORY.UPDATE")
            for bad in NO_RECORDS
        ),
        ("MEMORY.GET", {"ids": ["a"]}, [A, A]),
        ("MEMORY.GET", {"ids": ["a"]}, iter([A])),
        ("MEMORY.QUERY", {}, [A]),
        ("MEMORY.QUERY", {}, {"items": [A, A]}),
        ("MEMORY.QUERY", {"limit": 1}, {"items": [A, B]}),
        ("MEMORY.QUERY", {}, {"items": [A], "nextCursor": ""}),
        ("MEMORY.QUERY", {}, {"items": [A], "nextCursor": None}),
        ("MEMORY.QUERY", {}, {"items": None}),
        ("MEMORY.SEARCH", {"query": 1}, [{"memory": A}, {"memory": A, "score": 1}]),
        ("MEMORY.SEARCH", {"query": 1, "limit": 1}, [{"memory": A}, {"memory": B}]),
        *(("MEMORY.SEARCH", {"query": 1}, [{"memory": A, **bad}]) for bad in [*NO_SCORES, {"metadata": []}]),
        ("MEMORY.WRITE", {"memories": [{"content": 1}]}, []),
        ("MEMORY.WRITE", {"memories": [{"content": 1}]}, [A, B]),
        ("MEMORY.WRITE", {"memories": [{"content": 1}, {"content": 1}]}, [A, A]),
        ("MEMORY.UPDATE", {"memories": [{"id": "a", "content": 1}]}, []),
        ("MEMORY.UPDATE", {"memories": [{"id": "a", "content": 1}]}, [B]),
        ("MEMORY.DELETE", {"ids": ["a"]}, {"deleted": ["x"]}),
        ("MEMORY.DELETE", {"ids": ["a"]}, {"deleted": ["a", "a"]}),
        ("MEMORY.DELETE", {"ids": ["a"]}, {"deleted": [""]}),
        ("MEMORY.DELETE", {"ids": ["a"]}, ["a"]),
    ],
)
def test_an_answer_that_breaks_the_contract_fails_the_call(node: str, input: Any, answer: Any) -> None:
    result = Memory(SearchingStore(answer)).execute(node, input)
    assert failure(result) == ("failed", "INVALID_BACKEND_OUTPUT")
    assert result.error is not None
    assert result.error.message == "MEMORY backend returned an invalid result"


@every_node
@pytest.mark.parametrize("error", [RuntimeError(SECRET), KeyError(SECRET), OSError(5, SECRET)], ids=type)
def test_what_a_store_raises_by_accident_is_hidden(
    node: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        result = Memory(SearchingStore(error)).execute(node, INPUTS[node])
    assert failure(result) == ("failed", "MEMORY_BACKEND_ERROR")
    assert result.error is not None
    assert result.error.message == "Memory backend operation failed"
    assert SECRET not in result.model_dump_json()
    assert SECRET not in caplog.text
    [record] = caplog.records
    assert result.execution_id in record.getMessage()
    assert record.exc_info is None


def test_what_was_hidden_can_be_had_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        Memory(RecordingStore(RuntimeError(SECRET))).get({"ids": ["a"]})
    assert SECRET in caplog.text


def test_an_invalid_answer_is_not_logged_with_its_content(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Memory(RecordingStore([{**A, "key": {"token": SECRET}}])).get({"ids": ["a"]})
    assert SECRET not in caplog.text


@every_node
def test_a_token_set_before_the_call_keeps_it_from_the_store(node: str) -> None:
    store, token = SearchingStore(), Cancellation()
    token.cancel("not wanted")
    result = Memory(store).execute(node, INPUTS[node], cancel=token)
    assert failure(result) == ("cancelled", "MEMORY_CANCELLED")
    assert result.error is not None
    assert result.error.message == "not wanted"
    assert store.calls == []


ANSWERS: dict[str, Callable[[], Any]] = {
    "a good answer": lambda: [A],
    "a bad answer": lambda: None,
    "an error of its own": lambda: MemoryNodeError("NOT_FOUND", "gone"),
    "an accident": lambda: RuntimeError(SECRET),
    "the deadline": lambda: DeadlineExceeded("late"),
}


@every_node
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_a_token_set_while_the_store_works_ends_the_call_as_cancelled(
    node: str, answer: Callable[[], Any]
) -> None:
    token = Cancellation()

    def cancel_and_answer() -> Any:
        token.cancel("changed my mind")
        return answer()

    result = Memory(SearchingStore(cancel_and_answer)).execute(node, INPUTS[node], cancel=token)
    assert failure(result) == ("cancelled", "MEMORY_CANCELLED")


def test_the_token_and_the_runtime_reach_the_store() -> None:
    store, token = RecordingStore([]), Cancellation()
    with Runtime() as runtime:
        result = Memory(store).execute("MEMORY.GET", {"ids": ["a"]}, cancel=token, runtime=runtime)
        [call] = store.seen
        assert call.cancel is token
        assert call.runtime is runtime
        assert call.execution_id == result.execution_id


def test_a_store_that_notices_the_deadline_gives_a_timeout() -> None:
    result = Memory(RecordingStore(DeadlineExceeded("late"))).get({"ids": ["a"]})
    assert failure(result) == ("timeout", "TIMEOUT")


def test_an_interrupt_is_nobodys_to_hide() -> None:
    with pytest.raises(KeyboardInterrupt):
        Memory(RecordingStore(KeyboardInterrupt())).get({"ids": ["a"]})


def test_a_typed_page_is_as_good() -> None:
    page = MemoryQueryOutput(items=(MemoryItem(id="a", content=1),), next_cursor="c")
    result = Memory(RecordingStore(page)).query(MemoryQueryInput(limit=1))
    assert result.unwrap() == {"items": [{"id": "a", "content": 1}], "nextCursor": "c"}
