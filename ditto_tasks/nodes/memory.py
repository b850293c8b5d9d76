"""The six MEMORY nodes over a store and a search: input checked, limits filled in, answers checked.

`Memory` is the direct SDK; a worker calls the same object, so that both give the same result.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import partial
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ditto_tasks.contracts.base import Contract, changed, describe, expected, trusted
from ditto_tasks.contracts.call import Call, Invoker
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED, CancelToken
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError
from ditto_tasks.contracts.memory import (
    DEFAULT_QUERY_LIMIT,
    DEFAULT_SEARCH_LIMIT,
    MemoryDefaults,
    MemoryDeleteInput,
    MemoryDeleteOutput,
    MemoryGetInput,
    MemoryHit,
    MemoryItem,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemorySearchInput,
    MemorySearchProvider,
    MemoryStore,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.node import NodeResult
from ditto_tasks.nodes.boundary import ErrorCodes, InvalidOutput, execute, new_execution_id

__all__ = ["MEMORY_CODES", "Memory"]

MEMORY_CODES = ErrorCodes(
    invalid_output="INVALID_BACKEND_OUTPUT",
    backend_error="MEMORY_BACKEND_ERROR",
    cancelled="MEMORY_CANCELLED",
    timeout="TIMEOUT",
    invalid_output_message="MEMORY backend returned an invalid result",
    backend_error_message="Memory backend operation failed",
    own=MemoryNodeError,
)

Defaults = MemoryDefaults | Mapping[str, Any] | None
C = TypeVar("C", bound=Contract)

_DEFERRED = ConfigDict(defer_build=True)  # as the models are
_ITEMS = TypeAdapter(list[MemoryItem], config=_DEFERRED)
_HITS = TypeAdapter(list[MemoryHit], config=_DEFERRED)
_NO_DEFAULTS = trusted(MemoryDefaults, {})


class Memory:
    """Calls the MEMORY nodes directly, without runtime or queue.

    Args:
        store: keeps the records; stays the caller's to close.
        search: finds them; None: the store itself, when it has a `search`.
        defaults: limits for calls that name none, as `MemoryDefaults` or its wire form; copied.

    Raises:
        InvalidDefinition: a default is not an integer from 1 to 10,000.
    """

    def __init__(
        self, store: MemoryStore, *, search: MemorySearchProvider | None = None, defaults: Defaults = None
    ) -> None:
        self._store = store
        self._search = search if search is not None else _search_of(store)
        self._defaults = _checked_defaults(defaults)
        self._handlers: dict[str, Callable[[Any, Call, MemoryDefaults], Any]] = {
            "MEMORY.GET": self._get,
            "MEMORY.QUERY": self._query,
            "MEMORY.SEARCH": self._find,
            "MEMORY.WRITE": self._write,
            "MEMORY.UPDATE": self._update,
            "MEMORY.DELETE": self._delete,
        }

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the six nodes."""
        return tuple(self._handlers)

    def get(self, input: Any, *, cancel: CancelToken = NEVER_CANCELLED) -> NodeResult:
        """Read records by id or key; see `execute`."""
        return self.execute("MEMORY.GET", input, cancel=cancel)

    def query(self, input: Any, *, cancel: CancelToken = NEVER_CANCELLED) -> NodeResult:
        """List records in pages; see `execute`."""
        return self.execute("MEMORY.QUERY", input, cancel=cancel)

    def search(self, input: Any, *, cancel: CancelToken = NEVER_CANCELLED) -> NodeResult:
        """Find records by relevance; see `execute`."""
        return self.execute("MEMORY.SEARCH", input, cancel=cancel)

    def write(self, input: Any, *, cancel: CancelToken = NEVER_CANCELLED) -> NodeResult:
        """Create records; see `execute`."""
        return self.execute("MEMORY.WRITE", input, cancel=cancel)

    def update(self, input: Any, *, cancel: CancelToken = NEVER_CANCELLED) -> NodeResult:
        """Change records; see `execute`."""
        return self.execute("MEMORY.UPDATE", input, cancel=cancel)

    def delete(self, input: Any, *, cancel: CancelToken = NEVER_CANCELLED) -> NodeResult:
        """Remove records; see `execute`."""
        return self.execute("MEMORY.DELETE", input, cancel=cancel)

    def execute(
        self,
        node: str,
        input: Any,
        *,
        cancel: CancelToken = NEVER_CANCELLED,
        runtime: Invoker | None = None,
        defaults: Defaults = None,
    ) -> NodeResult:
        """Run any of the six nodes; whatever happens is told in the result, nothing is raised.

        Args:
            node: for example `MEMORY.GET`; another name gives UNKNOWN_NODE.
            input: a dict in wire form, or the node's input contract.
            cancel: ends the call as cancelled; a write that was committed stays.
            runtime: handed to the store and the search, for those that call other nodes.
            defaults: limits, used where neither the request nor the constructor named one.
        """
        return self.run(node, input, Call(new_execution_id(), cancel, runtime=runtime), defaults)

    def run(self, node: str, input: Any, call: Call, defaults: Defaults = None) -> NodeResult:
        """Run one node for a call that has its execution id, token and deadline already: a worker's."""
        return execute(node, MEMORY_CODES, call, partial(self._run, node, input, call, defaults))

    def _run(self, node: str, input: Any, call: Call, defaults: Defaults) -> Any:
        handler = self._handlers.get(node)
        if handler is None:
            known = ", ".join(self._handlers)
            raise MemoryNodeError("UNKNOWN_NODE", f"{node!r:.80} is not a MEMORY node: use one of {known}")
        return handler(input, call, _NO_DEFAULTS if defaults is None else _request(MemoryDefaults, defaults))

    def _get(self, input: Any, call: Call, _: MemoryDefaults) -> list[dict[str, Any]]:
        request = _request(MemoryGetInput, input)
        ids = tuple(dict.fromkeys(request.ids or ()))
        keys = tuple(dict.fromkeys(request.keys or ()))
        if not ids and not keys:
            return []
        found = _items(self._store.get(trusted(MemoryGetInput, {"ids": ids, "keys": keys}), call))
        wanted = {id: found[id] for id in ids if id in found}
        if keys:
            by_key = {item.key: item for item in found.values()}
            wanted.update((by_key[key].id, by_key[key]) for key in keys if key in by_key)
        return _wire(_ITEMS, list(wanted.values()))

    def _query(self, input: Any, call: Call, defaults: MemoryDefaults) -> dict[str, Any]:
        request = _request(MemoryQueryInput, input)
        limit = request.limit or self._defaults.query_limit or defaults.query_limit or DEFAULT_QUERY_LIMIT
        answer = self._store.query(_limited(request, limit), call)
        page = _checked(MemoryQueryOutput, answer)
        _at_most(limit, page.items)
        _distinct([item.id for item in page.items])
        return page.to_wire()

    def _find(self, input: Any, call: Call, defaults: MemoryDefaults) -> list[dict[str, Any]]:
        request = _request(MemorySearchInput, input)
        if self._search is None:
            raise MemoryNodeError(
                "SEARCH_UNAVAILABLE", "This memory has no search: give the worker a search provider"
            )
        limit = request.limit or self._defaults.search_limit or defaults.search_limit or DEFAULT_SEARCH_LIMIT
        answer = self._search.search(_limited(request, limit), call)
        hits = [_checked(MemoryHit, hit) for hit in _listed(answer)]
        _at_most(limit, hits)
        _distinct([hit.memory.id for hit in hits])
        return _wire(_HITS, hits)

    def _write(self, input: Any, call: Call, _: MemoryDefaults) -> list[dict[str, Any]]:
        request = _request(MemoryWriteInput, input)
        if not request.memories:
            return []
        written = _items(self._store.write(request, call))
        _as_many(len(request.memories), written)
        return _wire(_ITEMS, list(written.values()))

    def _update(self, input: Any, call: Call, _: MemoryDefaults) -> list[dict[str, Any]]:
        request = _request(MemoryUpdateInput, input)
        if not request.memories:
            return []
        updated = _items(self._store.update(request, call))
        _as_many(len(request.memories), updated)
        if updated.keys() != {patch.id for patch in request.memories}:
            raise InvalidOutput("another record than those requested was updated")
        return _wire(_ITEMS, list(updated.values()))

    def _delete(self, input: Any, call: Call, _: MemoryDefaults) -> dict[str, Any]:
        request = _request(MemoryDeleteInput, input)
        ids = tuple(dict.fromkeys(request.ids))
        if not ids:
            return {"deleted": []}
        output = _checked(MemoryDeleteOutput, self._store.delete(MemoryDeleteInput(ids=ids), call))
        _distinct(output.deleted)
        if not set(output.deleted) <= set(ids):
            raise InvalidOutput("an id was deleted that nobody asked for")
        return output.to_wire()


def _search_of(store: MemoryStore) -> MemorySearchProvider | None:
    return store if isinstance(store, MemorySearchProvider) else None


def _checked_defaults(defaults: Defaults) -> MemoryDefaults:
    try:
        return MemoryDefaults.from_wire(defaults if defaults is not None else {})
    except ValidationError as error:
        raise InvalidDefinition(f"memory defaults: {describe(error)}") from None


def _request(contract: type[C], input: Any) -> C:
    try:
        return contract.from_wire(input)
    except ValidationError as error:
        raise MemoryNodeError("INVALID_INPUT", describe(error)) from None


def _checked(contract: type[C], answer: Any) -> C:
    """Read what a provider answered, contract or wire form alike."""
    if type(answer) is contract:
        return answer  # as `from_wire` would, in a fraction of its time
    try:
        return contract.from_wire(answer)
    except ValidationError as error:
        raise InvalidOutput(expected(error)) from None


def _limited(request: C, limit: int) -> C:
    """Give a request the limit that holds for it; often it is the one that it names."""
    if getattr(request, "limit", None) == limit:
        return request
    return changed(request, limit=limit)


def _listed(answer: Any) -> Sequence[Any]:
    if not isinstance(answer, list | tuple):
        raise InvalidOutput(f"a {type(answer).__name__} where a list was due")
    return answer


def _items(answer: Any) -> dict[str, MemoryItem]:
    """Read the records that a provider answered; they are in its order, by id."""
    items = [_checked(MemoryItem, item) for item in _listed(answer)]
    by_id = {item.id: item for item in items}
    if len(by_id) < len(items):
        _distinct([item.id for item in items])
    return by_id


def _distinct(ids: Sequence[str]) -> None:
    if len(set(ids)) < len(ids):
        [(id, _)] = Counter(ids).most_common(1)
        raise InvalidOutput(f"the record {id!r} came twice")


def _at_most(limit: int, answered: Sequence[Any]) -> None:
    if len(answered) > limit:
        raise InvalidOutput(f"{len(answered)} records where at most {limit} were asked for")


def _as_many(expected: int, answered: Sized) -> None:
    if len(answered) != expected:
        raise InvalidOutput(f"{len(answered)} records for {expected} requested")


def _wire(kind: TypeAdapter[list[C]], contracts: list[C]) -> list[dict[str, Any]]:
    """Give the wire forms as `to_wire` does, which takes half as long again when asked one by one."""
    wire: list[dict[str, Any]] = kind.serializer.to_python(
        contracts, mode="json", by_alias=True, exclude_unset=True
    )
    return wire
