"""REINDEX: the entries of a vector index, brought up to the records that they stand for."""

from typing import Annotated

from annotated_types import Ge

from ditto_tasks.contracts.base import Contract, Id, Integer, ListOf, Text

__all__ = [
    "Drift",
    "ReindexFailure",
    "ReindexPageInput",
    "ReindexPageOutput",
    "ReindexStatusInput",
    "TargetStatus",
]

Count = Annotated[Integer, Ge(0)]


class ReindexPageInput(Contract):
    """What REINDEX.PAGE takes; safe to run again, and at once with writes of the same records."""

    target: Text
    ids: ListOf[Id]


class ReindexFailure(Contract):
    """A record that could not be embedded; its former entry, if any, is gone."""

    id: Id
    reason: Text


class ReindexPageOutput(Contract):
    """What was done, in records."""

    embedded: Count = 0
    unchanged: Count = 0
    removed: Count = 0
    failed: ListOf[ReindexFailure] = ()


class ReindexStatusInput(Contract):
    """What REINDEX.STATUS takes: nothing."""


class Drift(Contract):
    """How far an index is behind: records that it lacks, has in a former state, or has and are gone."""

    missing: Count
    stale: Count
    orphaned: Count


class TargetStatus(Contract):
    """One target as REINDEX.STATUS tells of it, after reading store and index whole."""

    name: Text
    strategies: ListOf[Text]
    default_strategy: Text
    records: Count
    indexed: Count
    model: Text
    dimensions: Count
    drift: Drift
