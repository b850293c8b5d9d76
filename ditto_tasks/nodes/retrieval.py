"""RETRIEVAL.SEARCH over a registry of providers: input checked, limits filled in, answers checked.

`Retrieval` is the direct SDK; a worker calls the same object, so that both give the same result.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ditto_tasks.contracts.base import changed, describe
from ditto_tasks.contracts.call import Call, Invoker
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED, CancelToken
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.contracts.retrieval import (
    RetrievalCall,
    RetrievalDefaults,
    RetrievalProviderRegistry,
    RetrievalSearchInput,
    RetrievalSearchProvider,
    checked_output,
    checked_request,
)
from ditto_tasks.nodes.boundary import ErrorCodes, execute, new_execution_id

__all__ = ["RETRIEVAL_CODES", "Retrieval"]

RETRIEVAL_CODES = ErrorCodes(
    invalid_output="RETRIEVAL_INVALID_BACKEND_OUTPUT",
    backend_error="RETRIEVAL_BACKEND_ERROR",
    cancelled="RETRIEVAL_CANCELLED",
    timeout="RETRIEVAL_TIMEOUT",
    invalid_output_message="The retrieval provider returned an invalid result",
    backend_error_message="Retrieval backend operation failed",
    own=RetrievalError,
)

_NODE = "RETRIEVAL.SEARCH"
_NO_STRATEGY = "rag"  # an application of search, inference and context; never a way of searching

Defaults = RetrievalDefaults | Mapping[str, Any] | None


class Retrieval:
    """Calls RETRIEVAL.SEARCH directly, without runtime or queue.

    Args:
        targets: knows the provider of each target and strategy; what it opens stays the caller's to close.
        defaults: numbers for calls and providers that name none, as `RetrievalDefaults` or its wire form;
            copied.

    Raises:
        RetrievalError: RETRIEVAL_PROVIDER_UNAVAILABLE when `targets` cannot resolve,
            RETRIEVAL_INVALID_INPUT for a default out of range.
    """

    def __init__(self, targets: RetrievalProviderRegistry, *, defaults: Defaults = None) -> None:
        if not callable(getattr(targets, "resolve", None)):
            raise RetrievalError(
                "RETRIEVAL_PROVIDER_UNAVAILABLE", "targets must have a method `resolve`: see TargetRegistry"
            )
        self._targets = targets
        self._defaults = _checked_defaults(defaults).model_copy(deep=True)

    def search(
        self,
        input: Any,
        *,
        defaults: Defaults = None,
        cancel: CancelToken = NEVER_CANCELLED,
        runtime: Invoker | None = None,
    ) -> NodeResult:
        """Find candidates; whatever happens is told in the result, nothing is raised.

        Args:
            input: a dict in wire form, or a `RetrievalSearchInput`; it is not changed.
            defaults: used where neither the request nor the constructor gives a number.
            cancel: ends the call as cancelled.
            runtime: handed to providers that call other nodes.
        """
        return self.run(input, Call(new_execution_id(), cancel, runtime=runtime), defaults)

    def run(self, input: Any, call: Call, defaults: Defaults = None) -> NodeResult:
        """Run the node for a call that has its execution id, token and deadline already: a worker's."""
        return execute(_NODE, RETRIEVAL_CODES, call, lambda: self._run(input, call, defaults))

    def _run(self, input: Any, call: Call, defaults: Defaults) -> dict[str, Any]:
        asked = checked_request(input)
        search_call = RetrievalCall.of(call, self._defaults.over(_checked_defaults(defaults)))
        limit = search_call.limit(asked)
        request = changed(asked, limit=limit)
        answer = self._provider(request).search(request, search_call)
        return checked_output(answer, request, limit).to_wire()

    def _provider(self, request: RetrievalSearchInput) -> RetrievalSearchProvider:
        strategy = request.strategy
        if strategy is not None and strategy.strip().lower() == _NO_STRATEGY:
            raise RetrievalError(
                "RETRIEVAL_STRATEGY_UNSUPPORTED",
                "rag is no way of searching: search here, then pass what is found on to INFER",
            )
        provider = self._targets.resolve(request.target, strategy)
        if not callable(getattr(provider, "search", None)):
            raise RetrievalError("RETRIEVAL_PROVIDER_UNAVAILABLE", "The target's provider cannot search")
        return provider


def _checked_defaults(defaults: Defaults) -> RetrievalDefaults:
    try:
        return RetrievalDefaults.from_wire(defaults if defaults is not None else {})
    except ValidationError as error:
        raise RetrievalError("RETRIEVAL_INVALID_INPUT", f"retrieval defaults: {describe(error)}") from None
