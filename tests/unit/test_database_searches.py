"""Searches over an application's own database: what they send, what they refuse, what they answer."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import InvalidDefinition, InvocationCancelled, RetrievalError
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalDefaults,
    RetrievalSearchInput,
)
from providers.retrieval.milvus import MilvusSearch
from providers.retrieval.sql import SqlSearch, Statement

TEXTS = [
    ("a1", "a", "apples grow on trees"),
    ("a2", "a", "apples and apples: apples"),
    ("a3", "a", "pears"),
    ("b1", "b", "apples of another tenant"),
]
SELECT = (
    "SELECT id, text, -rank AS score FROM notes WHERE notes MATCH ? AND tenant = ? ORDER BY rank, id LIMIT ?"
)


def asked(**fields: Any) -> RetrievalSearchInput:
    request = {"query": {"content": "apples"}, "target": {"name": "kb", "namespace": "a"}, **fields}
    return RetrievalSearchInput.from_wire(request)


# --- SQL


@pytest.fixture
def notes() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute("CREATE VIRTUAL TABLE notes USING fts5 (id UNINDEXED, tenant UNINDEXED, text)")
    connection.executemany("INSERT INTO notes VALUES (?, ?, ?)", TEXTS)
    yield connection
    connection.close()


@pytest.fixture
def fts5(notes: sqlite3.Connection) -> SqlSearch[Any]:
    def prepare(request: RetrievalSearchInput) -> dict[str, Any]:
        if request.target.namespace is None or request.filter or request.options:
            raise RetrievalError("RETRIEVAL_INVALID_INPUT", "a namespace is needed, and nothing beside it")
        return {"text": SELECT, "values": [request.query.content, request.target.namespace, request.limit]}

    def query(statement: Statement, call: RetrievalCall) -> list[Any]:
        return notes.execute(statement.text, statement.values).fetchall()

    return SqlSearch(
        prepare=prepare,
        query=query,
        map_row=lambda row: {"id": row[0], "content": row[1], "score": row[2]},
    )


def test_fts5_ranks_by_bm25_within_a_namespace(fts5: SqlSearch[Any]) -> None:
    output = fts5.search(asked())
    assert [candidate.id for candidate in output.candidates] == ["a2", "a1"]
    assert [
        candidate.id for candidate in fts5.search(asked(target={"name": "kb", "namespace": "b"})).candidates
    ] == ["b1"]
    first, second = output.candidates
    assert first.content == "apples and apples: apples"
    assert first.score is not None
    assert second.score is not None
    assert first.score > second.score > 0
    assert output.target.namespace == "a"


def test_a_namespace_is_a_value(fts5: SqlSearch[Any]) -> None:
    hostile = asked(target={"name": "kb", "namespace": "' OR 1=1 --"})
    assert list(fts5.search(hostile).candidates) == []


def test_what_prepare_refuses_is_refused(fts5: SqlSearch[Any]) -> None:
    for fields in ({"filter": {"kind": "x"}}, {"target": {"name": "kb"}}, {"options": {"k": 1}}):
        with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_INPUT"):
            fts5.search(asked(**fields))


@pytest.mark.parametrize(
    ("limit", "defaults", "resolved"),
    [(1, {}, 1), (None, {"searchLimit": 2}, 2), (3, {"searchLimit": 2}, 3), (None, {}, 10)],
)
def test_the_limit_is_resolved_before_the_statement_is_made(
    limit: int | None, defaults: dict[str, int], resolved: int
) -> None:
    seen: list[int | None] = []

    def prepare(request: RetrievalSearchInput) -> Statement:
        seen.append(request.limit)
        return Statement("SELECT 1", ())

    search = SqlSearch[Any](prepare=prepare, query=lambda statement, call: [], map_row=dict)
    call = RetrievalCall(defaults=RetrievalDefaults.from_wire(defaults))
    request = asked() if limit is None else asked(limit=limit)
    search.search(request, call)
    assert seen == [resolved]
    assert request.limit == limit


@dataclass
class Prepared:
    text: Any
    values: Any


@pytest.mark.parametrize(
    "prepared",
    [None, {}, {"text": "SELECT 1"}, {"text": " ", "values": []}, Prepared("SELECT 1", "a"), Prepared(1, [])],
)
def test_what_is_no_statement_is_not_run(prepared: Any) -> None:
    def query(statement: Statement, call: RetrievalCall) -> list[Any]:
        raise AssertionError("ran")

    search = SqlSearch[Any](prepare=lambda request: prepared, query=query, map_row=dict)
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_INPUT"):
        search.search(asked())


def test_an_object_with_text_and_values_is_a_statement() -> None:
    ran: list[Statement] = []

    def query(statement: Statement, call: RetrievalCall) -> list[Any]:
        ran.append(statement)
        return []

    SqlSearch[Any](prepare=lambda request: Prepared("SELECT ?", [1]), query=query, map_row=dict).search(
        asked()
    )
    assert ran == [Statement("SELECT ?", [1])]


@pytest.mark.parametrize("rows", [[{}], [{"content": 1}] * 11, [{"content": 1, "score": float("nan")}], [1]])
def test_rows_that_make_no_answer_are_refused(rows: list[Any]) -> None:
    search = SqlSearch[Any](
        prepare=lambda request: Statement("SELECT 1", ()),
        query=lambda statement, call: rows,
        map_row=lambda row: row,
    )
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_BACKEND_OUTPUT"):
        search.search(asked())


def test_the_call_reaches_the_query_and_an_ended_one_does_not_run() -> None:
    seen: list[RetrievalCall] = []

    def query(statement: Statement, call: RetrievalCall) -> list[Any]:
        seen.append(call)
        return []

    search = SqlSearch[Any](prepare=lambda request: Statement("SELECT 1", ()), query=query, map_row=dict)
    cancel = Cancellation()
    call = RetrievalCall(cancel=cancel)
    search.search(asked(), call)
    cancel.cancel("enough")
    with pytest.raises(InvocationCancelled):
        search.search(asked(), call)
    assert seen == [call]


# --- Milvus

SUCCESS = {"status": {"code": 0, "error_code": "Success"}}


class Milvus:
    """Answers as the client of an application does, and keeps what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []

    def search(self, request: dict[str, Any], call: RetrievalCall) -> Any:
        self.requests.append(request)
        return self.answer


def over(milvus: Milvus, **options: Any) -> MilvusSearch[Any]:
    fields: dict[str, Any] = {
        "collection": "memories",
        "vector_field": "embedding",
        "output_fields": ["memory"],
        "search": milvus.search,
        "map_hit": lambda hit: {"id": str(hit["id"]), "content": hit["memory"], "score": hit["score"]},
        **options,
    }
    return MilvusSearch(**fields)


def by_tenant(request: RetrievalSearchInput) -> dict[str, Any]:
    if not request.target.namespace or request.filter:
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", "unsupported scope")
    return {
        "filter": "tenant == {tenant}",
        "exprValues": {"tenant": request.target.namespace},
        "partition_names": ["p"],
        "collection_name": "others",
        "limit": 10_000,
    }


def test_a_request_has_the_form_that_milvus_takes() -> None:
    milvus = Milvus({**SUCCESS, "results": [{"id": 7, "memory": {"a": 1}, "score": 0.5}]})
    search = over(milvus, scope=by_tenant, params={"ef": 64})
    output = search.search(asked(query={"content": [1, 0.5]}, limit=5, options={"collection_name": "others"}))
    assert milvus.requests == [
        {
            "collection_name": "memories",
            "anns_field": "embedding",
            "data": [[1, 0.5]],
            "limit": 5,
            "output_fields": ["memory"],
            "filter": "tenant == {tenant}",
            "exprValues": {"tenant": "a"},
            "partition_names": ["p"],
            "params": {"ef": 64},
        }
    ]
    [candidate] = output.candidates
    assert candidate.to_wire() == {"id": "7", "content": {"a": 1}, "score": 0.5}


def test_text_is_sent_as_it_is_and_the_limit_is_resolved() -> None:
    milvus = Milvus({**SUCCESS, "results": []})
    call = RetrievalCall(defaults=RetrievalDefaults(search_limit=4))
    assert list(over(milvus).search(asked(target={"name": "kb"}), call).candidates) == []
    assert milvus.requests == [
        {
            "collection_name": "memories",
            "anns_field": "embedding",
            "data": ["apples"],
            "limit": 4,
            "output_fields": ["memory"],
        }
    ]


def test_a_request_is_a_copy() -> None:
    milvus = Milvus({**SUCCESS, "results": []})
    params = {"deep": {"ef": 64}}
    search = over(milvus, params=params)
    params["deep"]["ef"] = 1
    search.search(asked(target={"name": "kb"}))
    milvus.requests[0]["params"]["deep"]["ef"] = 2
    milvus.requests[0]["output_fields"].append("x")
    search.search(asked(target={"name": "kb"}))
    assert milvus.requests[1]["params"] == {"deep": {"ef": 64}}
    assert milvus.requests[1]["output_fields"] == ["memory"]


@pytest.mark.parametrize("fields", [{}, {"target": {"name": "kb"}, "filter": {}}, {"filter": {"kind": "x"}}])
def test_a_namespace_or_filter_without_a_scope_is_refused(fields: dict[str, Any]) -> None:  # vector 93
    milvus = Milvus({**SUCCESS, "results": []})
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_INPUT"):
        over(milvus).search(asked(**fields))
    assert milvus.requests == []


def test_what_the_scope_refuses_is_refused() -> None:
    milvus = Milvus({**SUCCESS, "results": []})
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_INPUT: unsupported scope"):
        over(milvus, scope=by_tenant).search(asked(filter={"kind": "x"}))
    assert milvus.requests == []


@pytest.mark.parametrize("content", ["", " ", None, 1, [], [1, "a"], [True], {"a": 1}, [[1.0]]])
def test_content_is_a_text_or_a_vector(content: Any) -> None:
    milvus = Milvus({**SUCCESS, "results": []})
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_EMBEDDING"):
        over(milvus).search(asked(query={"content": content}, target={"name": "kb"}))
    assert milvus.requests == []


@pytest.mark.parametrize(
    "status", [{"code": 0}, {"error_code": "Success"}, {"code": 0, "error_code": "Success", "reason": "x"}]
)
def test_a_success_is_said_by_either_code(status: dict[str, Any]) -> None:
    milvus = Milvus({"status": status, "results": []})
    assert list(over(milvus).search(asked(target={"name": "kb"})).candidates) == []


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"results": []},
        {"status": {}, "results": []},
        {"status": {"reason": "secret"}, "results": []},
        {"status": {"code": 1, "reason": "secret"}, "results": []},
        {"status": {"code": False}, "results": []},
        {"status": {"code": "0"}, "results": []},
        {"status": {"code": 0, "error_code": "IllegalArgument", "reason": "secret"}, "results": []},
        {"status": {"code": 5, "error_code": "Success", "reason": "secret"}, "results": []},
    ],
)
def test_a_failure_is_no_empty_answer_and_hides_its_reason(answer: Any) -> None:
    with pytest.raises(RetrievalError) as failure:
        over(Milvus(answer)).search(asked(target={"name": "kb"}))
    assert str(failure.value) == "RETRIEVAL_BACKEND_ERROR: Milvus search failed"


@pytest.mark.parametrize("results", [None, {}, "x"])
def test_an_answer_without_a_list_of_results_is_refused(results: Any) -> None:
    with pytest.raises(RetrievalError, match="RETRIEVAL_INVALID_BACKEND_OUTPUT"):
        over(Milvus({**SUCCESS, "results": results})).search(asked(target={"name": "kb"}))


@pytest.mark.parametrize("name", ["collection", "vector_field"])
@pytest.mark.parametrize("value", ["", " ", None])
def test_collection_and_field_have_names(name: str, value: Any) -> None:
    with pytest.raises(InvalidDefinition, match=name):
        over(Milvus(None), **{name: value})


def test_an_ended_call_is_not_sent() -> None:
    milvus = Milvus({**SUCCESS, "results": []})
    cancel = Cancellation()
    cancel.cancel("enough")
    with pytest.raises(InvocationCancelled):
        over(milvus).search(asked(target={"name": "kb"}), RetrievalCall(cancel=cancel))
    assert milvus.requests == []


def test_without_a_call_a_search_is_made_all_the_same() -> None:
    milvus = Milvus({**SUCCESS, "results": []})
    over(milvus).search(asked(target={"name": "kb"}), NO_RETRIEVAL_CALL)
    assert len(milvus.requests) == 1
