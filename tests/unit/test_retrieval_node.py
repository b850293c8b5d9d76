"""RETRIEVAL.SEARCH over providers that record what they are asked and answer what they are told."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from ditto_tasks import (
    Call,
    Cancellation,
    DittoConfig,
    InvocationCancelled,
    NodeResult,
    NoWorkerAvailable,
    Runtime,
    load_config,
)
from ditto_tasks.contracts.errors import DeadlineExceeded, MemoryNodeError, RetrievalError
from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.contracts.retrieval import (
    RetrievalCandidate,
    RetrievalDefaults,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalTarget,
)
from ditto_tasks.nodes.retrieval import Retrieval
from providers.retrieval.registry import TargetRegistry
from tests.conftest import wait_until
from tests.doubles import RecordingSearch, found, request, wire
from workers.retrieval import retrieval_worker

SECRET = "token=secret"
PLAIN = wire()
BAD_DEFAULTS = {"searchLimit": 0}


def targets(provider: Any, strategy: str = "vector") -> TargetRegistry:
    return TargetRegistry({"kb": {"defaultStrategy": strategy, "providers": {strategy: provider}}})


def search(provider: Any, input: Any = PLAIN, **options: Any) -> NodeResult:
    return Retrieval(targets(provider)).search(input, **options)


def failure(result: NodeResult) -> tuple[str, str]:
    assert result.error is not None
    assert "output" not in result.to_wire()
    return result.status, result.error.code


def message(result: NodeResult) -> str:
    assert result.error is not None
    return result.error.message


def comparable(result: NodeResult) -> bytes:
    sent = result.to_wire()
    assert sent.pop("executionId")
    return encode_json(sent)


class OwnRegistry:
    """Gives one provider to whoever asks."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        self.asked: list[tuple[str, str | None]] = []

    def resolve(self, target: RetrievalTarget, strategy: str | None = None) -> Any:
        self.asked.append((target.name, strategy))
        if isinstance(self.provider, Exception):
            raise self.provider
        return self.provider


class TestInput:
    @pytest.mark.parametrize(
        "input",
        [
            None,
            [],
            "text",
            {},
            {"query": {"content": 1}},
            {"target": {"name": "kb"}},
            *(
                wire(**field)
                for field in (
                    {"query": {}},
                    {"query": None},
                    {"query": "tea"},
                    {"query": {"content": float("nan")}},
                    {"query": {"content": 1, "metadata": None}},
                    {"query": {"content": 1, "metadata": []}},
                    {"target": {}},
                    {"target": "kb"},
                    *({"target": {"name": name}} for name in ("", " ", "\t\n", None, 1)),
                    *({"target": {"name": "kb", "type": type}} for type in (" ", None, 1)),
                    *({"target": {"name": "kb", "namespace": namespace}} for namespace in ("", None, [])),
                    *({"target": {"name": "kb", "metadata": metadata}} for metadata in (None, [], "m")),
                    *({"strategy": strategy} for strategy in ("", "  ", None, 1)),
                    *({"limit": limit} for limit in (None, 0, -1, 10_001, 1.1, True, "5", float("inf"))),
                    *({"filter": filter} for filter in ([], None, "bad", {"a": {1}})),
                    *({"options": options} for options in ("bad", None, [])),
                )
            ),
        ],
    )
    def test_what_breaks_the_contract_is_refused_before_the_provider_is_asked(self, input: Any) -> None:
        provider = RecordingSearch(found())
        assert failure(search(provider, input)) == ("failed", "RETRIEVAL_INVALID_INPUT")
        assert provider.requests == []

    @pytest.mark.parametrize("content", [None, "", " ", 0, [], {}, [0.5, 1], {"all": ["a", "b"]}])
    def test_any_json_is_a_query(self, content: Any) -> None:
        provider = RecordingSearch(found())
        search(provider, wire(query={"content": content})).unwrap()
        assert provider.requests[0].query.content == content

    @pytest.mark.parametrize("limit", [1, 10_000, 10.0])
    def test_a_limit_at_either_end_is_taken(self, limit: float) -> None:
        provider = RecordingSearch(found())
        search(provider, wire(limit=limit)).unwrap()
        assert provider.limits == [limit]

    def test_the_whole_request_reaches_the_provider(self) -> None:
        provider = RecordingSearch(found(target={"name": "kb", "type": "t", "namespace": "n"}))
        input = {
            "query": {"content": ["x"], "metadata": {"q": 1}},
            "target": {"name": "kb", "type": "t", "namespace": "n", "metadata": {"t": None}},
            "strategy": "vector",
            "filter": {"year": {"gte": 2024}},
            "limit": 7,
            "options": {"ef": 64},
        }
        search(provider, input).unwrap()
        assert provider.requests[0].to_wire() == input

    def test_the_callers_input_is_not_changed(self) -> None:
        input, typed = wire(filter={"a": [1]}), request(filter={"a": [1]})
        before = deepcopy(input), typed.model_copy(deep=True)
        for given in (input, typed):
            search(RecordingSearch(found()), given).unwrap()
        assert (input, typed) == before
        assert typed.limit is None

    def test_the_provider_cannot_change_a_dict_of_the_callers(self) -> None:
        def meddle(asked: RetrievalSearchInput, _: object) -> Any:
            asked.query.content.append("more")
            return found()

        input = wire(query={"content": ["x"]})
        search(RecordingSearch(meddle), input).unwrap()
        assert input["query"] == {"content": ["x"]}


class TestOrderOfChecks:
    """Each fault is told before those that would only be met later."""

    def test_the_input_comes_before_the_defaults(self) -> None:
        result = search(RecordingSearch(found()), wire(limit=None), defaults=BAD_DEFAULTS)
        assert message(result).startswith("limit: ")

    def test_the_defaults_come_before_the_strategy(self) -> None:
        result = search(RecordingSearch(found()), wire(strategy="rag"), defaults=BAD_DEFAULTS)
        assert failure(result) == ("failed", "RETRIEVAL_INVALID_INPUT")
        assert "searchLimit" in message(result)

    @pytest.mark.parametrize("strategy", ["rag", "RAG", " Rag "])
    def test_rag_is_refused_before_the_registry_is_asked(self, strategy: str) -> None:
        registry = OwnRegistry(RecordingSearch(found()))
        result = Retrieval(registry).search(wire(strategy=strategy))
        assert failure(result) == ("failed", "RETRIEVAL_STRATEGY_UNSUPPORTED")
        assert registry.asked == []

    @pytest.mark.parametrize(
        ("input", "code"),
        [
            (wire(target={"name": "other"}), "RETRIEVAL_TARGET_NOT_FOUND"),
            (wire(target={"name": "__proto__"}), "RETRIEVAL_TARGET_NOT_FOUND"),
            (wire(target={"name": "other"}, strategy="other"), "RETRIEVAL_TARGET_NOT_FOUND"),
            (wire(strategy="other"), "RETRIEVAL_STRATEGY_UNSUPPORTED"),
            (wire(strategy="__class__"), "RETRIEVAL_STRATEGY_UNSUPPORTED"),
            (wire(strategy="Vector"), "RETRIEVAL_STRATEGY_UNSUPPORTED"),
        ],
    )
    def test_nothing_takes_the_place_of_an_unknown_target_or_strategy(self, input: Any, code: str) -> None:
        provider = RecordingSearch(found())
        assert failure(search(provider, input)) == ("failed", code)
        assert provider.requests == []

    @pytest.mark.parametrize("provider", [None, object(), 1])
    def test_a_registry_must_give_something_that_searches(self, provider: Any) -> None:
        result = Retrieval(OwnRegistry(provider)).search(wire())
        assert failure(result) == ("failed", "RETRIEVAL_PROVIDER_UNAVAILABLE")

    @pytest.mark.parametrize("registry", [None, {}, object()])
    def test_something_that_is_no_registry_is_refused_where_it_is_given(self, registry: Any) -> None:
        with pytest.raises(RetrievalError) as raised:
            Retrieval(registry)
        assert raised.value.code == "RETRIEVAL_PROVIDER_UNAVAILABLE"


class TestStrategy:
    def test_the_targets_default_reaches_provider_and_output(self) -> None:
        provider = RecordingSearch(found())
        output = search(provider).unwrap()
        assert provider.requests[0].strategy == output["strategy"] == "vector"

    def test_a_registry_of_ones_own_may_leave_it_open(self) -> None:
        registry = OwnRegistry(RecordingSearch(found()))
        assert "strategy" not in Retrieval(registry).search(wire()).unwrap()
        assert registry.asked == [("kb", None)]

    def test_the_provider_may_tell_it_then(self) -> None:
        registry = OwnRegistry(RecordingSearch(found(strategy="graph")))
        assert Retrieval(registry).search(wire()).unwrap()["strategy"] == "graph"


def yaml_config(tmp_path: Any, text: str) -> DittoConfig:
    path = tmp_path / "ditto.yaml"
    path.write_text(text)
    return load_config(path, {})


class TestDefaults:
    @pytest.mark.parametrize(
        ("own", "runtime", "asked", "limit"),
        [
            (None, None, {}, 10),
            (None, {"searchLimit": 2}, {}, 2),
            ({"searchLimit": 3}, {"searchLimit": 2}, {}, 3),
            ({"searchLimit": 3}, {"searchLimit": 2}, {"limit": 1}, 1),
            ({}, {"searchLimit": 2}, {}, 2),
        ],
    )
    def test_the_limit_is_the_requests_then_the_constructors_then_the_calls_then_ten(
        self, own: Any, runtime: Any, asked: Any, limit: int
    ) -> None:
        provider = RecordingSearch(found())
        Retrieval(targets(provider), defaults=own).search(wire(**asked), defaults=runtime).unwrap()
        assert provider.limits == [limit]

    def test_they_are_laid_over_each_other_field_by_field(self) -> None:
        provider = RecordingSearch(found())
        own = {"hybrid": {"rrfK": 1}, "embedding": {"dimensions": 3}}
        runtime = RetrievalDefaults.from_wire(
            {
                "searchLimit": 4,
                "hybrid": {"candidateLimit": 7, "rrfK": 3},
                "embedding": {"batchSize": 5},
                "rerank": {"candidateLimit": 9},
            }
        )
        Retrieval(targets(provider), defaults=own).search(wire(), defaults=runtime).unwrap()
        assert provider.calls[0].defaults.to_wire() == {
            "searchLimit": 4,
            "hybrid": {"candidateLimit": 7, "rrfK": 1},
            "embedding": {"batchSize": 5, "dimensions": 3},
            "rerank": {"candidateLimit": 9},
        }
        assert runtime.to_wire()["hybrid"] == {"candidateLimit": 7, "rrfK": 3}

    def test_the_file_is_below_the_worker_and_the_request_above_both(self, tmp_path: Any) -> None:
        config = yaml_config(
            tmp_path,
            "workers:\n  retrieval:\n    searchLimit: 2\n"
            "    hybrid: {candidateLimit: 7, rrfK: 3}\n    embedding: {batchSize: 5}\n",
        )
        provider = RecordingSearch(found())
        worker = retrieval_worker(targets(provider), defaults={"searchLimit": 3, "hybrid": {"rrfK": 1}})
        plain = RecordingSearch(found())
        with Runtime(config, workers=[worker]) as runtime:
            for input in (wire(), wire(limit=1)):
                runtime.invoke("RETRIEVAL.SEARCH", input).unwrap()
        with Runtime(config, workers=[retrieval_worker(targets(plain))]) as runtime:
            runtime.invoke("RETRIEVAL.SEARCH", wire()).unwrap()
        assert (provider.limits, plain.limits) == ([3, 1], [2])
        assert provider.calls[0].hybrid.to_wire() == {"candidateLimit": 7, "rrfK": 1}
        assert plain.calls[0].hybrid.to_wire() == {"candidateLimit": 7, "rrfK": 3}
        assert provider.calls[0].embedding.batch_size == plain.calls[0].embedding.batch_size == 5

    def test_the_constructor_copies_them(self) -> None:
        provider, given = RecordingSearch(found()), {"searchLimit": 3, "hybrid": {"rrfK": 1}}
        retrieval = Retrieval(targets(provider), defaults=given)
        given["searchLimit"] = 9
        given["hybrid"]["rrfK"] = 9  # type: ignore[index]
        retrieval.search(wire()).unwrap()
        assert provider.limits == [3]
        assert provider.calls[0].hybrid.rrf_k == 1

    BAD: tuple[Any, ...] = (
        *({"searchLimit": limit} for limit in (0, 10_001, None, True, 1.5, "3")),
        *({"hybrid": {"candidateLimit": limit}} for limit in (0, 10_001, None)),
        *({"hybrid": {"rrfK": k}} for k in (0, -1, 1.5, 2**53)),
        *({"embedding": {"batchSize": size}} for size in (0, 2049)),
        *({"embedding": {"dimensions": dimensions}} for dimensions in (0, None, 2**53)),
        {"rerank": {"candidateLimit": 0}},
        {"rerank": None},
        [],
        "searchLimit",
    )

    @pytest.mark.parametrize("defaults", BAD)
    def test_bad_ones_are_refused_where_they_are_given(self, defaults: Any) -> None:
        with pytest.raises(RetrievalError) as raised:
            Retrieval(targets(RecordingSearch(found())), defaults=defaults)
        assert raised.value.code == "RETRIEVAL_INVALID_INPUT"

    @pytest.mark.parametrize("defaults", BAD)
    def test_bad_ones_of_a_call_fail_it(self, defaults: Any) -> None:
        provider = RecordingSearch(found())
        assert failure(search(provider, defaults=defaults)) == ("failed", "RETRIEVAL_INVALID_INPUT")
        assert provider.requests == []


class TestOutput:
    def test_candidates_are_returned_as_they_came(self) -> None:
        candidates = [
            {"content": None, "score": -3},
            {"id": "a", "content": {"text": "x"}, "score": 12, "source": {"target": "t", "ref": "r"}},
            {"id": "a", "content": [1.5], "score": 1e300, "metadata": {"m": None}},
            {"id": "a", "content": "", "source": {}, "metadata": {}},
        ]
        provider = RecordingSearch(found(*candidates, metadata={"took": 3}))
        assert search(provider).unwrap() == {
            "candidates": candidates,
            "strategy": "vector",
            "target": {"name": "kb"},
            "metadata": {"took": 3},
        }

    def test_nothing_found_is_a_success(self) -> None:
        output = search(RecordingSearch(found())).unwrap()
        assert output == {"candidates": [], "target": {"name": "kb"}, "strategy": "vector"}

    def test_contracts_are_as_good_as_dicts(self) -> None:
        wired = found({"content": 1, "score": 0.5, "source": {"ref": "r"}}, strategy="vector", metadata={})
        typed = RetrievalSearchOutput.from_wire(wired)
        mixed = {**wired, "candidates": (RetrievalCandidate.from_wire(wired["candidates"][0]),)}
        given = [search(RecordingSearch(answer)) for answer in (wired, typed, mixed)]
        assert len({comparable(result) for result in given}) == 1

    def test_unknown_fields_are_dropped(self) -> None:
        provider = RecordingSearch(found({"content": 1, "vector": [1.0]}, raw={"secret": 1}))
        output = search(provider).unwrap()
        assert output == {"candidates": [{"content": 1}], "target": {"name": "kb"}, "strategy": "vector"}

    def test_the_target_is_the_requests(self) -> None:
        asked = {"name": "kb", "namespace": "n", "metadata": {"mine": [1]}}
        provider = RecordingSearch(
            found(target={"name": "kb", "namespace": "n", "metadata": {"provider's": 1}})
        )
        assert search(provider, wire(target=asked)).unwrap()["target"] == asked

    def test_exactly_the_limit_is_not_too_many(self) -> None:
        assert len(search(RecordingSearch(found("a", "b")), wire(limit=2)).unwrap()["candidates"]) == 2

    @pytest.mark.parametrize(
        "answer",
        [
            *(None, 1, "text", [], {}, object()),
            {"candidates": []},
            {"target": {"name": "kb"}},
            *(
                found(**{"candidates": bad})
                for bad in (None, "text", {}, {"0": {"content": 1}}, [None], [[]], ["text"], iter([]))
            ),
            *(
                found(target=target)
                for target in (
                    None,
                    "kb",
                    {},
                    {"name": " "},
                    {"name": "other"},
                    {"name": "kb", "type": "t"},
                    {"name": "kb", "namespace": "n"},
                    {"name": "kb", "metadata": None},
                )
            ),
            *(found(strategy=strategy) for strategy in ("", " ", None, 1, "keyword", "Vector")),
            *(found(metadata=metadata) for metadata in (None, [], "m", {"a": float("nan")}, {1: 1})),
            *(
                found({"content": 1, **bad})
                for bad in (
                    *({"id": id} for id in ("", " ", None, 1)),
                    *(
                        {"score": score}
                        for score in (None, True, "1", float("nan"), float("inf"), 10**400, [1])
                    ),
                    *({"metadata": metadata} for metadata in (None, [], {"a": {1}})),
                    *({"source": source} for source in (None, [], "s", {"ref": " "}, {"target": None})),
                    *({"content": content} for content in (float("nan"), {1}, b"", object(), {1: 2})),
                )
            ),
            found({"id": "a"}),
            found(*"abcdefghijk"),
        ],
    )
    def test_what_breaks_the_contract_fails_the_call(self, answer: Any) -> None:
        result = search(RecordingSearch(answer))
        assert failure(result) == ("failed", "RETRIEVAL_INVALID_BACKEND_OUTPUT")

    def test_a_target_that_says_less_than_the_request_is_another(self) -> None:
        result = search(RecordingSearch(found()), wire(target={"name": "kb", "namespace": "n"}))
        assert failure(result) == ("failed", "RETRIEVAL_INVALID_BACKEND_OUTPUT")

    def test_its_content_is_not_told(self, caplog: pytest.LogCaptureFixture) -> None:
        answer = found({"content": 1, "id": {"token": SECRET}}, {"content": {SECRET}, "score": SECRET})
        with caplog.at_level(logging.INFO):
            result = search(RecordingSearch(answer))
        assert SECRET not in result.model_dump_json()
        assert SECRET not in caplog.text

    def test_a_content_that_contains_itself_is_refused(self) -> None:
        content: list[Any] = []
        content.append(content)
        result = search(RecordingSearch(found({"content": content})))
        assert failure(result) == ("failed", "RETRIEVAL_INVALID_BACKEND_OUTPUT")


CODES = {
    "RETRIEVAL_INVALID_INPUT": "failed",
    "RETRIEVAL_TARGET_NOT_FOUND": "failed",
    "RETRIEVAL_STRATEGY_UNSUPPORTED": "failed",
    "RETRIEVAL_PROVIDER_UNAVAILABLE": "failed",
    "RETRIEVAL_INVALID_BACKEND_OUTPUT": "failed",
    "RETRIEVAL_BACKEND_ERROR": "failed",
    "RETRIEVAL_INVALID_EMBEDDING": "failed",
    "RETRIEVAL_CANCELLED": "cancelled",
    "RETRIEVAL_TIMEOUT": "timeout",
    "RETRIEVAL_PERMISSION_DENIED": "failed",
}
ACCIDENTS = [
    RuntimeError(SECRET),
    KeyError(SECRET),
    OSError(5, SECRET),
    TimeoutError(SECRET),
    MemoryNodeError("NOT_FOUND", SECRET),
    SystemExit(SECRET),
]


class TestErrors:
    @pytest.mark.parametrize(("code", "status"), CODES.items())
    def test_what_a_provider_says_on_purpose_is_told(self, code: str, status: str) -> None:
        result = search(RecordingSearch(RetrievalError(code, "why")))
        assert failure(result) == (status, code)
        assert message(result) == "why"

    def test_what_a_registry_says_on_purpose_is_told(self) -> None:
        registry = OwnRegistry(RetrievalError("RETRIEVAL_PERMISSION_DENIED", "not yours"))
        assert failure(Retrieval(registry).search(wire())) == ("failed", "RETRIEVAL_PERMISSION_DENIED")

    @pytest.mark.parametrize("error", ACCIDENTS, ids=lambda error: type(error).__name__)
    @pytest.mark.parametrize("by", ["provider", "registry"])
    def test_accidents_are_hidden(
        self, error: BaseException, by: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> Any:
            raise error

        registry = OwnRegistry(RecordingSearch(fail))
        if by == "registry":
            registry.resolve = fail  # type: ignore[assignment]
        with caplog.at_level(logging.INFO):
            result = Retrieval(registry).search(wire())
        assert failure(result) == ("failed", "RETRIEVAL_BACKEND_ERROR")
        assert message(result) == "Retrieval backend operation failed"
        assert SECRET not in result.model_dump_json()
        assert SECRET not in caplog.text
        [record] = caplog.records
        assert result.execution_id in record.getMessage()

    def test_the_deadline_is_a_timeout(self) -> None:
        assert failure(search(RecordingSearch(DeadlineExceeded("late")))) == ("timeout", "RETRIEVAL_TIMEOUT")

    def test_a_call_whose_time_is_used_up_does_not_begin(self) -> None:
        provider = RecordingSearch(found())
        result = Retrieval(targets(provider)).run(wire(), Call("id-1", deadline=0.0))
        assert failure(result) == ("timeout", "RETRIEVAL_TIMEOUT")
        assert provider.requests == []

    def test_an_interrupt_is_nobodys_to_hide(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            search(RecordingSearch(KeyboardInterrupt()))


OUTCOMES: dict[str, Callable[[], Any]] = {
    "a good answer": found,
    "a bad answer": lambda: None,
    "an error of its own": lambda: RetrievalError("RETRIEVAL_PERMISSION_DENIED", "no"),
    "a timeout": lambda: RetrievalError("RETRIEVAL_TIMEOUT", "late"),
    "an accident": lambda: RuntimeError(SECRET),
    "the deadline": lambda: DeadlineExceeded("late"),
    "the token": lambda: InvocationCancelled("changed my mind"),
}


class TestCancel:
    @pytest.mark.parametrize("input", [wire(), None, wire(strategy="rag"), wire(target={"name": "other"})])
    def test_a_token_set_before_the_call_comes_before_every_other_fault(self, input: Any) -> None:
        provider, token = RecordingSearch(found()), Cancellation()
        token.cancel("not wanted")
        result = Retrieval(targets(provider)).search(input, cancel=token)
        assert failure(result) == ("cancelled", "RETRIEVAL_CANCELLED")
        assert message(result) == "not wanted"
        assert provider.requests == []

    @pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
    def test_a_token_set_meanwhile_comes_before_every_outcome(self, outcome: Callable[[], Any]) -> None:
        token = Cancellation()

        def cancel_and_answer(*_: object) -> Any:
            token.cancel("changed my mind")
            return outcome()

        result = search(RecordingSearch(cancel_and_answer), cancel=token)
        assert failure(result) == ("cancelled", "RETRIEVAL_CANCELLED")
        assert message(result) == "changed my mind"

    def test_the_runtime_raises_instead(self) -> None:
        token = Cancellation()

        def cancel(*_: object) -> Any:
            token.cancel("changed my mind")
            return found()

        worker = retrieval_worker(targets(RecordingSearch(cancel)))
        with Runtime(workers=[worker]) as runtime, pytest.raises(InvocationCancelled, match="changed my"):
            runtime.invoke("RETRIEVAL.SEARCH", wire(), cancel=token)


class TestCall:
    def test_token_and_runtime_reach_the_provider(self) -> None:
        provider, token = RecordingSearch(found()), Cancellation()
        with Runtime() as runtime:
            result = search(provider, cancel=token, runtime=runtime)
        [call] = provider.calls
        assert (call.cancel, call.runtime, call.execution_id) == (token, runtime, result.execution_id)

    def test_a_workers_provider_gets_the_time_that_is_left_and_the_bound_runtime(self) -> None:
        provider = RecordingSearch(found())
        with Runtime(workers=[retrieval_worker(targets(provider))]) as runtime:
            runtime.invoke("RETRIEVAL.SEARCH", wire(), timeout=20).unwrap()
        remaining = provider.calls[0].remaining()
        assert remaining is not None
        assert 0 < remaining <= 20
        assert provider.calls[0].runtime is not None

    def test_every_call_has_an_id_of_its_own(self) -> None:
        retrieval = Retrieval(targets(RecordingSearch(found())))
        results = [retrieval.search(wire()) for _ in range(3)]
        assert len({result.execution_id for result in results}) == 3
        assert {result.node for result in results} == {"RETRIEVAL.SEARCH"}


@pytest.mark.parametrize(
    ("input", "answer"),
    [
        (wire(), found({"content": {"ü": "你好"}, "score": 1.0})),
        (wire(limit=1), found("a", "b")),
        (wire(limit=None), found()),
        (wire(strategy="rag"), found()),
        (wire(target={"name": "other"}), found()),
        (wire(), RetrievalError("RETRIEVAL_TIMEOUT", "late")),
        (wire(), RuntimeError(SECRET)),
        (wire(target={"name": "kb", "metadata": {"a": 1.0}}), found()),
    ],
)
def test_a_direct_call_and_one_of_a_runtime_give_the_same_bytes(input: Any, answer: Any) -> None:
    direct = search(RecordingSearch(answer), input)
    with Runtime(workers=[retrieval_worker(targets(RecordingSearch(answer)))]) as runtime:
        assert comparable(runtime.invoke("RETRIEVAL.SEARCH", input)) == comparable(direct)


def test_without_a_worker_the_node_is_not_served() -> None:
    with Runtime() as runtime, pytest.raises(NoWorkerAvailable):
        runtime.invoke("RETRIEVAL.SEARCH", wire())


def test_two_replicas_of_one_slot_take_two_calls_and_a_third_is_refused() -> None:
    release = threading.Event()

    def hold(*_: object) -> Any:
        assert release.wait(30)
        return found("a")

    provider = RecordingSearch(hold)
    worker = retrieval_worker(targets(provider), concurrency=1)
    runtime = Runtime(workers=[worker, worker])
    with ThreadPoolExecutor(3) as threads:
        held = [threads.submit(runtime.invoke, "RETRIEVAL.SEARCH", wire()) for _ in range(2)]
        wait_until(lambda: len(provider.requests) == 2, what="both replicas are at work")
        with pytest.raises(NoWorkerAvailable):
            runtime.invoke("RETRIEVAL.SEARCH", wire())
        closing = threads.submit(runtime.close)
        release.set()
        assert [call.result(30).status for call in held] == ["success", "success"]
        closing.result(30)


@dataclass
class Closable(RecordingSearch):
    """A provider that notes when it is closed; like any dataclass that can change, it has no hash."""

    name: str
    closed: list[str]
    fails: bool = False

    def __post_init__(self) -> None:
        super().__init__(found())

    def close(self) -> None:
        self.closed.append(self.name)
        if self.fails:
            raise RuntimeError("cannot close")


class TestWorker:
    def test_targets_that_were_made_for_it_are_closed_with_it_each_once(self) -> None:
        opened, closed = [], list[str]()

        def open_targets() -> Any:
            opened.append(1)
            shared = Closable("shared", closed)
            providers = {"a": shared, "b": shared, "c": Closable("other", closed), "d": RecordingSearch(1)}
            return {"kb": {"defaultStrategy": "a", "providers": providers}}

        worker = retrieval_worker(open_targets)
        assert opened == []
        with Runtime(workers=[worker, worker]) as runtime:
            runtime.invoke("RETRIEVAL.SEARCH", wire()).unwrap()
            assert len(opened) == 2
            assert closed == []
        assert sorted(closed) == ["other", "other", "shared", "shared"]

    def test_one_that_cannot_be_closed_leaves_no_other_open(self) -> None:
        closed: list[str] = []
        providers = {name: Closable(name, closed, fails=name == "a") for name in ("a", "b")}
        worker = retrieval_worker(lambda: {"kb": {"defaultStrategy": "a", "providers": providers}})
        runtime = Runtime(workers=[worker])
        with pytest.raises(ExceptionGroup, match="cleanup failed"):
            runtime.close()
        assert closed == ["a", "b"]

    def test_targets_that_were_given_stay_the_callers_to_close(self) -> None:
        closed: list[str] = []
        worker = retrieval_worker(targets(Closable("given", closed)))
        with Runtime(workers=[worker]) as runtime:
            runtime.invoke("RETRIEVAL.SEARCH", wire()).unwrap()
        assert closed == []

    def test_a_registry_that_it_was_made_closes_what_it_opened(self) -> None:
        closed: list[str] = []

        class Opened(OwnRegistry):
            def close(self) -> None:
                closed.append("registry")

        with Runtime(workers=[retrieval_worker(lambda: Opened(RecordingSearch(found())))]) as runtime:
            runtime.invoke("RETRIEVAL.SEARCH", wire()).unwrap()
        assert closed == ["registry"]

    def test_it_offers_one_node(self) -> None:
        worker = retrieval_worker(targets(RecordingSearch(found())), concurrency=3)
        assert (worker.type, worker.capabilities, worker.concurrency) == (
            "RETRIEVAL",
            ("RETRIEVAL.SEARCH",),
            3,
        )

    def test_wrong_targets_are_refused_where_they_are_given(self) -> None:
        with pytest.raises(RetrievalError, match="has no method `search`"):
            retrieval_worker({"kb": {"defaultStrategy": "a", "providers": {"a": 1}}})
