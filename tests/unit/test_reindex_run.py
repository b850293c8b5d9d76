"""REINDEX.RUN in this process: what it walks, where it goes on, and how runs that overlap become one."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ditto_tasks import Cancellation, DittoConfig, InvocationCancelled, Runtime
from ditto_tasks.config.model import Workers
from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.errors import NodeFailed, RetrievalError
from ditto_tasks.contracts.index import IndexManifest, VectorIndex
from ditto_tasks.contracts.memory import (
    MemoryDeleteInput,
    MemoryGetInput,
    MemoryQueryInput,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.reindex import Drift, ReindexFailure, ReindexPageOutput
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall
from ditto_tasks.transport.runs import LocalRuns, RunLost
from providers.indexes.in_memory import InMemoryIndex
from providers.indexes.walk import Place, Step, Walk
from providers.retrieval.records import RecordTarget
from providers.stores.in_memory import InMemoryStore
from tests.doubles import Letters, Quiet
from workers.checkpoint import Checkpoint, Checkpoints
from workers.generations import GenerationSwitch
from workers.reindex import reindex_worker
from workers.run import is_overrun

KEY = "checkpoint:reindex:kb"
PAGE = 4  # records


class Listening(Letters):
    """Counts what it embeds, refuses texts with an exclamation mark, and lets things happen meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        if any("!" in text for text in contents):
            raise RetrievalError("RETRIEVAL_INVALID_INPUT", "it shouts")
        self.meanwhile()
        self.embedded += contents
        return super().embed(contents, purpose, call)


class Library:
    """A store with an index of it, a runtime that reindexes it, and what a test does to them."""

    def __init__(self, *, tells_changes: bool) -> None:
        self.records = InMemoryStore()
        self.embedding = Listening()
        self.indexes: dict[str, InMemoryIndex] = {}
        store: Any = self.records if tells_changes else Quiet(self.records)
        self.target = RecordTarget("records", store, self.embedding, self._open_index)
        config = DittoConfig(workers=Workers.model_validate({"reindex": {"pageSize": PAGE}}))
        self.runtime = Runtime(config, workers=[reindex_worker(lambda: {"kb": self.target})])

    def _open_index(self, name: str, manifest: IndexManifest) -> InMemoryIndex:
        return self.indexes.setdefault(name, InMemoryIndex(name, manifest))

    @property
    def index(self) -> VectorIndex:
        """The one that is searched."""
        return self.target.generations.active().index

    def write(self, *contents: Any) -> list[str]:
        drafts = [{"content": content} for content in contents]
        written = self.records.write(MemoryWriteInput.from_wire({"memories": drafts}))
        return [record.id for record in written]

    def update(self, id: str, content: Any) -> None:
        self.records.update(MemoryUpdateInput.from_wire({"memories": [{"id": id, "content": content}]}))

    def delete(self, *ids: str) -> None:
        self.records.delete(MemoryDeleteInput(ids=ids))

    def run(self, **input: Any) -> Any:
        self.embedding.embedded.clear()
        return self.runtime.invoke("REINDEX.RUN", {"target": "kb", **input}).unwrap()

    def check(self, **input: Any) -> Any:
        return self.runtime.invoke("REINDEX.CHECK", {"target": "kb", **input}).unwrap()

    def ask_in_full_meanwhile(self) -> list[Any]:
        """Have a full run asked for while the next one embeds, once; returns where its answer will be."""
        asked: list[Any] = []

        def call_again() -> None:
            if not asked:
                asked.append(None)
                asked[0] = self.runtime.invoke("REINDEX.RUN", {"target": "kb", "mode": "full"}).unwrap()

        self.embedding.meanwhile = call_again
        return asked

    @property
    def checkpoint(self) -> Any:
        (record,) = self.records.get(MemoryGetInput(ids=(), keys=(KEY,)))
        return record.content

    @property
    def is_current(self) -> bool:
        """Whether every record has its entry, and nothing else has one."""
        return not any(self.check()["drift"].values())


@pytest.fixture(params=[True, False], ids=["told what changed", "not told"])
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    library = Library(tells_changes=request.param)
    yield library
    library.runtime.close()


@pytest.fixture
def told() -> Iterator[Library]:
    """A library whose store tells what changed."""
    library = Library(tells_changes=True)
    yield library
    library.runtime.close()


def counts(report: Any) -> dict[str, int]:
    """Return what a run did, zeros and what it looked at left out."""
    names = ("embedded", "unchanged", "removed", "failedCount")
    return {name: report[name] for name in names if report[name]}


class TestOneRun:
    def test_the_first_run_embeds_every_record(self, library: Library) -> None:
        library.write(*"abcabcabca")
        report = library.run()
        assert counts(report) == {"embedded": 10}
        assert (report["scanned"], report["passes"], report["mode"]) == (10, 1, "incremental")
        assert report["drift"] == {"missing": 10, "stale": 0, "orphaned": 0}
        assert library.is_current

    def test_a_second_run_embeds_nothing(self, library: Library) -> None:
        library.write(*"abcabcabca")
        library.run()
        assert "embedded" not in counts(library.run())
        assert library.embedding.embedded == []

    def test_new_changed_and_deleted_records_are_brought_up(self, library: Library) -> None:
        first, second, *_ = library.write(*"abcabcabca")
        library.run()
        library.write("ab")
        library.update(first, "bc")
        library.delete(second)
        report = library.run()
        assert (report["embedded"], report["removed"]) == (2, 1)
        assert report["drift"] == {"missing": 1, "stale": 1, "orphaned": 1}
        assert sorted(library.embedding.embedded) == ["ab", "bc"]
        assert library.is_current

    def test_a_run_that_is_told_what_changed_looks_at_nothing_else(self, told: Library) -> None:
        first, *_ = told.write(*"abcabcabca")
        told.run()
        told.update(first, "bc")
        assert told.run()["scanned"] == 1

    def test_a_full_run_embeds_what_has_not_changed_too(self, library: Library) -> None:
        library.write(*"abcabcabca")
        library.run()
        assert counts(library.run(mode="full")) == {"embedded": 10}
        assert library.is_current

    def test_an_empty_store_is_reindexed_at_once(self, library: Library) -> None:
        assert counts(library.run()) == {}
        assert library.index.count() == 0

    def test_the_record_in_which_a_run_keeps_its_place_is_not_indexed(self, library: Library) -> None:
        library.write("a")
        for mode in ("incremental", "full", "incremental"):
            library.run(mode=mode)
        assert library.index.count() == 1
        assert library.check()["records"] == 1

    def test_an_index_made_anew_is_filled_whole(self, told: Library) -> None:
        told.write(*"abcabc")
        told.run()
        told.index.delete([record.id for record in told.records.query(MemoryQueryInput(limit=100)).items])
        assert counts(told.run()) == {"embedded": 6}

    def test_an_index_made_anew_after_a_run_that_had_nothing_to_do_is_filled_whole(
        self, told: Library
    ) -> None:
        told.write(*"abcabc")
        told.run()
        told.run()
        told.index.delete([record.id for record in told.records.query(MemoryQueryInput(limit=100)).items])
        assert counts(told.run()) == {"embedded": 6}

    def test_failures_are_told_and_do_not_stop_the_run(self, library: Library) -> None:
        _, second, *_ = library.write("a", "b!", "c")
        report = library.run()
        assert counts(report) == {"embedded": 2, "failedCount": 1}
        assert report["failed"] == [{"id": second, "reason": "it shouts"}]

    def test_too_many_failures_end_the_run(self, library: Library) -> None:
        library.write(*["a!"] * 30)
        with pytest.raises(NodeFailed, match="it shouts") as failed:
            library.run()
        assert failed.value.code == "REINDEX_TOO_MANY_FAILURES"
        assert library.checkpoint["state"] == "failed"

    def test_an_unknown_target_and_mode_are_refused(self, library: Library) -> None:
        for input, code in (
            ({"target": "other"}, "RETRIEVAL_TARGET_NOT_FOUND"),
            ({"mode": "quick"}, "INVALID_INPUT"),
        ):
            with pytest.raises(NodeFailed) as failed:
                library.run(**input)
            assert failed.value.code == code

    def test_what_is_written_while_it_runs_is_brought_up_too(self, told: Library) -> None:
        first, *_ = told.write(*"abcabcabca")
        things = iter(
            [lambda: told.update(first, "cc"), lambda: told.write("bb"), lambda: told.delete(first)]
        )
        told.embedding.meanwhile = lambda: next(things, lambda: None)()
        told.run(mode="full")
        told.embedding.meanwhile = lambda: None
        assert told.is_current


class TestGoingOn:
    @pytest.mark.parametrize("mode", ["incremental", "full"])
    def test_a_cancelled_run_is_taken_up_and_embeds_nothing_twice(self, library: Library, mode: str) -> None:
        library.write(*(f"a{number}" for number in range(20)))
        wish = Cancellation()
        embedding = library.embedding
        embedding.meanwhile = lambda: wish.cancel("enough") if len(embedding.asked) == 2 else None
        with pytest.raises(InvocationCancelled):
            library.runtime.invoke("REINDEX.RUN", {"target": "kb", "mode": mode}, cancel=wish)
        kept = [text for texts, _ in embedding.asked[:2] for text in texts]  # the third page was not written
        assert library.checkpoint["state"] == "cancelled"
        embedding.meanwhile = lambda: None
        report = library.run(mode=mode)
        assert report["run"] == library.checkpoint["run"]
        assert set(kept).isdisjoint(embedding.embedded)
        assert report["embedded"] == 20
        assert library.is_current

    def test_a_run_after_an_error_goes_on_too(self, library: Library) -> None:
        library.write(*"abcabcabca")

        done: list[str] = []  # of the first page, which the run's own record may be in

        def fail() -> None:
            if library.embedding.embedded:
                done[:] = library.embedding.embedded
                raise RetrievalError("RETRIEVAL_PROVIDER_UNAVAILABLE", "the model is away")

        library.embedding.meanwhile = fail
        with pytest.raises(NodeFailed, match="the model is away"):
            library.run(mode="full")
        assert library.checkpoint["state"] == "stopped"
        library.embedding.meanwhile = lambda: None
        report = library.run(mode="incremental")
        assert (report["mode"], report["embedded"]) == ("full", 10)
        assert len(library.embedding.embedded) == 10 - len(done) < 10

    def test_one_that_was_finished_but_for_its_lease_is_not_gone_on_with(self, library: Library) -> None:
        library.write(*"abc")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalRuns, "settle", _die)
            with pytest.raises(NodeFailed, match="the lights went out"):
                library.run()
        assert library.checkpoint["state"] == "finished"
        library.write("ab")
        assert library.run()["embedded"] == 1
        assert library.is_current

    def test_one_that_died_at_its_beginning_still_follows_the_changes(self, told: Library) -> None:
        first, *_ = told.write(*"abcabcabca")
        told.run()
        told.update(first, "bc")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Walk, "begin", _die)
            with pytest.raises(NodeFailed, match="the lights went out"):
                told.run()
        assert told.run()["scanned"] == 1
        assert told.is_current

    def test_a_full_one_that_died_at_its_beginning_still_finds_what_is_written_meanwhile(
        self, told: Library
    ) -> None:
        told.write(*"abcabcabca")
        first = min(record.id for record in told.records.query(MemoryQueryInput(limit=100)).items)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Walk, "begin", _die)
            with pytest.raises(NodeFailed, match="the lights went out"):
                told.run(mode="full")
        things = iter([lambda: None, lambda: told.update(first, "cc")])
        told.embedding.meanwhile = lambda: next(things, lambda: None)()
        told.run(mode="full")
        assert told.is_current

    def test_a_delivery_after_the_end_only_tells_the_report(self, told: Library) -> None:
        told.write(*"abc")
        report = told.run(mode="full")
        checkpoints = Checkpoints(told.records, "kb")
        kept = checkpoints.read(NO_CALL)
        assert kept is not None
        call = RetrievalCall(execution_id=kept.execution, runtime=None)
        told.embedding.embedded.clear()
        again = _run_again(told, call)
        assert told.embedding.embedded == []
        assert again == report


class TestOverlap:
    def test_a_run_that_comes_meanwhile_is_covered_by_one_more_pass(
        self, library: Library, caplog: pytest.LogCaptureFixture
    ) -> None:
        library.write(*"abcabc")
        answers: list[Any] = []
        late = ["cab"]

        def call_again() -> None:
            if late:
                library.write(late.pop())
                answers.extend(
                    library.runtime.invoke("REINDEX.RUN", {"target": "kb"}).unwrap() for _ in range(2)
                )

        library.embedding.meanwhile = call_again
        report = library.run()
        assert answers == [{"covered": True}] * 2
        assert (report["passes"], report["answered"], report["embedded"]) == (2, 2, 7)
        assert "kb: 2 more runs were asked for" in caplog.text
        assert library.is_current

    def test_a_full_run_that_comes_meanwhile_is_answered_in_full(self, library: Library) -> None:
        library.write(*"abc")
        asked = library.ask_in_full_meanwhile()
        assert counts(library.run()) == {"embedded": 6}
        assert asked == [{"covered": True}]

    def test_a_full_run_that_came_meanwhile_is_not_lost_with_who_was_to_answer_it(
        self, library: Library
    ) -> None:
        library.write(*"abc")
        library.ask_in_full_meanwhile()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GenerationSwitch, "build", _die)
            with pytest.raises(NodeFailed, match="the lights went out"):
                library.run()
        assert library.run()["generation"] == 2
        assert len(library.embedding.embedded) == 3

    def test_what_is_refused_in_two_passes_over_all_records_has_failed_once(self, library: Library) -> None:
        library.write(*["a!"] * 15, "b")
        library.ask_in_full_meanwhile()
        report = library.run()
        assert (report["passes"], report["failedCount"], len(report["failed"])) == (2, 15, 15)

    def test_of_many_at_once_one_runs(self, library: Library) -> None:
        library.write(*(f"a{number}" for number in range(40)))
        answers: list[Any] = []
        calls = [threading.Thread(target=lambda: answers.append(_plain_run(library))) for _ in range(8)]
        for call in calls:
            call.start()
        for call in calls:
            call.join(30)
        assert len(answers) == 8
        assert sum(answer.get("embedded", 0) for answer in answers) == 40
        assert len(library.embedding.embedded) == 40


class TestCheck:
    def test_it_names_what_differs_and_changes_nothing(self, library: Library) -> None:
        first, second, *_ = library.write(*"abc")
        library.run()
        (new,) = library.write("ab")
        library.update(first, "cc")
        library.delete(second)
        for _ in range(2):
            assert library.check() == {
                "target": "kb",
                "records": 3,
                "generation": 1,
                "wrongGeneration": 0,
                "drift": {"missing": 1, "stale": 1, "orphaned": 1},
                "missing": [new],
                "stale": [first],
                "orphaned": [second],
            }

    def test_it_repairs_those_only(self, library: Library) -> None:
        first, second, *_ = library.write(*"abc")
        library.run()
        library.update(first, "cc")
        library.delete(second)
        library.embedding.embedded.clear()
        repaired = library.check(repair=True)["repaired"]
        assert (repaired["embedded"], repaired["removed"]) == (1, 1)
        assert library.embedding.embedded == ["cc"]
        assert library.is_current

    def test_it_shows_the_first_twenty_of_each_kind(self, library: Library) -> None:
        library.write(*["a"] * 30)
        told = library.check()
        assert (len(told["missing"]), told["drift"]["missing"]) == (20, 30)


class TestCheckpoint:
    def test_it_comes_back_as_it_was_written(self) -> None:
        store = InMemoryStore()
        drift = Drift(missing=1, stale=2, orphaned=3)
        page = ReindexPageOutput(
            embedded=2, unchanged=1, removed=1, failed=(ReindexFailure(id="x", reason="no"),), drift=drift
        )
        begun = Checkpoint(run="r", target="kb", mode="full", execution="e", token=3, started_at=1.5)
        step = Step(("a", "b"), Place("records", "b", "a", "since"), scanned=5, unchanged=1)
        written = begun.after(step, page)
        Checkpoints(store, "kb").write(begun, NO_CALL)
        Checkpoints(store, "kb").write(written, NO_CALL)
        read = Checkpoints(store, "kb").read(NO_CALL)
        assert read == written
        assert read is not None
        assert read.place == Place("records", "b", "a", "since")
        assert (read.scanned, read.unchanged, read.failed_count) == (5, 2, 1)
        (record,) = store.get(MemoryGetInput(ids=(), keys=(KEY,)))
        assert record.metadata == {"kind": "checkpoint"}

    def test_one_under_an_older_token_is_not_written_over_a_newer(self) -> None:
        store = InMemoryStore()
        old, new = (
            Checkpoint(run="r", target="kb", mode="full", execution="e", token=token) for token in (1, 2)
        )
        Checkpoints(store, "kb").write(new, NO_CALL)
        with pytest.raises(RunLost):
            Checkpoints(store, "kb").write(old, NO_CALL)

    def test_failures_beyond_a_hundred_are_counted_only(self) -> None:
        failed = tuple(ReindexFailure(id=str(number), reason="no") for number in range(150))
        begun = Checkpoint(run="r", target="kb", mode="full", execution="e", token=1)
        done = begun.after(Step((), Place("records")), ReindexPageOutput(failed=failed))
        assert (len(done.failed), done.failed_count) == (100, 150)

    @pytest.mark.parametrize(
        ("failed", "scanned", "is_over"), [(20, 20, False), (21, 21, True), (21, 420, False), (22, 420, True)]
    )
    def test_a_share_may_fail_and_twenty_in_any_case(self, failed: int, scanned: int, is_over: bool) -> None:
        told = Checkpoint(
            run="r", target="kb", mode="full", execution="e", token=1, failed_count=failed, scanned=scanned
        )
        assert is_overrun(told, 0.05) is is_over


def _die(*_: Any) -> None:
    raise RetrievalError("RETRIEVAL_BACKEND_ERROR", "the lights went out")


def _plain_run(library: Library) -> Any:
    return library.runtime.invoke("REINDEX.RUN", {"target": "kb"}).unwrap()


def _run_again(library: Library, call: RetrievalCall) -> Any:
    return library.runtime.execute("REINDEX.RUN", {"target": "kb", "mode": "full"}, call).unwrap()
