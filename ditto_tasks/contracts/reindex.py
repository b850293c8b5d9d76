"""REINDEX: the entries of a vector index, brought up to the records that they stand for."""

from typing import Annotated, Literal

from annotated_types import Ge

from ditto_tasks.contracts.base import Contract, Id, Integer, ListOf, Maybe, Number, Text, trusted

__all__ = [
    "NO_DRIFT",
    "RECORDS_TARGET",
    "Drift",
    "GenerationNumber",
    "Mode",
    "ReindexCheckInput",
    "ReindexCheckOutput",
    "ReindexFailure",
    "ReindexPageInput",
    "ReindexPageOutput",
    "ReindexReport",
    "ReindexRollbackInput",
    "ReindexRunInput",
    "ReindexStatusInput",
    "TargetStatus",
]

Count = Annotated[Integer, Ge(0)]
GenerationNumber = Annotated[Integer, Ge(1)]

Mode = Literal["incremental", "full"]
"""What a run does: bring the present index up, or build another generation of it beside."""

RECORDS_TARGET = "memories"  # the one that configuration describes: the records of the memory store


class ReindexRunInput(Contract):
    """What REINDEX.RUN takes; safe to run again: it goes on where the last one was interrupted."""

    target: Text
    mode: Mode = "incremental"


class ReindexRollbackInput(Contract):
    """What REINDEX.ROLLBACK takes; it answers with a `ReindexReport`. Each call goes back once."""

    target: Text


class ReindexPageInput(Contract):
    """What REINDEX.PAGE takes; safe to run again, and at once with writes of the same records.

    Attributes:
        generation: the one to be brought up; absent: that which is searched, and one being built beside it.
    """

    target: Text
    ids: ListOf[Id]
    generation: Maybe[GenerationNumber] = None


class ReindexFailure(Contract):
    """A record that could not be embedded; its former entry, if any, is gone."""

    id: Id
    reason: Text


class Drift(Contract):
    """How far an index is behind: records that it lacks, has in a former state, or has and are gone."""

    missing: Count
    stale: Count
    orphaned: Count


NO_DRIFT = trusted(Drift, {"missing": 0, "stale": 0, "orphaned": 0})


class ReindexPageOutput(Contract):
    """What was done, in records.

    Attributes:
        drift: how far the entries of these records were behind before.
    """

    embedded: Count = 0
    unchanged: Count = 0
    removed: Count = 0
    failed: ListOf[ReindexFailure] = ()
    drift: Drift = NO_DRIFT


class ReindexReport(Contract):
    """What REINDEX.RUN answers at its end, in records.

    Attributes:
        run: names the run; the calls that took it up after an interruption answer with the same.
        generation: that which was brought up, and is searched now.
        scanned: looked at; one that changed meanwhile is looked at again, and counted again.
        failed: those that could not be embedded, at most 100 of them.
        failed_count: all of those.
        passes: how often the source was walked.
        answered: calls that came while the run went on, and which its later passes answer.
        seconds: since the run began, interruptions included.
        drift: how far the index was behind where the run looked, before it did something about it.
    """

    run: Text
    target: Text
    mode: Mode
    generation: GenerationNumber
    scanned: Count
    embedded: Count
    unchanged: Count
    removed: Count
    failed: ListOf[ReindexFailure]
    failed_count: Count
    passes: Count
    answered: Count
    seconds: Number
    drift: Drift


class ReindexCheckInput(Contract):
    """What REINDEX.CHECK takes.

    Attributes:
        repair: bring the entries up that differ; else nothing is changed.
    """

    target: Text
    repair: bool = False


class ReindexCheckOutput(Contract):
    """How store and index differ, and what was done about it.

    Attributes:
        records: in the store.
        generation: that which is searched, and was compared.
        drift: how many differ.
        wrong_generation: entries whose vectors another embedding made than the one that is configured.
        missing, stale, orphaned: ids of the first of them, at most 20 of each kind.
        repaired: what was done; absent unless it was asked for.
    """

    target: Text
    records: Count
    generation: GenerationNumber
    drift: Drift
    wrong_generation: Count
    missing: ListOf[Id]
    stale: ListOf[Id]
    orphaned: ListOf[Id]
    repaired: Maybe[ReindexPageOutput] = None


class ReindexStatusInput(Contract):
    """What REINDEX.STATUS takes: nothing."""


class TargetStatus(Contract):
    """One target as REINDEX.STATUS tells of it, after reading store and index whole.

    Attributes:
        generation: that which is searched.
        building: the one that is being built beside it.
        previous: the one that REINDEX.ROLLBACK goes back to.
        model: made the vectors that are searched.
        wrong_generation: as REINDEX.CHECK tells it.
    """

    name: Text
    strategies: ListOf[Text]
    default_strategy: Text
    records: Count
    indexed: Count
    generation: GenerationNumber
    building: Maybe[GenerationNumber] = None
    previous: Maybe[GenerationNumber] = None
    model: Text
    dimensions: Count
    drift: Drift
    wrong_generation: Count
