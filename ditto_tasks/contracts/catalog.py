"""The one list of nodes: queues, tasks, routing, help texts and docs are derived from it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ditto_tasks.contracts.memory import (
    MemoryDeleteInput,
    MemoryGetInput,
    MemoryQueryInput,
    MemorySearchInput,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.node import NodeSpec
from ditto_tasks.contracts.reindex import (
    ReindexCheckInput,
    ReindexPageInput,
    ReindexRollbackInput,
    ReindexRunInput,
    ReindexStatusInput,
)
from ditto_tasks.contracts.retrieval import RetrievalSearchInput

__all__ = ["CAPABILITIES", "NODE_SPECS"]


def _always(_: Any) -> bool:
    return True


def _every_draft_has_a_key(request: MemoryWriteInput) -> bool:
    return all(draft.key is not None for draft in request.memories)


_SPECS = (
    NodeSpec("MEMORY.GET", "memory", MemoryGetInput, _always, "Read records by id or key."),
    NodeSpec("MEMORY.QUERY", "memory", MemoryQueryInput, _always, "List records by filter, in pages."),
    NodeSpec("MEMORY.SEARCH", "memory", MemorySearchInput, _always, "Find records by relevance."),
    NodeSpec("MEMORY.WRITE", "memory", MemoryWriteInput, _every_draft_has_a_key, "Create records."),
    NodeSpec("MEMORY.UPDATE", "memory", MemoryUpdateInput, _always, "Change records by id."),
    NodeSpec("MEMORY.DELETE", "memory", MemoryDeleteInput, _always, "Remove records by id."),
    NodeSpec(
        "RETRIEVAL.SEARCH",
        "retrieval",
        RetrievalSearchInput,
        _always,
        "Find candidates in a target.",
        invalid_input="RETRIEVAL_INVALID_INPUT",
    ),
    NodeSpec("REINDEX.RUN", "reindex", ReindexRunInput, _always, "Bring a whole index up to its store."),
    NodeSpec(
        "REINDEX.ROLLBACK",
        "reindex",
        ReindexRollbackInput,
        _always,
        "Go back to the generation of an index that was searched before.",
    ),
    NodeSpec("REINDEX.PAGE", "reindex", ReindexPageInput, _always, "Bring an index up to its records."),
    NodeSpec("REINDEX.CHECK", "reindex", ReindexCheckInput, _always, "Tell where an index is behind."),
    NodeSpec("REINDEX.STATUS", "reindex", ReindexStatusInput, _always, "Tell how far indexes are behind."),
)

NODE_SPECS: Mapping[str, NodeSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})

CAPABILITIES: tuple[str, ...] = tuple(dict.fromkeys(spec.capability for spec in _SPECS))
