"""Generations of an index: which one is searched, which one is built, and how one goes back."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ditto_tasks import Cancellation, DittoConfig, InvocationCancelled, Runtime
from ditto_tasks.config.model import Workers
from ditto_tasks.contracts.call import NO_CALL
from ditto_tasks.contracts.errors import NodeFailed, RetrievalError
from ditto_tasks.contracts.index import IndexEntry, IndexManifest
from ditto_tasks.contracts.memory import (
    MemoryDeleteInput,
    MemoryItem,
    MemoryUpdateInput,
    MemoryWriteInput,
)
from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    EmbeddingDefaults,
    Purpose,
    RetrievalCall,
    RetrievalDefaults,
)
from ditto_tasks.transport.runs import RunLost
from providers.embedding.records import RECORD_TEXT
from providers.indexes._manifest import check_manifest
from providers.indexes.generations import GRACE, SEEN, Generations, GenerationsRecord
from providers.indexes.in_memory import InMemoryIndex
from providers.retrieval.generations import OpenGeneration
from providers.retrieval.records import RecordTarget
from providers.stores.in_memory import InMemoryStore
from tests.conftest import wait_until
from tests.doubles import Letters, request
from workers.generations import GenerationSwitch
from workers.reindex import reindex_worker

ONE, OTHER = IndexManifest("letters/1", 3, RECORD_TEXT), IndexManifest("letters/2", 4, RECORD_TEXT)
KEEP = 100.0  # seconds


class Model(Letters):
    """Lets things happen while it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] = lambda: None

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        self.meanwhile()
        return super().embed(contents, purpose, call)


class Longer(Model):
    """Another model: vectors of four numbers."""

    identity = "letters/2"
    dimensions = 4

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        return [[*vector, 2.0] for vector in super().embed(contents, purpose, call)]


class Third(Longer):
    """A third one."""

    identity = "letters/3"


class Unmeasured(Longer):
    """Does not say how long its vectors are."""

    dimensions = None  # type: ignore[assignment]


class Site:
    """A store with its indexes; a target and a runtime for each embedding that a test configures."""

    def __init__(self) -> None:
        self.store = InMemoryStore()
        self.indexes: dict[str, InMemoryIndex] = {}
        self.known: dict[str, Model] = {}
        self._runtimes: list[Runtime] = []

    def open_index(self, name: str, manifest: IndexManifest) -> InMemoryIndex:
        index = self.indexes.get(name)
        if index is None or not self.is_there(name):
            index = self.indexes[name] = InMemoryIndex(name, manifest)
        check_manifest(name, index.manifest, manifest)
        return index

    def is_there(self, name: str) -> bool:
        try:
            self.indexes[name].count()
        except RetrievalError:
            return False
        return True

    def configured(self, embedding: Model) -> "Configured":
        self.known[embedding.identity] = embedding
        target = RecordTarget("kb", self.store, embedding, self.open_index, embedding_of=self.known.get)
        config = DittoConfig(workers=Workers.model_validate({"reindex": {"pageSize": 4}}))
        runtime = Runtime(config, workers=[reindex_worker(lambda: {"kb": target})])
        self._runtimes.append(runtime)
        return Configured(target, runtime)

    def write(self, *contents: str) -> list[str]:
        drafts = [{"content": content} for content in contents]
        written = self.store.write(MemoryWriteInput.from_wire({"memories": drafts}))
        return [record.id for record in written]

    def update(self, id: str, content: str) -> None:
        self.store.update(MemoryUpdateInput.from_wire({"memories": [{"id": id, "content": content}]}))

    def delete(self, *ids: str) -> None:
        self.store.delete(MemoryDeleteInput(ids=ids))

    def read(self) -> Generations:
        generations = GenerationsRecord(self.store, "kb").read(NO_CALL)
        assert generations is not None
        return generations

    def rewrite(self, change: Callable[[Generations], Generations]) -> None:
        """Change what is kept of the generations."""
        record = GenerationsRecord(self.store, "kb")
        generations = record.read(NO_CALL)
        assert generations is not None
        record.write(change(generations), NO_CALL)

    def close(self) -> None:
        for runtime in self._runtimes:
            runtime.close()


class Configured:
    """One process' view: a target under one embedding."""

    def __init__(self, target: RecordTarget, runtime: Runtime) -> None:
        self.target = target
        self.runtime = runtime

    def call(self, node: str, **input: Any) -> Any:
        return self.runtime.invoke(node, {"target": "kb", **input}).unwrap()

    def run(self, **input: Any) -> Any:
        return self.call("REINDEX.RUN", **input)

    def roll_back(self) -> Any:
        return self.call("REINDEX.ROLLBACK")

    def found(self, text: str, strategy: str = "vector", **defaults: Any) -> list[str]:
        call = RetrievalCall(defaults=RetrievalDefaults(**defaults))
        output: Any = self.target.target.providers[strategy].search(
            request(query={"content": text}, limit=100), call
        )
        return sorted(candidate.content["content"] for candidate in output.candidates)

    @property
    def number(self) -> int:
        """Of the generation that is searched."""
        return self.target.generations.active().number

    @property
    def drift(self) -> Any:
        told = self.call("REINDEX.CHECK")
        return {**told["drift"], "wrongGeneration": told["wrongGeneration"]}


NO_DRIFT = {"missing": 0, "stale": 0, "orphaned": 0, "wrongGeneration": 0}


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


class TestFull:
    def test_searches_go_on_against_the_old_one_until_the_new_one_is_complete(self, site: Site) -> None:
        site.write(*"abcabcabca")
        model = Model()
        here = site.configured(model)
        here.run()
        seen: list[Any] = []
        model.meanwhile = lambda: seen.append(
            (here.number, here.target.generations.active().index.count(), site.indexes["kb_2"].count())
        )
        report = here.run(mode="full")
        model.meanwhile = lambda: None
        assert [(number, count) for number, count, _ in seen] == [(1, 10)] * len(seen)
        assert next(built for *_, built in seen) == 0 < seen[-1][-1] < 10
        assert (report["generation"], report["embedded"], here.number) == (2, 10, 2)
        assert here.found("a") == sorted("abcabcabca")
        assert here.drift == NO_DRIFT

    def test_once_its_run_has_ended_who_looked_a_moment_before_it_began_searches_it(self, site: Site) -> None:
        site.write(*"abcabcabca")
        here, there = site.configured(Model()), site.configured(Model())
        here.run()
        there.target.generations.read(NO_CALL)
        assert here.run(mode="full")["generation"] == there.number == 2

    def test_once_its_run_has_ended_who_looked_a_moment_before_the_switch_searches_it(
        self, site: Site
    ) -> None:
        site.write(*"abcabcabca")
        model = Model()
        here, there = site.configured(model), site.configured(Model())
        here.run()
        long_begun = time.monotonic() + SEEN

        def look() -> None:
            wait_until(lambda: time.monotonic() > long_begun, what="nobody trusts what was before it began")
            there.target.generations.read(NO_CALL)

        model.meanwhile = look
        assert here.run(mode="full")["generation"] == there.number == 2

    def test_it_embeds_what_has_not_changed_too_and_leaves_what_was_there(self, site: Site) -> None:
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        assert site.indexes["kb"].count() == site.indexes["kb_2"].count() == 3
        previous = site.read().previous
        assert previous is not None
        assert previous.number == 1

    def test_what_is_written_meanwhile_is_in_it(self, site: Site) -> None:
        first, second, *_ = site.write(*"abcabcabca")
        model = Model()
        here = site.configured(model)
        here.run()
        things: Iterator[Callable[[], object]] = iter(
            [
                lambda: site.update(first, "cc"),
                lambda: here.call("REINDEX.PAGE", ids=site.write("bb")),
                lambda: site.delete(second),
            ]
        )
        model.meanwhile = lambda: next(things, lambda: None)()
        here.run(mode="full")
        assert (here.number, here.drift) == (2, NO_DRIFT)

    def test_what_reindexing_keeps_is_never_found(self, site: Site) -> None:
        site.write("finished and active", "b")
        here = site.configured(Model())
        for mode in ("incremental", "full"):
            here.run(mode=mode)
        for text in ("finished", "active", "letters", "kb", "checkpoint"):
            for strategy in ("keyword", "hybrid", "vector"):
                assert set(here.found(text, strategy)) <= {"finished and active", "b"}

    def test_an_interrupted_one_is_gone_on_with_and_switches_at_its_end(self, site: Site) -> None:
        site.write(*"abcabcabca")
        model = Model()
        here = site.configured(model)
        here.run()
        wish = Cancellation()
        model.meanwhile = lambda: wish.cancel("enough") if site.indexes["kb_2"].count() else None
        with pytest.raises(InvocationCancelled):
            here.runtime.invoke("REINDEX.RUN", {"target": "kb", "mode": "full"}, cancel=wish)
        assert here.number == 1
        assert 0 < site.indexes["kb_2"].count() < 10
        assert here.run()["generation"] == 2
        assert (here.number, site.read().building) == (2, None)
        assert "kb_3" not in site.indexes

    def test_a_run_that_died_after_the_switch_is_ended_without_another(self, site: Site) -> None:
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        switch = GenerationSwitch.switch

        def dying(self: GenerationSwitch, generation: OpenGeneration) -> None:
            switch(self, generation)
            _fail_with_lights_out()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GenerationSwitch, "switch", dying)
            with pytest.raises(NodeFailed, match="the lights went out"):
                here.run(mode="full")
        assert here.run(mode="full")["generation"] == 2
        assert (site.read().last, here.drift) == (2, NO_DRIFT)

    def test_one_that_was_given_up_is_left_by_the_next_run(self, site: Site) -> None:
        site.write(*"abc" * 10)
        model = Model()
        here = site.configured(model)
        here.run()
        model.meanwhile = _refuse
        with pytest.raises(NodeFailed, match="could not be embedded"):
            here.run(mode="full")
        model.meanwhile = lambda: None
        assert here.run()["generation"] == 1
        assert site.read().building is None
        assert [left.number for left in site.read().leaving] == [2]

    def test_those_that_were_given_up_do_not_pile_up(self, site: Site) -> None:
        site.write(*"abc" * 10)
        model = Model()
        here = site.configured(model)
        here.run()
        model.meanwhile = _refuse
        for _ in range(3):
            with pytest.raises(NodeFailed, match="could not be embedded"):
                here.run(mode="full")
            site.rewrite(_long_ago)
        assert [left.number for left in site.read().leaving] == [3]
        assert not site.is_there("kb_2")

    def test_one_that_nobody_knows_of_any_more_is_not_switched_to(self, site: Site) -> None:
        site.write("a")  # one page
        model = Model()
        here = site.configured(model)
        here.run()

        def forget() -> None:
            record = GenerationsRecord(site.store, "kb")
            if record.read(NO_CALL) and record.id:
                site.delete(record.id)

        model.meanwhile = forget
        with pytest.raises(NodeFailed, match="generation 2 of kb was left"):
            here.run(mode="full")
        model.meanwhile = lambda: None
        assert (here.number, here.found("a")) == (1, ["a"])
        assert here.run(mode="full")["generation"] == 2
        assert here.drift == NO_DRIFT

    @pytest.mark.parametrize("manifest", [ONE, OTHER], ids=["the same model", "another model"])
    def test_an_index_by_its_name_that_nobody_knows_of_is_made_anew(
        self, site: Site, manifest: IndexManifest
    ) -> None:
        record = MemoryItem(id="x", content="left")
        site.open_index("kb_2", manifest).upsert(
            [IndexEntry(record, [1.0] * manifest.dimensions, "of what it was")]
        )
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        assert here.run(mode="full")["generation"] == 2
        assert here.drift == NO_DRIFT


class TestAnotherModel:
    def test_the_old_index_is_searched_with_its_own_model_until_a_run(self, site: Site) -> None:
        site.write(*"abc")
        site.configured(Model()).run()
        here = site.configured(Longer())
        lengths = {"embedding": EmbeddingDefaults(dimensions=4)}
        assert here.found("a", **lengths) == list("abc")
        assert (here.number, here.drift["wrongGeneration"]) == (1, 3)
        assert here.run()["generation"] == 2
        assert here.found("a", **lengths) == list("abc")
        assert here.drift == NO_DRIFT
        assert site.indexes["kb_2"].manifest == OTHER

    def test_new_records_are_found_before_it_and_after_it(self, site: Site) -> None:
        site.write(*"abc")
        site.configured(Model()).run()
        here = site.configured(Longer())
        assert here.call("REINDEX.PAGE", ids=site.write("aa"))["embedded"] == 1
        assert here.found("a") == ["a", "aa", "b", "c"]
        here.run()
        assert here.found("a") == ["a", "aa", "b", "c"]

    def test_new_records_are_found_meanwhile_where_nothing_tells_how_to_open_the_new_one(
        self, site: Site
    ) -> None:
        site.write(*"abc")
        old = site.configured(Model())
        old.run()
        model = Longer()
        here = site.configured(model)
        site.known.clear()
        things = iter([lambda: old.call("REINDEX.PAGE", ids=site.write("aa"))])
        model.meanwhile = lambda: next(things, lambda: None)()
        here.run()
        assert old.target.generations.opened(Generations.first(ONE).active).index.count() == 4
        assert here.found("a") == ["a", "aa", "b", "c"]

    def test_where_nothing_tells_how_to_open_the_old_model_words_are_found_and_both_are_named(
        self, site: Site
    ) -> None:
        site.write("a tale", "b", "c")
        site.configured(Model()).run()
        site.known.clear()
        here = site.configured(Longer())
        assert here.found("tale", "keyword") == ["a tale"]
        for strategy in ("vector", "hybrid"):
            with pytest.raises(RetrievalError, match=r"letters/1.*letters/2.*reindex kb") as refused:
                here.found("tale", strategy)
            assert refused.value.code == "RETRIEVAL_PROVIDER_UNAVAILABLE"
        here.run()
        assert len(here.found("tale")) == 3

    def test_one_that_was_begun_for_a_model_no_longer_wanted_is_left(self, site: Site) -> None:
        site.write(*"abcabcabca")
        site.configured(Model()).run()

        away = Longer()
        away.meanwhile = _fail_with_lights_out
        with pytest.raises(NodeFailed, match="the lights went out"):
            site.configured(away).run()
        here = site.configured(Model())
        assert here.run(mode="full")["generation"] == 3
        assert [left.number for left in site.read().leaving] == [2]

    def test_one_that_was_interrupted_is_gone_on_with_by_a_full_run_too(self, site: Site) -> None:
        site.write(*"abcabcabca")
        site.configured(Model()).run()
        model = Longer()
        here = site.configured(model)
        model.meanwhile = lambda: _fail_with_lights_out() if site.indexes["kb_2"].count() else None
        with pytest.raises(NodeFailed, match="the lights went out"):
            here.run()
        model.meanwhile = lambda: None
        assert here.run(mode="full")["generation"] == 2
        assert here.drift == NO_DRIFT

    def test_a_repair_while_a_run_goes_on_is_refused_and_asks_for_no_other_run(self, site: Site) -> None:
        site.write(*"abc")
        site.configured(Model()).run()
        refused: list[Any] = []
        model = Longer()
        here = site.configured(model)
        model.meanwhile = lambda: refused.append(
            here.runtime.invoke("REINDEX.CHECK", {"target": "kb", "repair": True}).error
        )
        assert here.run()["passes"] == 1
        assert refused[0].code == "REINDEX_RUNNING"

    def test_a_repair_builds_the_configured_one(self, site: Site) -> None:
        site.write(*"abc")
        site.configured(Model()).run()
        here = site.configured(Longer())
        assert here.call("REINDEX.CHECK", repair=True)["repaired"]["embedded"] == 3
        assert (here.number, here.drift) == (2, NO_DRIFT)


class TestRollback:
    def test_the_previous_one_is_searched_again_and_follows_what_changed(self, site: Site) -> None:
        first, second, *_ = site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        site.write("ab")
        site.update(first, "cc")
        site.delete(second)
        here.run()
        report = here.roll_back()
        assert (report["generation"], report["embedded"], report["removed"]) == (1, 2, 1)
        assert here.found("a") == ["ab", "c", "cc"]
        assert here.drift == NO_DRIFT

    def test_it_can_be_undone(self, site: Site) -> None:
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        site.write("ab")
        assert [here.roll_back()["generation"] for _ in range(3)] == [1, 2, 1]
        assert here.drift == NO_DRIFT

    def test_a_model_that_was_rolled_back_is_not_built_again_unasked(self, site: Site) -> None:
        site.write(*"abc")
        site.configured(Model()).run()
        here = site.configured(Longer())
        here.run()
        here.roll_back()
        site.write("ab")
        assert (here.run()["generation"], here.found("a")) == (1, ["a", "ab", "b", "c"])
        assert here.drift == {**NO_DRIFT, "wrongGeneration": 4}
        assert here.run(mode="full")["generation"] == 3
        assert here.drift == NO_DRIFT

    def test_one_whose_index_was_made_anew_is_filled_whole(self, site: Site) -> None:
        ids = site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        site.indexes["kb"].delete(ids)
        assert here.roll_back()["embedded"] == 3
        assert here.drift == NO_DRIFT

    def test_under_a_third_model_it_is_the_next_run_that_builds_that(self, site: Site) -> None:
        site.write(*"abc")
        for model in (Model(), Longer()):
            site.configured(model).run()
        here = site.configured(Third())
        assert (here.roll_back()["generation"], here.number) == (1, 1)
        assert here.run()["generation"] == 3

    def test_from_a_model_that_is_away_runs_go_on(self, site: Site) -> None:
        site.write(*"abc")
        site.configured(Model()).run()
        model = Unmeasured()
        here = site.configured(model)
        here.run()
        model.meanwhile = _fail_with_lights_out
        here.roll_back()
        site.write("ab")
        here.run()
        assert here.found("a") == ["a", "ab", "b", "c"]

    def test_without_a_previous_one_it_is_refused(self, site: Site) -> None:
        site.write("a")
        here = site.configured(Model())
        here.run()
        with pytest.raises(NodeFailed, match="no previous generation") as refused:
            here.roll_back()
        assert refused.value.code == "REINDEX_NO_PREVIOUS"
        assert here.run()["generation"] == 1

    def test_to_a_model_that_cannot_be_opened_it_is_refused_before_anything_is_changed(
        self, site: Site
    ) -> None:
        site.write("a")
        site.configured(Model()).run()
        here = site.configured(Longer())
        here.run()
        site.known.clear()
        with pytest.raises(NodeFailed, match=r"letters/1.*letters/2") as refused:
            here.roll_back()
        assert refused.value.code == "RETRIEVAL_PROVIDER_UNAVAILABLE"
        assert here.number == 2

    def test_to_an_index_that_cannot_be_opened_it_is_refused_before_anything_is_changed(
        self, site: Site
    ) -> None:
        site.write("a")
        for _ in range(2):
            site.configured(Model()).run(mode="full")
        site.indexes["kb_2"] = InMemoryIndex("kb_2", OTHER)
        here = site.configured(Model())
        with pytest.raises(NodeFailed, match="kb_2 was made with letters/2"):
            here.roll_back()
        assert (here.number, here.found("a")) == (3, ["a"])

    def test_while_a_run_goes_on_it_is_refused_and_asks_for_no_other_run(self, site: Site) -> None:
        site.write(*"abc")
        refused: list[Any] = []
        model = Model()
        here = site.configured(model)
        model.meanwhile = lambda: refused.append(
            here.runtime.invoke("REINDEX.ROLLBACK", {"target": "kb"}).error
        )
        assert here.run()["passes"] == 1
        assert refused[0].code == "REINDEX_RUNNING"

    def test_a_call_that_is_delivered_again_goes_back_once(self, site: Site) -> None:
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        call = RetrievalCall(execution_id="the same")
        reports = [here.runtime.execute("REINDEX.ROLLBACK", {"target": "kb"}, call) for _ in range(2)]
        assert [report.unwrap()["generation"] for report in reports] == [1, 1]

    def test_a_call_that_is_delivered_again_after_other_runs_goes_back_once(self, site: Site) -> None:
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        call = RetrievalCall(execution_id="the same")
        here.runtime.execute("REINDEX.ROLLBACK", {"target": "kb"}, call).unwrap()
        here.run(mode="full")
        here.runtime.execute("REINDEX.ROLLBACK", {"target": "kb"}, call).unwrap()
        assert here.number == 3


class TestOld:
    def test_the_previous_one_is_dropped_when_its_time_has_come(self, site: Site) -> None:
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        long_ago = time.time() - 2 * 86_400

        def age(generations: Generations) -> Generations:
            assert generations.previous is not None
            previous = generations.previous.model_copy(update={"left_at": long_ago})
            return generations.model_copy(update={"previous": previous})

        site.rewrite(age)
        here.run()
        assert site.read().previous is None
        assert site.is_there("kb")  # for calls that still use it

        def age_more(generations: Generations) -> Generations:
            leaving = tuple(left.model_copy(update={"left_at": long_ago}) for left in generations.leaving)
            return generations.model_copy(update={"leaving": leaving})

        site.rewrite(age_more)
        here.run()
        assert site.read().leaving == ()
        assert not site.is_there("kb")
        assert here.found("a") == list("abc")

    def test_one_that_cannot_be_dropped_keeps_no_other(self, site: Site) -> None:
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        for _ in range(3):
            here.run(mode="full")
        assert [left.number for left in site.read().leaving] == [1, 2]
        site.rewrite(_long_ago)
        del site.indexes["kb"]
        site.indexes["kb"] = InMemoryIndex("kb", OTHER)
        elsewhere = site.configured(Model())
        elsewhere.run()
        assert [left.number for left in site.read().leaving] == [1]
        assert not site.is_there("kb_2")

    def test_one_that_nobody_asks_for_is_closed_unless_it_is_being_built(self, site: Site) -> None:
        site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("providers.retrieval.generations._IDLE", -1.0)
            switch = GenerationSwitch(here.target.generations, NO_RETRIEVAL_CALL, token=100)
            built = switch.build(None)
            previous = site.read().previous
            assert previous is not None
            old = here.target.generations.opened(previous)
            here.target.generations.read(NO_CALL)  # as each page does, where nobody searches, too
        assert built.index.count() == 0
        with pytest.raises(RetrievalError, match="closed"):
            old.index.count()

    def test_a_record_of_them_that_cannot_be_read_is_named(self, site: Site) -> None:
        draft = {"key": "checkpoint:generations:kb", "content": {"active": 7}}
        site.store.write(MemoryWriteInput.from_wire({"memories": [draft]}))
        here = site.configured(Model())
        with pytest.raises(RetrievalError, match="checkpoint:generations:kb") as refused:
            here.found("a")
        assert refused.value.code == "RETRIEVAL_PROVIDER_UNAVAILABLE"

    def test_a_page_for_one_that_was_left_is_refused(self, site: Site) -> None:
        ids = site.write(*"abc")
        here = site.configured(Model())
        here.run()
        here.run(mode="full")
        with pytest.raises(NodeFailed, match="generation 1 of kb was left") as refused:
            here.call("REINDEX.PAGE", ids=ids, generation=1)
        assert refused.value.code == "RETRIEVAL_PROVIDER_UNAVAILABLE"

    def test_a_run_that_was_taken_over_changes_none(self, site: Site) -> None:
        site.write("a")
        here = site.configured(Model())
        here.run()
        late = GenerationSwitch(here.target.generations, NO_RETRIEVAL_CALL, token=1)
        here.run(mode="full")
        before = site.read()
        for change in (lambda: late.build(None), lambda: late.roll_back(None)):
            with pytest.raises(RunLost):
                change()
        assert site.read() == before

    def test_a_run_that_is_taken_over_while_it_asks_its_model_changes_none(self, site: Site) -> None:
        site.write("a")
        site.configured(Model()).run()
        model = Unmeasured()
        here = site.configured(model)
        late, other = (
            GenerationSwitch(here.target.generations, NO_RETRIEVAL_CALL, token=token) for token in (10, 11)
        )
        others = iter([lambda: other.build(None)])
        model.meanwhile = lambda: next(others, lambda: None)()
        with pytest.raises(RunLost):
            late.build(None)
        assert (site.read().last, site.read().token) == (2, 11)


def _refuse() -> None:
    raise RetrievalError("RETRIEVAL_INVALID_INPUT", "it is not to be read")


def _long_ago(generations: Generations) -> Generations:
    """Have what was left been left two days ago."""
    leaving = tuple(
        left.model_copy(update={"left_at": time.time() - 2 * 86_400}) for left in generations.leaving
    )
    return generations.model_copy(update={"leaving": leaving})


def _fail_with_lights_out() -> None:
    raise RetrievalError("RETRIEVAL_BACKEND_ERROR", "the lights went out")


def test_searches_during_switches_see_one_generation_each(site: Site) -> None:
    """Vectors of the two models have other scores, so that hits of both would tell."""
    site.write(*"abcabc")
    here = site.configured(Model())
    here.run()
    there = site.configured(Longer())
    done = threading.Event()
    mixed: list[Any] = []
    searches = 0

    def search() -> None:
        nonlocal searches
        while not done.is_set():
            output: Any = here.target.target.providers["vector"].search(
                request(query={"content": "a"}, limit=100), NO_RETRIEVAL_CALL
            )
            scores = {round(candidate.score, 3) for candidate in output.candidates}
            if scores not in ({1.0, 0.0}, {1.0, 0.8}):
                mixed.append(scores)
            searches += 1

    searching = threading.Thread(target=search)
    searching.start()
    try:
        for mode in ("incremental", "full"):
            there.run(mode=mode)
        there.roll_back()
        here.run(mode="full")
    finally:
        done.set()
        searching.join(30)
    assert searches > 0
    assert mixed == []


class States(RuleBasedStateMachine):
    """Any order of builds, switches, rollbacks and time passing."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Generations.first(ONE)
        self.now = 1_000.0
        self.active = 1
        self.left: dict[int, float] = {}  # number -> since when nobody searches it

    @rule(manifest=st.sampled_from([ONE, OTHER]))
    def build(self, manifest: IndexManifest) -> None:
        if self.state.building is not None:
            self.left[self.state.building.number] = self.now
        self.state = self.state.begun(manifest, since="s", now=self.now)
        assert self.state.building is not None
        assert self.state.building.manifest == manifest

    @precondition(lambda self: self.state.building is not None)
    @rule()
    def switch(self) -> None:
        self.left[self.active] = self.now
        self.active = self.state.last
        self.state = self.state.switched(self.now)

    @precondition(lambda self: self.state.previous is not None)
    @rule()
    def roll_back(self) -> None:
        assert self.state.previous is not None
        if self.state.building is not None:
            self.left[self.state.building.number] = self.now
        self.left[self.active] = self.now
        self.active = self.state.previous.number
        self.state = self.state.rolled_back("me", since="t", now=self.now)

    @rule(seconds=st.sampled_from([1.0, GRACE / 2, KEEP, 1_000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        before = {generation.number for generation in self.state.all}
        self.state = self.state.without_old(self.now, keep=KEEP)
        for dropped in before - {generation.number for generation in self.state.all}:
            assert dropped != self.active
            assert self.now - self.left[dropped] >= GRACE

    @invariant()
    def each_has_one_place(self) -> None:
        numbers = [generation.number for generation in self.state.all]
        assert len(numbers) == len(set(numbers))
        assert numbers[0] == self.active
        assert max(numbers) <= self.state.last

    @invariant()
    def it_comes_back_as_it_was_written(self) -> None:
        wire = self.state.model_dump(mode="json", by_alias=True, exclude_none=True)
        assert Generations.from_wire(wire) == self.state

    @invariant()
    def what_was_rejected_is_not_wanted(self) -> None:
        if self.state.rejected is not None:
            assert not self.state.wants(self.state.rejected.manifest)


TestStates = States.TestCase
TestStates.settings = settings(max_examples=50, stateful_step_count=30)
