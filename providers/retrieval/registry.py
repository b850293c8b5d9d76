"""Target and strategy -> provider."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ditto_tasks.contracts.base import changed
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalSearchInput,
    RetrievalSearchOutput,
    RetrievalSearchProvider,
    RetrievalTarget,
    checked_output,
)

__all__ = ["Target", "TargetRegistry"]


@dataclass(frozen=True, slots=True)
class Target:
    """One corpus and the ways of searching it."""

    default_strategy: str
    providers: Mapping[str, RetrievalSearchProvider]


class TargetRegistry:
    """Serves targets by name; what is registered is copied, providers stay the caller's to close.

    Args:
        targets: by name, each a `Target` or a dict with `defaultStrategy` and `providers`.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT for a blank name or strategy, RETRIEVAL_STRATEGY_UNSUPPORTED
            for the strategy rag or a default that is not registered, RETRIEVAL_PROVIDER_UNAVAILABLE for a
            provider that cannot search.
    """

    def __init__(self, targets: Mapping[str, Target | Mapping[str, Any]]) -> None:
        self._targets = {name: _checked(name, target) for name, target in targets.items()}

    @property
    def targets(self) -> Mapping[str, Target]:
        """The targets by name; neither they nor their providers can be changed by this."""
        return dict(self._targets)

    def resolve(self, target: RetrievalTarget, strategy: str | None = None) -> RetrievalSearchProvider:
        """Return the provider of a target's strategy, or of its default one.

        Raises:
            RetrievalError: RETRIEVAL_TARGET_NOT_FOUND or RETRIEVAL_STRATEGY_UNSUPPORTED, naming those known.
        """
        known = self._targets.get(target.name)
        if known is None:
            raise RetrievalError(
                "RETRIEVAL_TARGET_NOT_FOUND",
                f"there is no target {target.name!r:.80}: there are {_listed(self._targets)}",
            )
        chosen = known.default_strategy if strategy is None else strategy
        provider = known.providers.get(chosen)
        if provider is None:
            raise RetrievalError(
                "RETRIEVAL_STRATEGY_UNSUPPORTED",
                f"the target {target.name!r:.80} has no strategy {chosen!r:.80}: "
                f"it has {_listed(known.providers)}",
            )
        return _Bound(provider, chosen)


class _Bound:
    """A provider that is asked by one strategy, and answers for no other."""

    def __init__(self, provider: RetrievalSearchProvider, strategy: str) -> None:
        self._provider = provider
        self._strategy = strategy

    def search(
        self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> RetrievalSearchOutput:
        asked = changed(request, strategy=self._strategy)
        return checked_output(self._provider.search(asked, call), asked, call.limit(asked))


def _checked(name: Any, target: Any) -> Target:
    if isinstance(target, Mapping):
        target = Target(target.get("defaultStrategy", ""), target.get("providers", {}))
    if not isinstance(target, Target) or not isinstance(target.providers, Mapping):
        raise RetrievalError(
            "RETRIEVAL_INVALID_INPUT",
            f"target {name!r:.80}: needs a `defaultStrategy` and `providers` by strategy",
        )
    default, providers = target.default_strategy, MappingProxyType(dict(target.providers))
    for text in (name, default, *providers):
        if not isinstance(text, str) or not text.strip():
            raise RetrievalError(
                "RETRIEVAL_INVALID_INPUT", f"target {name!r:.80}: names and strategies must not be blank"
            )
    if any(strategy.strip().lower() == "rag" for strategy in (default, *providers)):
        raise RetrievalError("RETRIEVAL_STRATEGY_UNSUPPORTED", f"target {name!r:.80}: rag is no strategy")
    for strategy, provider in providers.items():
        if not callable(getattr(provider, "search", None)):
            raise RetrievalError(
                "RETRIEVAL_PROVIDER_UNAVAILABLE",
                f"target {name!r:.80}: the provider of {strategy!r:.80} has no method `search`",
            )
    if default not in providers:
        raise RetrievalError(
            "RETRIEVAL_STRATEGY_UNSUPPORTED",
            f"target {name!r:.80}: the default strategy {default!r:.80} is not among {_listed(providers)}",
        )
    return Target(default, providers)


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
