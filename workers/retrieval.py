"""The RETRIEVAL worker: one node over the targets that an application, or ditto.yaml, names."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.contracts.retrieval import RetrievalProviderRegistry
from ditto_tasks.nodes.retrieval import RETRIEVAL_CODES, Defaults, Retrieval
from ditto_tasks.worker import Worker, WorkerContext
from providers.retrieval.registry import Target, TargetRegistry

__all__ = ["Targets", "retrieval_worker"]

Targets = RetrievalProviderRegistry | Mapping[str, Target | Mapping[str, Any]]
_NODE = "RETRIEVAL.SEARCH"


def retrieval_worker(
    targets: Targets | Callable[[], Targets],
    *,
    defaults: Defaults = None,
    concurrency: int | None = None,
) -> Worker:
    """Define a worker for RETRIEVAL.SEARCH.

    Args:
        targets: a registry, or what `TargetRegistry` takes: their providers stay the caller's to close. Or a
            function that makes one, called once a process that runs the worker: what has a `close` is closed
            with it, the registry and then each provider.
        defaults: numbers for calls and providers that name none; before those of ditto.yaml.
        concurrency: calls that one process runs at once; None: `workers.retrieval.concurrency` in a Celery
            worker, no limit in-process.

    Raises:
        RetrievalError: a target, strategy or default is wrong, as `TargetRegistry` and `Retrieval` say.
        InvalidDefinition: the concurrency is out of range.
    """
    if not callable(targets):
        retrieval = Retrieval(_registry(targets), defaults=defaults)
        return Worker(
            "RETRIEVAL",
            {_NODE: _search},
            concurrency=concurrency,
            resources=lambda: retrieval,
            codes=RETRIEVAL_CODES,
        )
    return Worker(
        "RETRIEVAL",
        {_NODE: _search},
        concurrency=concurrency,
        resources=lambda: _OpenedRetrieval(targets(), defaults),
        dispose=lambda opened: opened.close(),
        codes=RETRIEVAL_CODES,
    )


class _OpenedRetrieval(Retrieval):
    """A retrieval that had its targets made, and so closes them."""

    def __init__(self, targets: Targets, defaults: Defaults) -> None:
        registry = _registry(targets)
        super().__init__(registry, defaults=defaults)
        self._registry = registry

    def close(self) -> None:
        closing: list[Any] = [self._registry]
        if isinstance(self._registry, TargetRegistry):
            closing += [
                provider
                for target in self._registry.targets.values()
                for provider in target.providers.values()
            ]
        each = {id(resource): resource for resource in closing}  # by what it is: it need have no hash
        with ExitStack() as stack:  # closes the rest even if one cannot be closed; the last one first
            for resource in reversed(each.values()):
                if callable(close := getattr(resource, "close", None)):
                    stack.callback(close)


def _registry(targets: Targets) -> RetrievalProviderRegistry:
    return TargetRegistry(targets) if isinstance(targets, Mapping) else targets


def _search(input: Any, context: WorkerContext) -> NodeResult:
    section = context.config.workers.retrieval
    retrieval: Retrieval = context.resources
    return retrieval.run(input, context.call, section.defaults())
