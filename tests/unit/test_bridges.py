"""Memory searches as retrieval searches and back, in this process and through a runtime; context items."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ditto_tasks import Call, Cancellation, InvocationCancelled, NodeResult, Runtime
from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.cancellation import CancelToken
from ditto_tasks.contracts.errors import ContextError, DeadlineExceeded, MemoryNodeError, RetrievalError
from ditto_tasks.contracts.memory import (
    MemoryHit,
    MemoryItem,
    MemorySearchInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.retrieval import (
    RetrievalCall,
    RetrievalCandidate,
    RetrievalDefaults,
    RetrievalSearchOutput,
    RetrievalTarget,
)
from providers.retrieval.bridges import (
    MemoryAsRetrieval,
    RemoteRetrievalSearch,
    RetrievalAsMemorySearch,
    map_context_candidates,
    map_memory_candidates,
    namespace_as_filter,
)
from providers.retrieval.hybrid import HybridBranch, HybridSearch
from providers.retrieval.registry import Target, TargetRegistry
from providers.stores.in_memory import InMemoryStore
from tests.doubles import RecordingSearch, found, request, wire
from workers.memory import memory_worker
from workers.retrieval import retrieval_worker

SECRET = "token=secret"
A: dict[str, Any] = {"id": "a", "key": "ka", "content": {"text": "tea"}, "metadata": {"kind": "note"}}
B: dict[str, Any] = {"id": "b", "content": None}
QUERY = MemorySearchInput(query="tea")


def holding(record: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Make a candidate whose content is a whole record."""
    return {"id": record["id"], "content": record, **fields}


class RecordingMemorySearch:
    """Answers every memory search alike, and notes what it was asked."""

    def __init__(self, answer: Any = ()) -> None:
        self.answer = answer
        self.requests: list[dict[str, Any]] = []
        self.calls: list[Call] = []

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Any:
        self.requests.append(request.to_wire())
        self.calls.append(call)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def code_of(run: Callable[[], Any]) -> str:
    with pytest.raises(RetrievalError) as raised:
        run()
    return raised.value.code


def wired(hits: Sequence[MemoryHit | Any]) -> list[dict[str, Any]]:
    return [MemoryHit.from_wire(hit).to_wire() for hit in hits]


class TestMemoryAsRetrieval:
    def test_a_candidate_is_the_whole_record(self) -> None:
        search = RecordingMemorySearch(
            [{"memory": A, "score": 0.5, "metadata": {"why": "text"}}, MemoryHit.from_wire({"memory": B})]
        )
        output = MemoryAsRetrieval(search).search(request(strategy="keyword"))
        assert output.to_wire() == found(
            holding(A, score=0.5, source={"target": "kb", "ref": "a"}, metadata={"why": "text"}),
            holding(B, source={"target": "kb", "ref": "b"}),
            strategy="keyword",
        )

    def test_the_request_is_passed_on(self) -> None:
        search, call = RecordingMemorySearch(), RetrievalCall("id-1")
        fields: dict[str, Any] = {"strategy": "s", "filter": {"a": 1}, "limit": 3, "options": {"o": 1}}
        MemoryAsRetrieval(search).search(request(query={"content": ["q"]}, **fields), call)
        assert search.requests == [{"query": ["q"], **fields}]
        assert search.calls == [call]

    def test_the_limit_is_the_requests_then_the_calls_then_ten(self) -> None:
        search = RecordingMemorySearch()
        for defaults in ({}, {"searchLimit": 4}):
            call = RetrievalCall(defaults=RetrievalDefaults.from_wire(defaults))
            MemoryAsRetrieval(search).search(request(), call)
        assert [asked["limit"] for asked in search.requests] == [10, 4]

    def test_a_namespace_means_nothing_without_a_mapper(self) -> None:
        search = RecordingMemorySearch()
        asked = request(target={"name": "kb", "namespace": "n"})
        assert code_of(lambda: MemoryAsRetrieval(search).search(asked)) == "RETRIEVAL_INVALID_INPUT"
        assert search.requests == []

    def test_a_mapper_makes_the_memory_search(self) -> None:
        search = RecordingMemorySearch()
        asked = request(target={"name": "kb", "namespace": "n"}, limit=2)
        MemoryAsRetrieval(search, lambda asked: {"query": [asked.target.namespace], "limit": 7}).search(asked)
        MemoryAsRetrieval(search, lambda _: MemorySearchInput(query="typed")).search(asked)
        assert search.requests == [{"query": ["n"], "limit": 7}, {"query": "typed"}]

    @pytest.mark.parametrize("mapped", [None, {}, {"query": 1, "limit": 0}, {"query": 1, "strategy": None}])
    def test_what_a_mapper_makes_is_checked(self, mapped: Any) -> None:
        search = MemoryAsRetrieval(RecordingMemorySearch(), lambda _: mapped)
        assert code_of(lambda: search.search(request())) == "RETRIEVAL_INVALID_INPUT"

    @pytest.mark.parametrize(
        "hits",
        [
            *(None, 1, "text", {}, iter([])),
            *([hit] for hit in (None, {}, A, {"memory": {"id": "a"}}, {"memory": {"content": 1}})),
            [{"memory": A, "score": float("nan")}],
            [{"memory": A, "metadata": []}],
            [{"memory": {**A, "key": ""}}],
        ],
    )
    def test_what_is_no_list_of_whole_records_is_refused(self, hits: Any) -> None:
        search = MemoryAsRetrieval(RecordingMemorySearch(hits))
        assert code_of(lambda: search.search(request())) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    @pytest.mark.parametrize(
        ("code", "translated"),
        [
            ("INVALID_INPUT", "RETRIEVAL_INVALID_INPUT"),
            ("SCOPE_DENIED", "RETRIEVAL_PERMISSION_DENIED"),
            ("STORE_UNAVAILABLE", "RETRIEVAL_BACKEND_ERROR"),
            ("NOT_FOUND", "RETRIEVAL_BACKEND_ERROR"),
        ],
    )
    def test_what_the_memory_search_says_on_purpose_is_translated(self, code: str, translated: str) -> None:
        search = MemoryAsRetrieval(RecordingMemorySearch(MemoryNodeError(code, "why")))
        with pytest.raises(RetrievalError, match="why") as raised:
            search.search(request())
        assert raised.value.code == translated


class TestNamespaceAsFilter:
    @pytest.mark.parametrize(
        ("filter", "mapped"),
        [
            ({}, {"namespace": "n"}),
            ({"filter": {"kind": "note"}}, {"kind": "note", "namespace": "n"}),
            ({"filter": {"namespace": "n"}}, {"namespace": "n"}),
        ],
    )
    def test_it_narrows_the_filter(self, filter: Any, mapped: Any) -> None:
        asked = request(target={"name": "kb", "namespace": "n"}, limit=2, **filter)
        before = asked.model_copy(deep=True)
        assert namespace_as_filter(asked) == {"query": "tea", "limit": 2, "filter": mapped}
        assert asked == before

    def test_without_a_namespace_nothing_is_added(self) -> None:
        assert namespace_as_filter(request(filter={"kind": "x"})) == {
            "query": "tea",
            "filter": {"kind": "x"},
        }

    @pytest.mark.parametrize("other", ["m", "N", "", None, ["n"]])
    def test_another_one_in_the_filter_is_refused(self, other: Any) -> None:
        asked = request(target={"name": "kb", "namespace": "n"}, filter={"namespace": other})
        assert code_of(lambda: namespace_as_filter(asked)) == "RETRIEVAL_INVALID_INPUT"

    def test_no_other_namespaces_record_is_found(self) -> None:
        store = InMemoryStore()
        drafts = [{"content": "tea", "metadata": {"namespace": name}} for name in ("john_doe", "john-doe")]
        store.write(MemoryWriteInput.from_wire({"memories": drafts}))
        search = MemoryAsRetrieval(store, namespace_as_filter)
        output = search.search(request(target={"name": "kb", "namespace": "john_doe"}))
        assert [one.content["metadata"] for one in output.candidates] == [{"namespace": "john_doe"}]


class TestMapMemoryCandidates:
    def test_a_hit_is_the_record_with_score_metadata_and_source(self) -> None:
        output = found(
            holding(A, score=0.5, metadata={"why": 1}, source={"target": "t", "ref": "r"}),
            {"content": B},
        )
        hits = map_memory_candidates(output)
        assert wired(hits) == [
            {
                "memory": A,
                "score": 0.5,
                "metadata": {"why": 1, "source": {"target": "t", "ref": "r"}},
            },
            {"memory": B, "metadata": {}},
        ]
        assert map_memory_candidates(RetrievalSearchOutput.from_wire(output)) == hits

    @pytest.mark.parametrize(
        "candidate",
        [
            *({"content": content} for content in ("text", None, 1, [], {}, {"id": "a"}, {"content": 1})),
            {"content": {**A, "key": ""}},
            {"content": {**A, "metadata": None}},
            {"content": {**A, "id": ""}},
            {"id": "b", "content": A},
        ],
    )
    def test_a_content_that_is_no_record_of_that_id_is_refused(self, candidate: Any) -> None:
        assert code_of(lambda: map_memory_candidates(found(candidate))) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    @pytest.mark.parametrize("output", [None, [], {}, {"candidates": []}])
    def test_an_output_that_is_none_is_refused(self, output: Any) -> None:
        assert code_of(lambda: map_memory_candidates(output)) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    def test_there_and_back_nothing_is_lost(self) -> None:
        there = MemoryAsRetrieval(RecordingMemorySearch([{"memory": A, "score": 2}, {"memory": B}]))
        [first, second] = map_memory_candidates(there.search(request()))
        assert first.memory == MemoryItem.from_wire(A)
        assert (first.score, second.memory, second.score) == (2, MemoryItem.from_wire(B), None)


class TestRetrievalAsMemorySearch:
    def test_the_memory_search_becomes_a_search_of_its_target(self) -> None:
        provider = RecordingSearch(found(holding(A)))
        search = RetrievalAsMemorySearch(provider, {"name": "kb", "metadata": {"m": 1}}, strategy="vector")
        fields: dict[str, Any] = {"filter": {"a": 1}, "limit": 3, "options": {"o": 1}}
        hits = search.search(MemorySearchInput.from_wire({"query": ["q"], **fields}))
        assert wired(hits) == [{"memory": A, "metadata": {}}]
        assert provider.requests[0].to_wire() == {
            "query": {"content": ["q"]},
            "target": {"name": "kb", "metadata": {"m": 1}},
            "strategy": "vector",
            **fields,
        }

    def test_the_requests_strategy_comes_before_the_constructors(self) -> None:
        provider = RecordingSearch(found())
        search = RetrievalAsMemorySearch(provider, {"name": "kb"}, strategy="vector")
        search.search(MemorySearchInput(query=1, strategy="keyword"))
        search.search(MemorySearchInput(query=1))
        assert [asked.strategy for asked in provider.requests] == ["keyword", "vector"]

    def test_the_limit_is_the_requests_then_the_constructors_then_ten(self) -> None:
        provider = RecordingSearch(found())
        for defaults in (None, {"searchLimit": 4, "hybrid": {"rrfK": 2}}):
            search = RetrievalAsMemorySearch(provider, {"name": "kb"}, defaults=defaults)
            search.search(QUERY)
            search.search(MemorySearchInput(query=1, limit=2))
        assert provider.limits == [10, 2, 4, 2]
        assert provider.calls[-1].hybrid.rrf_k == 2

    def test_the_call_reaches_the_provider(self) -> None:
        provider, token = RecordingSearch(found()), Cancellation()
        call = Call("id-1", token, deadline=1e12)
        RetrievalAsMemorySearch(provider, {"name": "kb"}).search(QUERY, call)
        [seen] = provider.calls
        assert (seen.execution_id, seen.cancel, seen.deadline) == ("id-1", token, 1e12)

    def test_target_and_defaults_are_copied(self) -> None:
        provider = RecordingSearch(found())
        target: dict[str, Any] = {"name": "kb", "metadata": {"m": [1]}}
        defaults = {"searchLimit": 4}
        search = RetrievalAsMemorySearch(provider, target, defaults=defaults)
        target["metadata"]["m"].append(2)
        defaults["searchLimit"] = 5
        search.search(QUERY)
        assert provider.requests[0].target.metadata == {"m": [1]}
        assert provider.limits == [4]

    @pytest.mark.parametrize(
        "arguments",
        [
            *({"target": target} for target in (None, {}, "kb", {"name": " "})),
            *({"defaults": defaults} for defaults in ([], {"searchLimit": 0}, {"hybrid": None})),
        ],
    )
    def test_a_target_or_default_that_is_none_is_refused(self, arguments: dict[str, Any]) -> None:
        given: dict[str, Any] = {"target": {"name": "kb"}, **arguments}
        provider = RecordingSearch(found())
        assert code_of(lambda: RetrievalAsMemorySearch(provider, **given)) == "RETRIEVAL_INVALID_INPUT"

    @pytest.mark.parametrize("answer", [None, found("a", target={"name": "other"}), found(*"abcdefghijk")])
    def test_the_answer_is_held_against_the_request(self, answer: Any) -> None:
        search = RetrievalAsMemorySearch(RecordingSearch(answer), {"name": "kb"})
        assert code_of(lambda: search.search(QUERY)) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    def test_a_strategy_that_memory_takes_and_retrieval_does_not_is_refused(self) -> None:
        provider = RecordingSearch(found())
        search = RetrievalAsMemorySearch(provider, {"name": "kb"})
        blank = MemorySearchInput(query=1, strategy=" ")
        assert code_of(lambda: search.search(blank)) == "RETRIEVAL_INVALID_INPUT"
        assert provider.requests == []

    def test_a_mapper_of_ones_own_gets_the_whole_output(self) -> None:
        seen: list[RetrievalSearchOutput] = []

        def hydrate(output: RetrievalSearchOutput) -> list[dict[str, Any]]:
            seen.append(output)
            return [{"memory": {"id": one.id, "content": "whole"}} for one in output.candidates]

        provider = RecordingSearch(found("a", metadata={"took": 1}))
        search = RetrievalAsMemorySearch(provider, {"name": "kb"}, map_output=hydrate)
        with Runtime(workers=[memory_worker(InMemoryStore(), search=search)]) as runtime:
            result = runtime.invoke("MEMORY.SEARCH", {"query": "tea"})
        assert result.unwrap() == [{"memory": {"id": "a", "content": "whole"}}]
        assert seen[0].metadata == {"took": 1}

    def test_a_hybrid_search_works_within_memory(self) -> None:
        store = InMemoryStore()
        drafts = [{"content": "green tea"}, {"content": "a kettle"}, {"content": "tea, tea, tea"}]
        store.write(MemoryWriteInput.from_wire({"memories": drafts}))
        hybrid = HybridSearch([HybridBranch(MemoryAsRetrieval(store), "keyword")] * 2)
        search = RetrievalAsMemorySearch(hybrid, {"name": "kb"})
        with hybrid, Runtime(workers=[memory_worker(store, search=search)]) as runtime:
            hits = runtime.invoke("MEMORY.SEARCH", {"query": "tea"}).unwrap()
        assert sorted(hit["memory"]["content"] for hit in hits) == ["green tea", "tea, tea, tea"]
        assert all(hit["metadata"]["source"]["ref"] == hit["memory"]["id"] for hit in hits)


class RecordingRuntime:
    """Stands for a runtime elsewhere: answers with this result, or raises it."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, Any, float | None, CancelToken | None]] = []

    def invoke(
        self, node: str, input: Any, *, timeout: float | None = None, cancel: CancelToken | None = None
    ) -> NodeResult:
        self.calls.append((node, input, timeout, cancel))
        if isinstance(self.answer, BaseException):
            raise self.answer
        result: NodeResult = self.answer
        return result


def success(output: Any) -> NodeResult:
    return NodeResult.success("id-2", "RETRIEVAL.SEARCH", output)


def must_not_map(output: RetrievalSearchOutput) -> Any:
    raise AssertionError("a failed search was mapped")


FAILURES = [
    RuntimeError(SECRET),
    RetrievalError("RETRIEVAL_TIMEOUT", SECRET),
    InvocationCancelled(SECRET),
    *(
        NodeResult.failure("id-2", "RETRIEVAL.SEARCH", code, SECRET, status)  # type: ignore[arg-type]
        for code, status in (
            ("RETRIEVAL_TARGET_NOT_FOUND", "failed"),
            ("RETRIEVAL_TIMEOUT", "timeout"),
            ("RETRIEVAL_CANCELLED", "cancelled"),
        )
    ),
]


class TestRemote:
    def test_it_invokes_the_node_with_what_memory_was_asked(self) -> None:
        elsewhere = RecordingRuntime(success(found(holding(A, score=1), strategy="s")))
        search = RemoteRetrievalSearch({"name": "kb"}, runtime=elsewhere)
        fields: dict[str, Any] = {"strategy": "s", "filter": {"a": 1}, "limit": 3, "options": {"o": 1}}
        token = Cancellation()
        hits = search.search(MemorySearchInput.from_wire({"query": None, **fields}), Call("id-1", token))
        assert wired(hits) == [{"memory": A, "score": 1, "metadata": {}}]
        asked = {"query": {"content": None}, "target": {"name": "kb"}, **fields}
        assert elsewhere.calls == [("RETRIEVAL.SEARCH", asked, None, token)]

    def test_the_time_that_is_left_goes_along(self) -> None:
        elsewhere = RecordingRuntime(success(found()))
        with Runtime(
            workers=[
                memory_worker(
                    InMemoryStore(), search=RemoteRetrievalSearch({"name": "kb"}, runtime=elsewhere)
                )
            ]
        ) as runtime:
            runtime.invoke("MEMORY.SEARCH", {"query": 1}, timeout=20).unwrap()
        [(_, _, timeout, _)] = elsewhere.calls
        assert timeout is not None
        assert 0 < timeout <= 20

    @pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
    def test_a_failed_search_is_never_mapped_and_its_reason_stays_there(self, failure: Any) -> None:
        search = RemoteRetrievalSearch(
            {"name": "kb"}, runtime=RecordingRuntime(failure), map_output=must_not_map
        )
        with pytest.raises(RetrievalError) as raised:
            search.search(QUERY)
        assert raised.value.code == "RETRIEVAL_BACKEND_ERROR"
        assert SECRET not in str(raised.value)
        assert raised.value.__cause__ is None

    @pytest.mark.parametrize("output", [None, [], "text", found(*"abc"), found("a", target={"name": "b"})])
    def test_an_answer_that_is_none_is_not_mapped(self, output: Any) -> None:
        search = RemoteRetrievalSearch(
            {"name": "kb"}, runtime=RecordingRuntime(success(output)), map_output=must_not_map
        )
        assert code_of(lambda: search.search(MemorySearchInput(query=1, limit=2))) == (
            "RETRIEVAL_INVALID_BACKEND_OUTPUT"
        )
        if not isinstance(output, dict):
            assert code_of(lambda: search.search(QUERY)) == "RETRIEVAL_INVALID_BACKEND_OUTPUT"

    def test_a_call_that_was_cancelled_meanwhile_says_so(self) -> None:
        token = Cancellation()
        token.cancel("not wanted")
        search = RemoteRetrievalSearch({"name": "kb"}, runtime=RecordingRuntime(InvocationCancelled("x")))
        with pytest.raises(InvocationCancelled, match="not wanted"):
            search.search(QUERY, Call("id-1", token))
        with pytest.raises(DeadlineExceeded):
            search.search(QUERY, Call("id-1", deadline=0.0))

    def test_without_any_runtime_it_is_unavailable(self) -> None:
        assert code_of(lambda: RemoteRetrievalSearch({"name": "kb"}).search(QUERY)) == (
            "RETRIEVAL_PROVIDER_UNAVAILABLE"
        )

    def test_a_runtime_that_was_given_comes_before_the_calls(self) -> None:
        given, calls = (RecordingRuntime(success(found())) for _ in range(2))
        RemoteRetrievalSearch({"name": "kb"}, runtime=given).search(QUERY, Call("id-1", runtime=calls))
        RemoteRetrievalSearch({"name": "kb"}).search(QUERY, Call("id-1", runtime=calls))
        assert [len(one.calls) for one in (given, calls)] == [1, 1]

    @pytest.mark.parametrize("target", [None, {}, "kb", {"name": " "}, {"name": "kb", "type": None}])
    def test_a_target_that_is_none_is_refused(self, target: Any) -> None:
        assert code_of(lambda: RemoteRetrievalSearch(target)) == "RETRIEVAL_INVALID_INPUT"


def two_workers(provider: Any, search: Any = None, **options: Any) -> Runtime:
    """Make a runtime whose MEMORY searches through its RETRIEVAL."""
    search = search or RemoteRetrievalSearch({"name": "kb"})
    targets = TargetRegistry({"kb": Target("vector", {"vector": provider})})
    return Runtime(
        workers=[memory_worker(InMemoryStore(), search=search, **options), retrieval_worker(targets)]
    )


class TestRemoteWithinMemory:
    def test_memory_searches_through_retrieval(self) -> None:
        provider = RecordingSearch(found(holding(A, score=0.5), holding(B)))
        with two_workers(provider) as runtime:
            result = runtime.invoke("MEMORY.SEARCH", {"query": "tea", "limit": 3, "strategy": "vector"})
        assert result.unwrap() == [
            {"memory": A, "score": 0.5, "metadata": {}},
            {"memory": B, "metadata": {}},
        ]
        assert result.node == "MEMORY.SEARCH"
        assert provider.requests[0].to_wire() == wire(limit=3, strategy="vector")

    def test_the_limit_is_memorys(self) -> None:
        provider = RecordingSearch(found())
        with two_workers(provider, defaults={"searchLimit": 4}) as runtime:
            runtime.invoke("MEMORY.SEARCH", {"query": "tea"}).unwrap()
        assert provider.limits == [4]

    @pytest.mark.parametrize(
        "answer",
        [
            RuntimeError(SECRET),
            RetrievalError("RETRIEVAL_PERMISSION_DENIED", SECRET),
            RetrievalError("RETRIEVAL_TIMEOUT", SECRET),
            MemoryNodeError("NOT_FOUND", SECRET),
            None,
        ],
        ids=str,
    )
    def test_whatever_fails_there_is_an_error_of_its_backend(self, answer: Any) -> None:
        search = RemoteRetrievalSearch({"name": "kb"}, map_output=must_not_map)
        with two_workers(RecordingSearch(answer), search) as runtime:
            result = runtime.invoke("MEMORY.SEARCH", {"query": "tea"})
        assert (result.status, result.error and result.error.code) == ("failed", "MEMORY_BACKEND_ERROR")
        assert SECRET not in result.model_dump_json()

    def test_so_is_a_content_that_is_no_record_and_a_retrieval_that_is_not_served(self) -> None:
        with two_workers(RecordingSearch(found("a"))) as runtime:
            unmapped = runtime.invoke("MEMORY.SEARCH", {"query": "tea"})
        search = RemoteRetrievalSearch({"name": "kb"})
        with Runtime(workers=[memory_worker(InMemoryStore(), search=search)]) as runtime:
            unserved = runtime.invoke("MEMORY.SEARCH", {"query": "tea"})
        codes = [result.error and result.error.code for result in (unmapped, unserved)]
        assert codes == ["MEMORY_BACKEND_ERROR"] * 2

    def test_two_hits_of_one_record_are_memorys_to_refuse(self) -> None:
        with two_workers(RecordingSearch(found(holding(A), holding(A)))) as runtime:
            result = runtime.invoke("MEMORY.SEARCH", {"query": "tea"})
        assert result.error is not None
        assert result.error.code == "INVALID_BACKEND_OUTPUT"

    def test_a_cancel_reaches_the_provider_and_ends_both(self) -> None:
        token = Cancellation()

        def cancel(_: object, call: RetrievalCall) -> Any:
            token.cancel("not wanted")
            assert call.cancel.is_cancelled
            call.check()

        with two_workers(RecordingSearch(cancel)) as runtime, pytest.raises(InvocationCancelled):
            runtime.invoke("MEMORY.SEARCH", {"query": "tea"}, cancel=token)


def context_id(text: str) -> str:
    return f"retrieval:{hashlib.sha256(text.encode()).hexdigest()}"


class TestMapContextCandidates:
    def test_an_item_has_content_source_and_where_it_was_found(self) -> None:
        target = {"name": "docs", "type": "t", "namespace": "n", "metadata": {"m": 1}}
        candidate = {
            "id": "1",
            "content": "Evidence",
            "score": 0.8,
            "source": {"target": "other", "ref": "urn:1"},
            "metadata": {"page": 3},
        }
        [item] = map_context_candidates(found(candidate, target=target))
        assert item == {
            "id": context_id('["docs","t","n","1"]'),
            "content": "Evidence",
            "source": {"uri": "urn:1"},
            "metadata": {"page": 3, "retrievalTarget": target, "score": 0.8},
        }

    @pytest.mark.parametrize(
        ("candidate", "named"),
        [
            ({"id": "1", "content": "x"}, '"1"'),
            ({"id": "1", "content": "x", "source": {"ref": "r"}}, '"1"'),
            ({"content": "x", "source": {"ref": "r"}}, '"r"'),
            ({"content": "x", "source": {"target": "t"}}, '"x"'),
            ({"content": "你好"}, '"你好"'),
            ({"content": {"b": [1.0, None], "a": True}}, '{"a":true,"b":[1,null]}'),
            ({"content": None}, "null"),
            ({"content": 0}, "0"),
            ({"id": "1", "content": "x", "score": 0}, '"1"'),
        ],
    )
    def test_the_id_is_that_of_the_target_with_id_ref_or_content(self, candidate: Any, named: str) -> None:
        [item] = map_context_candidates(found(candidate))
        assert item["id"] == context_id(f'["kb",null,null,{named}]')
        assert ("score" in item["metadata"]) == ("score" in candidate)

    def test_a_known_id(self) -> None:
        [item] = map_context_candidates(found({"id": "1", "content": 2}, target={"name": "docs"}))
        assert item["id"] == "retrieval:a2ccc4f12c88867748feec3d6490287f18f4c7a121c4f84cd17e360fbe908271"

    def test_the_order_of_a_contents_keys_does_not_matter(self) -> None:
        first, second = map_context_candidates(
            found({"content": {"a": 1, "b": {"c": 2, "d": 3}}}, {"content": {"b": {"d": 3, "c": 2}, "a": 1}})
        )
        assert first["id"] == second["id"]

    def test_contracts_are_as_good(self) -> None:
        output = found({"id": "1", "content": {"x": 1}, "metadata": {"m": 1}})
        typed = RetrievalSearchOutput.from_wire(output)
        assert map_context_candidates(typed) == map_context_candidates(output)

    def test_the_candidates_metadata_is_not_changed(self) -> None:
        output = RetrievalSearchOutput.from_wire(found({"content": 1, "metadata": {"m": 1}}))
        map_context_candidates(output)
        assert output.candidates[0].metadata == {"m": 1}

    @staticmethod
    def endless() -> list[Any]:
        content: list[Any] = []
        content.append(content)
        return content

    @pytest.mark.parametrize(
        "content", [float("nan"), {1}, b"x", object(), {1: 2}, {"a": [float("inf")]}, "\ud800"]
    )
    def test_a_content_without_a_json_form_is_refused(self, content: Any) -> None:
        candidate = RetrievalCandidate.model_construct({"content"}, content=content)
        unchecked = RetrievalSearchOutput.model_construct(
            {"candidates", "target"}, candidates=(candidate,), target=RetrievalTarget(name="kb")
        )
        for output in (found({"content": content}), unchecked):
            with pytest.raises(ContextError) as raised:
                map_context_candidates(output)
            assert raised.value.code == "INVALID_PROVIDER_OUTPUT"

    def test_so_is_one_that_contains_itself(self) -> None:
        with pytest.raises(ContextError, match="no JSON form"):
            map_context_candidates(found({"content": self.endless()}))

    @pytest.mark.parametrize("output", [{}, {"candidates": []}, found({"id": "1"}), found("a", target={})])
    def test_an_output_that_is_none_is_refused(self, output: Any) -> None:
        with pytest.raises(ContextError) as raised:
            map_context_candidates(output)
        assert raised.value.code == "INVALID_PROVIDER_OUTPUT"
