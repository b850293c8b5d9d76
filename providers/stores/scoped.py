"""A wrapper that keeps a caller inside one namespace of a store, whatever the caller asks."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.errors import InvalidDefinition, MemoryNodeError
from ditto_tasks.contracts.memory import (
    MemoryDeleteInput,
    MemoryDeleteOutput,
    MemoryDraft,
    MemoryGetInput,
    MemoryHit,
    MemoryItem,
    MemoryPatch,
    MemoryQueryInput,
    MemoryQueryOutput,
    MemorySearchInput,
    MemorySearchProvider,
    MemoryStore,
    MemoryUpdateInput,
    MemoryWriteInput,
)

__all__ = ["ScopedSearchStore", "ScopedStore", "scoped"]

_NAMESPACE = re.compile(r"[a-zA-Z0-9_-]+:[a-zA-Z0-9_-]+\Z")

Asked = TypeVar("Asked", MemoryQueryInput, MemorySearchInput)


def scoped(store: MemoryStore, namespace: str) -> "ScopedStore":
    """Confine a store to one namespace; the result searches if the store does.

    Args:
        store: stays the caller's to close.
        namespace: two parts, for example `team-a:alice`; a record belongs to it when its metadata says so and
            its key starts with `team-a:alice:`.

    Raises:
        InvalidDefinition: the namespace is not in this form.
    """
    if isinstance(store, MemorySearchProvider):
        return ScopedSearchStore(store, namespace)
    return ScopedStore(store, namespace)


class ScopedStore:
    """The records of one namespace, without search; `scoped` picks between this and `ScopedSearchStore`.

    What is refused ends as SCOPE_DENIED before the inner store is asked.
    """

    def __init__(self, store: MemoryStore, namespace: str) -> None:
        if not _NAMESPACE.match(namespace):
            raise InvalidDefinition(
                f"namespace: {namespace!r:.80} is not of the form 'part:part' (letters, digits, '_' and '-')"
            )
        self._store = store
        self._namespace = namespace
        self._prefix = f"{namespace}:"

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Return the own ones among the records; foreign ids are as good as missing, foreign keys refused."""
        for key in request.keys or ():
            self._check_key(key)
        return [item for item in _items(self._store.get(request, call)) if self._owns(item)]

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput:
        """List the own records; the namespace is added to the filter."""
        page = MemoryQueryOutput.from_wire(self._store.query(self._narrowed(request), call))
        self._check_owned(page.items)
        return page

    def write(self, request: MemoryWriteInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Create own records; the namespace is added to their metadata, their keys must have it already."""
        drafts = tuple(self._own_draft(draft) for draft in request.memories)
        return _items(self._store.write(request.model_copy(update={"memories": drafts}), call))

    def update(self, request: MemoryUpdateInput, call: Call = NO_CALL) -> Sequence[MemoryItem]:
        """Change own records; metadata that is replaced keeps the namespace."""
        ids = tuple(patch.id for patch in request.memories)
        own = self._own_ids(ids, call)
        for id in ids:
            if id not in own:
                raise MemoryNodeError("NOT_FOUND", f"there is no record {id!r:.80}")
        patches = tuple(self._own_patch(patch) for patch in request.memories)
        return _items(self._store.update(request.model_copy(update={"memories": patches}), call))

    def delete(self, request: MemoryDeleteInput, call: Call = NO_CALL) -> MemoryDeleteOutput:
        """Remove own records; foreign ids are as good as missing."""
        own = self._own_ids(request.ids, call)
        ids = tuple(id for id in request.ids if id in own)
        if not ids:
            return MemoryDeleteOutput(deleted=())
        return MemoryDeleteOutput.from_wire(self._store.delete(MemoryDeleteInput(ids=ids), call))

    def _own_ids(self, ids: tuple[str, ...], call: Call) -> set[str]:
        if not ids:
            return set()
        return {item.id for item in self.get(MemoryGetInput(ids=ids, keys=()), call)}

    def _own_draft(self, draft: MemoryDraft) -> MemoryDraft:
        self._check_key(draft.key)
        self._check_namespace(draft.metadata)
        return draft.model_copy(update={"metadata": self._with_namespace(draft.metadata)})

    def _own_patch(self, patch: MemoryPatch) -> MemoryPatch:
        if not patch.has_metadata:
            return patch
        return patch.model_copy(update={"metadata": self._with_namespace(patch.metadata)})

    def _narrowed(self, request: Asked) -> Asked:
        self._check_namespace(request.filter)
        return request.model_copy(update={"filter": self._with_namespace(request.filter)})

    def _with_namespace(self, fields: Mapping[str, Any] | None) -> dict[str, Any]:
        return {**(fields or {}), "namespace": self._namespace}

    def _check_key(self, key: str | None) -> None:
        if key is None or not key.startswith(self._prefix):
            raise _denied(f"a key here starts with {self._prefix!r}")

    def _check_namespace(self, fields: Mapping[str, Any] | None) -> None:
        if fields and "namespace" in fields and fields["namespace"] != self._namespace:
            raise _denied(f"the namespace here is {self._namespace!r}")

    def _check_owned(self, items: Sequence[MemoryItem]) -> None:
        if not all(self._owns(item) for item in items):
            raise _denied("the store answered with a record of another namespace")

    def _owns(self, item: MemoryItem) -> bool:
        named = item.metadata is not None and item.metadata.get("namespace") == self._namespace
        return named and item.key is not None and item.key.startswith(self._prefix)


class ScopedSearchStore(ScopedStore):
    """The records of one namespace of a store that searches.

    Raises:
        InvalidDefinition: the store has no search, or the namespace is not in the form of `scoped`.
    """

    def __init__(self, store: MemoryStore, namespace: str) -> None:
        super().__init__(store, namespace)
        if not isinstance(store, MemorySearchProvider):
            raise InvalidDefinition("the store has no search: use ScopedStore")
        self._search: MemorySearchProvider = store

    def search(self, request: MemorySearchInput, call: Call = NO_CALL) -> Sequence[MemoryHit]:
        """Find own records; the namespace is added to the filter."""
        hits = [MemoryHit.from_wire(hit) for hit in self._search.search(self._narrowed(request), call)]
        self._check_owned([hit.memory for hit in hits])
        return hits


def _items(answer: Sequence[MemoryItem | Mapping[str, Any]]) -> list[MemoryItem]:
    return [MemoryItem.from_wire(item) for item in answer]


def _denied(message: str) -> MemoryNodeError:
    return MemoryNodeError("SCOPE_DENIED", f"outside the scope: {message}")
