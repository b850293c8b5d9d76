"""Who runs what: the same over Redis as within a process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ditto_tasks.transport.connection import connect
from ditto_tasks.transport.keys import Keys
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.runs import LocalRuns, RedisRuns, RunLost, Runs, Wanted
from tests.conftest import wait_until

KEYS = Keys("ditto")


class RunsContract:
    def test_one_owner_has_a_run_and_others_are_noted(self, runs: Runs) -> None:
        token = runs.take("kb", "one", "incremental", above=0)
        assert token is not None
        assert runs.take("kb", "two", "incremental", above=0) is None
        assert runs.take("kb", "three", "full", above=0) is None
        assert runs.take("other", "two", "full", above=0) is not None
        assert runs.settle("kb", token) == Wanted(2, "full")
        runs.answered("kb", token, Wanted(2, "full"))
        assert runs.take("kb", "two", "incremental", above=0) is None
        assert runs.settle("kb", token) == Wanted(1, "incremental")
        runs.answered("kb", token, Wanted(1, "incremental"))
        assert runs.settle("kb", token) == Wanted()
        assert runs.take("kb", "two", "incremental", above=0) is not None

    def test_who_is_noted_is_told_of_until_answered(self, runs: Runs) -> None:
        token = runs.take("kb", "one", "incremental", above=0)
        assert token is not None
        runs.take("kb", "two", "full", above=0)
        wanted = runs.settle("kb", token)
        assert runs.settle("kb", token) == wanted == Wanted(1, "full")
        runs.take("kb", "three", "full", above=0)
        runs.answered("kb", token, wanted)
        assert runs.settle("kb", token) == Wanted(1, "full")

    def test_the_same_owner_takes_it_again_under_a_greater_token(self, runs: Runs) -> None:
        first = runs.take("kb", "one", "full", above=41)
        second = runs.take("kb", "one", "full", above=0)
        assert (first, second) == (42, 43)
        for late in (
            lambda: runs.renew("kb", "one", 42),
            lambda: runs.settle("kb", 42),
            lambda: runs.answered("kb", 42, Wanted(1)),
        ):
            with pytest.raises(RunLost):
                late()
        runs.release("kb", 42)
        assert runs.take("kb", "two", "full", above=0) is None
        runs.renew("kb", "one", 43)
        runs.release("kb", 43)
        assert runs.take("kb", "two", "full", above=43) is not None

    def test_of_many_at_once_one_has_it(self, runs: Runs) -> None:
        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(lambda n: runs.take("kb", str(n), "full", above=0), range(40)))
        [token] = [token for token in taken if token is not None]
        assert runs.settle("kb", token) == Wanted(39, "full")

    def test_progress_is_what_was_told_last(self, runs: Runs) -> None:
        assert runs.progress("kb") is None
        runs.take("kb", "one", "full", above=0)
        for scanned in (1, 2):
            runs.publish("kb", {"scanned": scanned})
        assert runs.progress("kb") == {"scanned": 2}


class TestLocalRuns(RunsContract):
    @pytest.fixture
    def runs(self) -> Runs:
        return LocalRuns()

    def test_no_limit_holds(self, runs: Runs) -> None:
        assert {runs.may_begin(Limit("reindex", per_second=0.5)) for _ in range(5)} == {0.0}


class TestRedisRuns(RunsContract):
    @pytest.fixture
    def runs(self, broker_url: str) -> Iterator[Runs]:
        with connect(broker_url) as client:
            yield RedisRuns(client, KEYS, kept=60)

    def test_no_more_begins_in_a_second_than_the_limit_says(self, runs: Runs) -> None:
        slow, free = Limit("reindex", concurrency=1, per_second=0.5), Limit("reindex", concurrency=1)
        assert runs.may_begin(slow) == 0.0
        assert 0.0 < runs.may_begin(slow) <= 2.0
        assert runs.may_begin(free) == 0.0
        assert runs.may_begin(Limit("other", per_second=0.5)) == 0.0

    def test_a_silent_owner_loses_its_run(self, broker_url: str) -> None:
        with connect(broker_url) as client:
            runs = RedisRuns(client, KEYS, kept=60, lease=0.05)
            first = runs.take("kb", "one", "full", above=0)
            assert first is not None
            wait_until(lambda: not client.exists(KEYS.run("kb")), what="the lease has run out")
            assert runs.take("kb", "two", "full", above=first) == first + 1
            with pytest.raises(RunLost):
                runs.settle("kb", first)

    def test_what_was_wanted_outlives_the_lease_of_who_was_to_do_it(self, broker_url: str) -> None:
        with connect(broker_url) as client:
            runs = RedisRuns(client, KEYS, kept=60)
            runs.take("kb", "one", "full", above=0)
            runs.take("kb", "two", "full", above=0)
            client.delete(KEYS.run("kb"))
            token = runs.take("kb", "three", "incremental", above=1)
            assert token is not None
            assert runs.settle("kb", token) == Wanted(1, "full")
