"""Targets by name and strategy."""

from collections.abc import Mapping
from typing import Any

import pytest

from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import RetrievalTarget
from providers.retrieval.registry import Target, TargetRegistry
from tests.doubles import RecordingSearch, found, request

KB = RetrievalTarget(name="kb")


def provider() -> RecordingSearch:
    return RecordingSearch(found())


def code_of(targets: Any) -> str:
    with pytest.raises(RetrievalError) as raised:
        TargetRegistry(targets)
    return raised.value.code


def unresolved(registry: TargetRegistry, target: str, strategy: str | None = None) -> RetrievalError:
    with pytest.raises(RetrievalError) as raised:
        registry.resolve(RetrievalTarget(name=target), strategy)
    return raised.value


def test_the_default_strategy_is_filled_in() -> None:
    asked = RecordingSearch(found({"id": "a", "content": 1}))
    registry = TargetRegistry({"kb": {"defaultStrategy": "keyword", "providers": {"keyword": asked}}})
    output = registry.resolve(KB).search(request(limit=5))
    assert output.strategy == asked.requests[0].strategy == "keyword"  # type: ignore[union-attr]
    assert asked.limits == [5]


def test_a_strategy_that_was_asked_for_is_the_one_that_is_served() -> None:
    vector, keyword = provider(), provider()
    registry = TargetRegistry({"kb": Target("vector", {"vector": vector, "keyword": keyword})})
    registry.resolve(KB, "keyword").search(request())
    assert [len(vector.requests), keyword.requests[0].strategy] == [0, "keyword"]


def test_one_provider_may_serve_several_strategies_and_is_told_which() -> None:
    shared = provider()
    registry = TargetRegistry({"kb": {"defaultStrategy": "a", "providers": {"a": shared, "b": shared}}})
    for strategy in (None, "b"):
        registry.resolve(KB, strategy).search(request())
    assert [asked.strategy for asked in shared.requests] == ["a", "b"]


@pytest.mark.parametrize("answer", [found(strategy="other"), found(target={"name": "other"}), None])
def test_an_answer_for_something_else_is_refused(answer: Any) -> None:
    registry = TargetRegistry({"kb": Target("a", {"a": RecordingSearch(answer)})})
    with pytest.raises(RetrievalError, match="answered wrongly"):
        registry.resolve(KB).search(request())


def test_an_answer_of_more_than_was_asked_for_is_refused() -> None:
    registry = TargetRegistry({"kb": Target("a", {"a": RecordingSearch(found(*"abcdefghijk"))})})
    with pytest.raises(RetrievalError, match="11 candidates where at most 10"):
        registry.resolve(KB).search(request())


class TestUnknown:
    registry = TargetRegistry({"kb": {"defaultStrategy": "a", "providers": {"a": provider()}}})

    @pytest.mark.parametrize("name", ["other", "KB", " kb", "__proto__", "__class__", "constructor"])
    def test_a_target(self, name: str) -> None:
        error = unresolved(self.registry, name)
        assert error.code == "RETRIEVAL_TARGET_NOT_FOUND"
        assert "there are 'kb'" in error.message

    @pytest.mark.parametrize("strategy", ["b", "A", "rag", "__proto__", ""])
    def test_a_strategy(self, strategy: str) -> None:
        error = unresolved(self.registry, "kb", strategy)
        assert error.code == "RETRIEVAL_STRATEGY_UNSUPPORTED"
        assert "it has 'a'" in error.message

    def test_a_long_name_does_not_fill_the_message(self) -> None:
        assert len(unresolved(self.registry, "x" * 10_000).message) < 200


class TestDefinition:
    @pytest.mark.parametrize("name", ["", " ", "\t", 1, None])
    def test_a_blank_name_is_refused(self, name: Any) -> None:
        assert code_of({name: Target("a", {"a": provider()})}) == "RETRIEVAL_INVALID_INPUT"

    @pytest.mark.parametrize("strategy", ["", " ", None, 1])
    def test_a_blank_strategy_is_refused(self, strategy: Any) -> None:
        assert code_of({"kb": Target(strategy, {"a": provider()})}) == "RETRIEVAL_INVALID_INPUT"
        assert code_of({"kb": Target("a", {"a": provider(), strategy: provider()})}) == (
            "RETRIEVAL_INVALID_INPUT"
        )

    @pytest.mark.parametrize("strategy", ["rag", "RAG", " Rag "])
    def test_rag_is_refused(self, strategy: str) -> None:
        for target in (
            Target(strategy, {strategy: provider()}),
            Target("a", {"a": provider(), strategy: provider()}),
        ):
            assert code_of({"kb": target}) == "RETRIEVAL_STRATEGY_UNSUPPORTED"

    @pytest.mark.parametrize("bad", [None, object(), {"search": "text"}, 1])
    def test_a_provider_must_search(self, bad: Any) -> None:
        assert code_of({"kb": Target("a", {"a": bad})}) == "RETRIEVAL_PROVIDER_UNAVAILABLE"

    @pytest.mark.parametrize("providers", [{}, {"b": provider()}])
    def test_the_default_must_be_registered(self, providers: dict[str, Any]) -> None:
        assert code_of({"kb": Target("a", providers)}) == "RETRIEVAL_STRATEGY_UNSUPPORTED"

    @pytest.mark.parametrize(
        "target",
        [None, [], "a", 1, {}, {"defaultStrategy": "a", "providers": None}, {"defaultStrategy": "a"}],
    )
    def test_something_that_is_no_target_is_refused(self, target: Any) -> None:
        assert code_of({"kb": target}).startswith("RETRIEVAL_")


class TestSnapshot:
    def test_later_changes_of_what_was_given_do_not_show(self) -> None:
        providers = {"a": provider()}
        targets: dict[str, Any] = {"kb": {"defaultStrategy": "a", "providers": providers}}
        registry = TargetRegistry(targets)
        providers["b"] = provider()
        targets["other"] = targets["kb"]
        assert unresolved(registry, "kb", "b").code == "RETRIEVAL_STRATEGY_UNSUPPORTED"
        assert unresolved(registry, "other").code == "RETRIEVAL_TARGET_NOT_FOUND"

    def test_what_it_lists_cannot_change_it(self) -> None:
        registry = TargetRegistry({"kb": Target("a", {"a": provider()})})
        listed: Any = registry.targets
        listed["other"] = listed["kb"]
        with pytest.raises(TypeError):
            listed["kb"].providers["b"] = provider()
        assert isinstance(registry.targets, Mapping)
        assert list(registry.targets) == ["kb"]
