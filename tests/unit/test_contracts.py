"""The rules that inputs are held to, as the wire and as typed models."""

import copy
import pickle
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from ditto_tasks.contracts import errors
from ditto_tasks.contracts.base import Contract, changed, describe, is_number, trusted
from ditto_tasks.contracts.catalog import CAPABILITIES, NODE_SPECS
from ditto_tasks.contracts.memory import (
    MemoryDefaults,
    MemoryDeleteInput,
    MemoryDraft,
    MemoryGetInput,
    MemoryHit,
    MemoryItem,
    MemoryOrder,
    MemoryPatch,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemorySearchInput,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.node import NODE_NAME, NodeFailure, NodeResult
from ditto_tasks.contracts.retrieval import RetrievalTarget
from ditto_tasks.queues import capability_nodes, check_node_name, queue_name

NAN = float("nan")
ITEM = {"id": "a", "content": 1}
NO_OBJECTS: list[Any] = [None, [], "text", 1, True, b"{}", MemoryDraft(content=1)]

ACCEPTED: list[tuple[type[Contract], Any]] = [
    (MemoryGetInput, {"ids": []}),
    (MemoryGetInput, {"keys": ["k"]}),
    (MemoryGetInput, {"ids": [" "], "keys": []}),
    (MemoryGetInput, {"ids": ("a", "b")}),
    (MemoryGetInput, {"ids": ["a\n"], "unknown": 1}),
    (MemoryQueryInput, {}),
    (MemoryQueryInput, {"limit": 1}),
    (MemoryQueryInput, {"limit": 10_000}),
    (MemoryQueryInput, {"limit": 10.0}),
    (MemoryQueryInput, {"filter": {}, "cursor": " ", "orderBy": []}),
    (MemoryQueryInput, {"filter": {"a": [None, {"b": True}]}}),
    (MemoryQueryInput, {"orderBy": [{"field": "id"}, {"field": " ", "direction": "desc"}]}),
    (MemorySearchInput, {"query": None}),
    (MemorySearchInput, {"query": ""}),
    (MemorySearchInput, {"query": [0.1, -2], "strategy": " ", "options": {}, "filter": {}, "limit": 7.0}),
    (MemoryWriteInput, {"memories": []}),
    (MemoryWriteInput, {"memories": [{"content": None}]}),
    (MemoryWriteInput, {"memories": [{"content": 0, "key": " ", "metadata": {}}, {"content": False}]}),
    (MemoryUpdateInput, {"memories": []}),
    (MemoryUpdateInput, {"memories": [{"id": "a", "content": None}, {"id": "b", "metadata": {}}]}),
    (MemoryDeleteInput, {"ids": []}),
    (MemoryDeleteInput, {"ids": ["a", "a"]}),
]

REFUSED: list[tuple[type[Contract], Any, str]] = [
    *(
        (contract, value, "input: ")
        for contract in (
            MemoryGetInput,
            MemoryQueryInput,
            MemorySearchInput,
            MemoryWriteInput,
            MemoryUpdateInput,
            MemoryDeleteInput,
        )
        for value in NO_OBJECTS
    ),
    (MemoryGetInput, {}, "input: needs 'ids' or 'keys'"),
    (MemoryGetInput, {"ids": None}, "ids: must be left out or given a value"),
    (MemoryGetInput, {"ids": "a"}, "ids: must be a list"),
    (MemoryGetInput, {"ids": {"a": 1}}, "ids: must be a list"),
    (MemoryGetInput, {"ids": [""]}, "ids[0]: "),
    (MemoryGetInput, {"ids": ["a", 1]}, "ids[1]: "),
    (MemoryGetInput, {"ids": [True]}, "ids[0]: "),
    (MemoryGetInput, {"keys": ["k", None]}, "keys[1]: "),
    (MemoryGetInput, {"ids": ["\ud800"]}, "ids[0]: "),
    (MemoryDeleteInput, {}, "ids: "),
    (MemoryDeleteInput, {"ids": None}, "ids: must be a list"),
    (MemoryDeleteInput, {"ids": [1]}, "ids[0]: "),
    (MemoryDeleteInput, {"ids": [""]}, "ids[0]: "),
    (MemoryQueryInput, {"limit": 0}, "limit: "),
    (MemoryQueryInput, {"limit": -1}, "limit: "),
    (MemoryQueryInput, {"limit": 10_001}, "limit: "),
    (MemoryQueryInput, {"limit": 1.5}, "limit: must be an integer"),
    (MemoryQueryInput, {"limit": "5"}, "limit: must be an integer"),
    (MemoryQueryInput, {"limit": True}, "limit: must be an integer"),
    (MemoryQueryInput, {"limit": NAN}, "limit: must be an integer"),
    (MemoryQueryInput, {"limit": float("inf")}, "limit: must be an integer"),
    (MemoryQueryInput, {"limit": 1e300}, "limit: "),
    (MemoryQueryInput, {"limit": 10**5000}, "limit: "),
    (MemoryQueryInput, {"limit": None}, "limit: must be left out or given a value"),
    (MemoryQueryInput, {"filter": None}, "filter: must be left out or given a value"),
    (MemoryQueryInput, {"filter": []}, "filter: must be a JSON object"),
    (MemoryQueryInput, {"filter": {"a": NAN}}, "filter: a is nan"),
    (MemoryQueryInput, {"cursor": ""}, "cursor: "),
    (MemoryQueryInput, {"cursor": 1}, "cursor: "),
    (MemoryQueryInput, {"cursor": None}, "cursor: must be left out"),
    (MemoryQueryInput, {"orderBy": {"field": "id"}}, "orderBy: must be a list"),
    (MemoryQueryInput, {"orderBy": [{"field": ""}]}, "orderBy[0].field: "),
    (MemoryQueryInput, {"orderBy": [{"direction": "asc"}]}, "orderBy[0].field: "),
    (MemoryQueryInput, {"orderBy": [{"field": "id", "direction": "sideways"}]}, "orderBy[0].direction: "),
    (MemoryQueryInput, {"orderBy": [{"field": "id", "direction": None}]}, "orderBy[0].direction: "),
    (MemoryQueryInput, {"orderBy": ["id"]}, "orderBy[0]: "),
    (MemorySearchInput, {}, "query: "),
    (MemorySearchInput, {"query": {"vector": [NAN]}}, "query: vector[0] is nan"),
    (MemorySearchInput, {"query": "a", "strategy": ""}, "strategy: "),
    (MemorySearchInput, {"query": "a", "strategy": None}, "strategy: must be left out"),
    (MemorySearchInput, {"query": "a", "options": []}, "options: must be a JSON object"),
    (MemorySearchInput, {"query": "a", "options": None}, "options: must be left out"),
    (MemorySearchInput, {"query": "a", "limit": 0}, "limit: "),
    (MemorySearchInput, {"query": "a", "filter": "kind"}, "filter: must be a JSON object"),
    (MemoryWriteInput, {}, "memories: "),
    (MemoryWriteInput, {"memories": None}, "memories: must be a list"),
    (MemoryWriteInput, {"memories": {}}, "memories: must be a list"),
    (MemoryWriteInput, {"memories": [{}]}, "memories[0].content: "),
    (MemoryWriteInput, {"memories": [{"content": 1}, None]}, "memories[1]: "),
    (MemoryWriteInput, {"memories": [{"content": 1, "key": ""}]}, "memories[0].key: "),
    (MemoryWriteInput, {"memories": [{"content": 1, "key": None}]}, "memories[0].key: must be left out"),
    (MemoryWriteInput, {"memories": [{"content": None, "metadata": []}]}, "memories[0].metadata: "),
    (MemoryWriteInput, {"memories": [{"content": 1, "metadata": None}]}, "memories[0].metadata: "),
    (MemoryWriteInput, {"memories": [{"content": {"a": b"x"}}]}, "memories[0].content: a is a bytes"),
    (
        MemoryWriteInput,
        {"memories": [{"content": 1, "metadata": {"score": NAN, "other": 1}}]},
        "memories[0].metadata: score is nan",
    ),
    (MemoryUpdateInput, {}, "memories: "),
    (MemoryUpdateInput, {"memories": [{"id": "a"}]}, "memories[0]: needs content or metadata"),
    (MemoryUpdateInput, {"memories": [{"content": 1}]}, "memories[0].id: "),
    (MemoryUpdateInput, {"memories": [{"id": "", "content": 1}]}, "memories[0].id: "),
    (MemoryUpdateInput, {"memories": [{"id": "a", "content": 1, "key": "new"}]}, "memories[0]: a key cannot"),
    (MemoryUpdateInput, {"memories": [{"id": "a", "content": 1, "key": None}]}, "memories[0]: a key cannot"),
    (MemoryUpdateInput, {"memories": [{"id": "a", "metadata": None}]}, "memories[0].metadata: "),
    (
        MemoryUpdateInput,
        {"memories": [{"id": "a", "content": 1}, {"id": "a", "metadata": {}}]},
        "memories: 'a' is to be updated twice",
    ),
    (MemoryItem, {"id": "", "content": 1}, "id: "),
    (MemoryItem, {"id": "a"}, "content: "),
    (MemoryItem, {"id": "a", "content": 1, "key": ""}, "key: "),
    (MemoryItem, {"id": "a", "content": 1, "metadata": []}, "metadata: "),
    (MemoryHit, {"memory": {"id": "a", "content": 1}, "score": NAN}, "score: must be a finite number"),
    (MemoryHit, {"memory": {"id": "a", "content": 1}, "score": True}, "score: must be a finite number"),
    (MemoryHit, {"memory": {"id": "a", "content": 1}, "score": None}, "score: must be left out"),
    (MemoryHit, {"memory": {"id": "a", "content": 1}, "metadata": []}, "metadata: "),
    (MemoryHit, {}, "memory: "),
    (MemoryQueryOutput, {"items": [], "nextCursor": ""}, "nextCursor: "),
    (MemoryQueryOutput, {"items": [], "nextCursor": None}, "nextCursor: "),
    (MemoryDefaults, {"queryLimit": 0}, "queryLimit: "),
    (MemoryDefaults, {"searchLimit": None}, "searchLimit: "),
]


@pytest.mark.parametrize(("contract", "value"), ACCEPTED)
def test_what_is_accepted_comes_back_in_wire_form(contract: type[Contract], value: Any) -> None:
    before = copy.deepcopy(value)
    request = contract.from_wire(value)
    assert value == before
    assert contract.from_wire(request) is request
    assert contract.from_wire(request.to_wire()) == request
    assert set(request.to_wire()) == set(value) - {"unknown"}


@pytest.mark.parametrize(("contract", "value", "reason"), REFUSED)
def test_what_is_refused_is_named_by_its_place(contract: type[Contract], value: Any, reason: str) -> None:
    with pytest.raises(ValidationError) as refused:
        contract.from_wire(value)
    sentence = describe(refused.value)
    assert sentence.startswith(reason)
    assert len(sentence) < 300
    assert "\n" not in sentence


def test_absent_fields_are_left_out_of_the_wire_form_and_nulls_that_were_given_stay() -> None:
    assert MemoryDraft(content=None).to_wire() == {"content": None}
    assert MemoryPatch(id="a", metadata={}).to_wire() == {"id": "a", "metadata": {}}
    patch = MemoryPatch.from_wire({"id": "a", "content": None})
    assert (patch.has_content, patch.has_metadata) == (True, False)


def test_python_has_snake_case_and_the_wire_camel_case() -> None:
    typed = MemoryQueryInput(order_by=(MemoryOrder(field="id", direction="desc"),))
    assert typed.to_wire() == {"orderBy": [{"field": "id", "direction": "desc"}]}
    assert MemoryQueryInput.from_wire({"order_by": "dropped, as any unknown field"}).order_by is None


def test_integral_floats_are_integers() -> None:
    limit = MemoryQueryInput.from_wire({"limit": 10.0}).limit
    assert (limit, type(limit)) == (10, int)


def test_a_contract_is_frozen_and_keeps_a_copy_of_what_it_was_given() -> None:
    content = {"tags": ["a"]}
    draft = MemoryDraft(content=content)
    content["tags"].append("b")
    assert draft.content == {"tags": ["a"]}
    with pytest.raises(ValidationError):
        draft.content = 1


def test_the_catalogue_lists_the_nodes_by_capability() -> None:
    names = [f"MEMORY.{verb}" for verb in ("GET", "QUERY", "SEARCH", "WRITE", "UPDATE", "DELETE")]
    assert capability_nodes(["memory"]) == names
    reindex = [f"REINDEX.{name}" for name in ("RUN", "ROLLBACK", "PAGE", "CHECK", "STATUS")]
    assert list(NODE_SPECS) == [*names, "RETRIEVAL.SEARCH", *reindex]
    assert CAPABILITIES == ("memory", "retrieval", "reindex")


@pytest.mark.parametrize(
    ("node", "input", "is_repeatable"),
    [
        ("MEMORY.GET", {"ids": ["a"]}, True),
        ("MEMORY.UPDATE", {"memories": [{"id": "a", "content": 1}]}, True),
        ("MEMORY.DELETE", {"ids": ["a"]}, True),
        ("MEMORY.WRITE", {"memories": []}, True),
        ("MEMORY.WRITE", {"memories": [{"key": "k", "content": 1}]}, True),
        ("MEMORY.WRITE", {"memories": [{"key": "k", "content": 1}, {"content": 2}]}, False),
    ],
)
def test_a_write_may_run_again_only_if_every_draft_has_a_key(
    node: str, input: Any, is_repeatable: bool
) -> None:
    spec = NODE_SPECS[node]
    assert spec.is_repeatable(spec.input.from_wire(input)) is is_repeatable


@pytest.mark.parametrize("name", ["MEMORY.GET", "a.b", "A.B.C-1", "记忆.读"])
def test_node_names(name: str) -> None:
    assert check_node_name(name) == name
    assert NODE_NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["", "MEMORY", "MEMORY.", ".GET", "A..B", "A. B", "A.B\n", None, 1, ["A.B"]])
def test_names_that_are_no_nodes(name: Any) -> None:
    with pytest.raises(errors.InvalidDefinition, match="is not a node"):
        check_node_name(name)


def test_queues_are_named_for_their_nodes() -> None:
    assert queue_name("MEMORY.GET") == "ditto.memory.get"
    assert queue_name("MEMORY.GET", prefix="team-a") == "team-a.memory.get"
    assert queue_name("MEMORY.GET", overrides={"MEMORY.GET": "quick"}) == "quick"


def test_a_result_leaves_absent_fields_out() -> None:
    success = NodeResult.success("1", "A.B", None)
    failure = NodeResult.failure("2", "A.B", "NOT_FOUND", "there is none")
    assert success.to_wire() == {"executionId": "1", "node": "A.B", "status": "success", "output": None}
    assert failure.to_wire() == {
        "executionId": "2",
        "node": "A.B",
        "status": "failed",
        "error": {"code": "NOT_FOUND", "message": "there is none"},
    }
    assert NodeResult.from_wire(success.to_wire()) == success
    assert NodeResult.from_wire(failure.to_wire()) == failure


def test_unwrap_gives_the_output_or_raises_the_nodes_own_code() -> None:
    assert NodeResult.success("1", "A.B", [1]).unwrap() == [1]
    with pytest.raises(errors.NodeFailed, match="TIMEOUT: too late") as failed:
        NodeResult.failure("2", "A.B", "TIMEOUT", "too late", "timeout").unwrap()
    assert (failed.value.code, failed.value.status) == ("TIMEOUT", "timeout")


def test_a_failure_needs_both_words() -> None:
    with pytest.raises(ValidationError):
        NodeFailure.from_wire({"code": "A"})


ERRORS = [getattr(errors, name) for name in errors.__all__]
ARGUMENTS: dict[type[Exception], tuple[Any, ...]] = {
    errors.NodeFailed: ("CODE", "failed", "message"),
    errors.InvocationTimeout: ("message", True),
    **{kind: ("CODE", "message") for kind in ERRORS if issubclass(kind, errors.NodeError)},
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_have_a_code_and_survive_pickling(kind: type[Any]) -> None:
    error = kind(*ARGUMENTS.get(kind, ("message",)))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert vars(again) == vars(error)
    assert (str(again), again.code) == (str(error), error.code)
    assert again.code == again.code.upper() != ""


def test_error_codes_of_callers_are_distinct() -> None:
    callers = [
        kind for kind in ERRORS if issubclass(kind, errors.DittoError) and kind is not errors.NodeFailed
    ]
    codes = [kind.code for kind in callers]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("number", [0, -1, 1.5, -0.0, 1e308, 2**1023, -(2**1023), 5e-324])
def test_a_number_stays_what_it_is(number: float) -> None:
    score = MemoryHit.from_wire({"memory": ITEM, "score": number}).score
    assert is_number(number)
    assert (score, type(score)) == (number, type(number))


@pytest.mark.parametrize(
    "value",
    [True, False, None, "1", b"1", [1], NAN, float("inf"), float("-inf"), 2**1024, -(10**400), Decimal(1)],
)
def test_no_number_is_true_text_or_beyond_the_range_of_doubles(value: Any) -> None:
    assert not is_number(value)
    with pytest.raises(ValidationError):
        MemoryHit.from_wire({"memory": ITEM, "score": value})


WHITE = [character for character in map(chr, range(0x110000)) if character.isspace()]


@pytest.mark.parametrize("name", ["", *WHITE, "".join(WHITE)])
def test_a_name_of_white_space_is_blank(name: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RetrievalTarget.from_wire({"name": name})
    assert describe(refused.value).startswith("name: must be text that is not blank")


@pytest.mark.parametrize("name", ["a", " a", "\n.\n", "键", "\u200b", "\x00", "\ufeff", "\U0001f600"])
def test_a_name_with_more_in_it_stays_as_it_is(name: str) -> None:
    assert RetrievalTarget.from_wire({"name": name}).name == name


@pytest.mark.parametrize("name", [None, 1, b"a", ["a"], "\ud800"])
def test_a_name_is_text_that_can_be_sent(name: Any) -> None:
    with pytest.raises(ValidationError, match="must be text that is not blank"):
        RetrievalTarget.from_wire({"name": name})


def test_a_contract_that_is_trusted_is_written_in_the_order_of_its_fields() -> None:
    item = trusted(MemoryItem, {"metadata": {}, "content": 1, "id": "a"})
    assert list(item.to_wire()) == ["id", "content", "metadata"]
    assert item == MemoryItem(id="a", content=1, metadata={})
    assert list(NodeResult.success("i", "A.B", 1).to_wire()) == ["executionId", "node", "status", "output"]


def test_a_changed_copy_has_the_other_fields_and_leaves_the_first_as_it_is() -> None:
    item = MemoryItem(id="a", content=1)
    other = changed(item, content=2)
    assert other == MemoryItem(id="a", content=2)
    assert item.content == 1
    assert other.to_wire() == {"id": "a", "content": 2}
    assert changed(item, metadata={"k": 1}).to_wire() == {"id": "a", "content": 1, "metadata": {"k": 1}}
