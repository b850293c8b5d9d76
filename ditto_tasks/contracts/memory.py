"""MEMORY: records that are kept, listed and searched. Six nodes over two ports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, runtime_checkable

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from ditto_tasks.contracts.base import Contract, Id, Limit, ListOf, Maybe, Number, Text
from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.json_value import JsonObject, JsonValue

__all__ = [
    "DEFAULT_QUERY_LIMIT",
    "DEFAULT_SEARCH_LIMIT",
    "ChangeFeed",
    "ChangePage",
    "MemoryDefaults",
    "MemoryDeleteInput",
    "MemoryDeleteOutput",
    "MemoryDraft",
    "MemoryGetInput",
    "MemoryHit",
    "MemoryItem",
    "MemoryOrder",
    "MemoryPatch",
    "MemoryQueryInput",
    "MemoryQueryOutput",
    "MemorySearchInput",
    "MemorySearchProvider",
    "MemoryStore",
    "MemoryUpdateInput",
    "MemoryWriteInput",
]

DEFAULT_QUERY_LIMIT = 100
DEFAULT_SEARCH_LIMIT = 10


class MemoryDefaults(Contract):
    """Limits for calls that name none; what is absent here is ditto.yaml's, then the constant's."""

    query_limit: Maybe[Limit] = None
    search_limit: Maybe[Limit] = None


class MemoryItem(Contract):
    """A stored record; the store gives the id, the writer the key."""

    id: Id
    key: Maybe[Text] = None
    content: JsonValue
    metadata: Maybe[JsonObject] = None


class MemoryHit(Contract):
    """A record with its relevance; only the provider knows the score's scale, and order is relevance."""

    memory: MemoryItem
    score: Maybe[Number] = None
    metadata: Maybe[JsonObject] = None


class MemoryDraft(Contract):
    """A record to be written; null is a content."""

    key: Maybe[Text] = None
    content: JsonValue
    metadata: Maybe[JsonObject] = None


class MemoryPatch(Contract):
    """A change of one record: fields that are present replace, metadata as a whole; the key never changes."""

    id: Id
    content: JsonValue = None
    metadata: Maybe[JsonObject] = None

    @property
    def has_content(self) -> bool:
        """Whether content is to be replaced; by null, too."""
        return "content" in self.model_fields_set

    @property
    def has_metadata(self) -> bool:
        """Whether metadata is to be replaced; an empty object clears it."""
        return "metadata" in self.model_fields_set

    @model_validator(mode="before")
    @classmethod
    def _refuse_key(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "key" in value:
            raise PydanticCustomError("key_given", "a key cannot be changed: leave 'key' out")
        return value

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not (self.has_content or self.has_metadata):
            raise PydanticCustomError("empty_patch", "needs content or metadata")
        return self


class MemoryOrder(Contract):
    """One field to sort by: `id`, `key`, or a field of the metadata."""

    field: Text
    direction: Maybe[Literal["asc", "desc"]] = None


class MemoryGetInput(Contract):
    """What MEMORY.GET takes: at least one of ids and keys; their union is returned, each record once."""

    ids: Maybe[ListOf[Id]] = None
    keys: Maybe[ListOf[Text]] = None

    @model_validator(mode="after")
    def _selects(self) -> Self:
        if self.ids is None and self.keys is None:
            raise PydanticCustomError("no_selector", "needs 'ids' or 'keys'")
        return self


class MemoryQueryInput(Contract):
    """What MEMORY.QUERY takes; a cursor belongs to the filter and the order that it came from."""

    filter: Maybe[JsonObject] = None
    limit: Maybe[Limit] = None  # None: the worker's default, then ditto.yaml's, then 100
    cursor: Maybe[Text] = None
    order_by: Maybe[ListOf[MemoryOrder]] = None


class MemoryQueryOutput(Contract):
    """One page; without `nextCursor` it is the last."""

    items: ListOf[MemoryItem]
    next_cursor: Maybe[Text] = None


class MemorySearchInput(Contract):
    """What MEMORY.SEARCH takes; the provider decides what a query may be (text, a vector)."""

    query: JsonValue
    strategy: Maybe[Text] = None
    filter: Maybe[JsonObject] = None
    limit: Maybe[Limit] = None  # None: the worker's default, then ditto.yaml's, then 10
    options: Maybe[JsonObject] = None


class MemoryWriteInput(Contract):
    """What MEMORY.WRITE takes."""

    memories: ListOf[MemoryDraft]


class MemoryUpdateInput(Contract):
    """What MEMORY.UPDATE takes; no id twice."""

    memories: ListOf[MemoryPatch]

    @field_validator("memories")
    @classmethod
    def _each_id_once(cls, patches: tuple[MemoryPatch, ...]) -> tuple[MemoryPatch, ...]:
        seen: set[str] = set()
        for patch in patches:
            if patch.id in seen:
                raise PydanticCustomError(
                    "repeated_id", "{id} is to be updated twice", {"id": repr(patch.id)}
                )
            seen.add(patch.id)
        return patches


class MemoryDeleteInput(Contract):
    """What MEMORY.DELETE takes."""

    ids: ListOf[Id]


class MemoryDeleteOutput(Contract):
    """The ids that this call removed; those that were not there are missing from it."""

    deleted: ListOf[Id]


class MemoryStore(Protocol):
    """Keeps records. May return contracts or dicts in wire form; both are checked alike.

    Every method may raise MemoryNodeError to fail with a code of its own, and InvocationCancelled or
    DeadlineExceeded when `call` says so. Methods are called from many threads at once.
    """

    def get(self, request: MemoryGetInput, call: Call = NO_CALL) -> Sequence[MemoryItem | Mapping[str, Any]]:
        """Return the records with these ids or keys, in any order; what is missing is left out."""
        ...

    def query(self, request: MemoryQueryInput, call: Call = NO_CALL) -> MemoryQueryOutput | Mapping[str, Any]:
        """Return one page in a stable order, of at most `request.limit` records.

        Raises:
            MemoryNodeError: INVALID_INPUT for a filter, order or cursor that this store does not know.
        """
        ...

    def write(
        self, request: MemoryWriteInput, call: Call = NO_CALL
    ) -> Sequence[MemoryItem | Mapping[str, Any]]:
        """Create the records and return them once committed, one a draft in the order of the drafts.

        A key that exists with the same content and metadata gives the existing record.

        Raises:
            MemoryNodeError: KEY_CONFLICT when a key exists with other content; nothing is written then.
        """
        ...

    def update(
        self, request: MemoryUpdateInput, call: Call = NO_CALL
    ) -> Sequence[MemoryItem | Mapping[str, Any]]:
        """Change the records and return them whole, in the order of the patches.

        Raises:
            MemoryNodeError: NOT_FOUND when one of them is missing; nothing is changed then.
        """
        ...

    def delete(
        self, request: MemoryDeleteInput, call: Call = NO_CALL
    ) -> MemoryDeleteOutput | Mapping[str, Any]:
        """Remove the records and return the ids that were there."""
        ...


@runtime_checkable
class MemorySearchProvider(Protocol):
    """Finds records by relevance."""

    def search(
        self, request: MemorySearchInput, call: Call = NO_CALL
    ) -> Sequence[MemoryHit | Mapping[str, Any]]:
        """Return at most `request.limit` complete records, the most relevant first.

        Raises:
            MemoryNodeError: INVALID_INPUT or UNSUPPORTED_STRATEGY for a request that it cannot serve.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChangePage:
    """Records that changed.

    Attributes:
        ids: of records that were written, updated or deleted, oldest change first, none twice; what has
            become of one is asked with GET, where a deleted one is missing.
        cursor: goes on after them.
        is_last: whether nothing more had been committed.
    """

    ids: tuple[str, ...]
    cursor: str
    is_last: bool


@runtime_checkable
class ChangeFeed(Protocol):
    """Tells which records of a store have changed, at the cost of what changed. Called from many threads.

    No committed change is ever missed, in whatever order transactions begin and commit; one may be told
    twice. A record that changed often is told of at its last change only.
    """

    def change_cursor(self, call: Call = NO_CALL) -> str:
        """Return the cursor of the present: every change committed from now on comes after it."""
        ...

    def changes(self, cursor: str, *, limit: int, call: Call = NO_CALL) -> ChangePage:
        """Return at most `limit` changes that come after the cursor.

        Raises:
            MemoryNodeError: INVALID_INPUT for a limit below 1 and for what is no cursor of this store;
                CURSOR_EXPIRED when deletions that come after the cursor are forgotten by now, or the store
                went back to a former state: read all records, with a new cursor taken before.
        """
        ...
