"""What only PostgreSQL can get wrong: the server, processes, driver errors, statements that run long."""

import base64
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import psycopg
import pytest

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import (
    DeadlineExceeded,
    InvalidDefinition,
    InvocationCancelled,
    MemoryNodeError,
    RetrievalError,
    StoreUnavailable,
)
from ditto_tasks.contracts.index import IndexManifest
from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.contracts.memory import MemoryQueryInput, MemoryWriteInput
from ditto_tasks.nodes.memory import Memory
from providers.indexes import open_index
from providers.indexes.postgres import PostgresIndex
from providers.stores import open_store
from providers.stores._postgres_connections import CANCEL_WAIT
from providers.stores._postgres_sql import CHANGES, DELETE, SCHEMA, ranking
from providers.stores._postgres_text import read_text, stored_text
from providers.stores.postgres import PostgresStore
from tests.conftest import LATE
from tests.contract.vector_index import MANIFEST, QUERY, entry, found
from tests.postgres_server import PostgresServer

WAIT = 30.0  # seconds; a bound on what ends within a few
PROCESSES = 8
fork = multiprocessing.get_context("fork")

SLOW = (
    "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'"
)
SLOWED = "CREATE TRIGGER slow BEFORE INSERT ON memories FOR EACH ROW EXECUTE FUNCTION slow()"


@pytest.fixture
def rest(postgres_url: str) -> str:
    return postgres_url.partition("://")[2]


@pytest.fixture
def store(rest: str) -> Iterator[PostgresStore]:
    with PostgresStore(rest) as store:
        yield store


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server for one test alone, which may stop and pause it; running."""
    server = PostgresServer()
    server.start()
    yield server
    server.resume()
    server.remove()


# --- opening


def test_both_schemes_open_a_store(postgres_url: str) -> None:
    for url in (postgres_url, postgres_url.replace("postgresql://", "postgres://")):
        with open_store(url) as store:
            assert isinstance(store, PostgresStore)
        with open_index(url, name="notes", manifest=MANIFEST) as index:
            assert isinstance(index, PostgresIndex)


@pytest.mark.parametrize("rest", ["u:secret@[host/db", "h/db?secret=1", "h:secret/db", "%zzsecret@h/db"])
def test_a_url_that_cannot_be_read_is_not_repeated(rest: str) -> None:
    for scheme in ("postgresql", "postgres"):
        with pytest.raises((InvalidDefinition, StoreUnavailable)) as refusal:
            open_store(f"{scheme}://{rest}")
        assert "secret" not in str(refusal.value)


def test_a_server_that_is_not_there_is_said_when_opening(postgres_server: PostgresServer) -> None:
    for url in ("postgresql://user:secret@127.0.0.1:1/db", postgres_server.url("missing")):
        with pytest.raises(StoreUnavailable) as failure:
            open_store(url)
        assert "secret" not in str(failure.value)
        assert "127.0.0.1" not in str(failure.value)
        with pytest.raises(StoreUnavailable):
            open_index(url, name="notes", manifest=MANIFEST)


def test_without_the_driver_the_extra_is_named() -> None:
    for code in (
        "import providers.stores as opened; opened.open_store('postgresql://h/db')",
        "import providers.indexes as opened; from ditto_tasks.contracts.index import IndexManifest\n"
        "opened.open_index('postgresql://h/db', name='a', manifest=IndexManifest('m', 2, 'p'))",
    ):
        missing = f"import sys; sys.modules['psycopg'] = None\n{code}"
        ended = subprocess.run([sys.executable, "-c", missing], capture_output=True, text=True, timeout=60)
        assert (
            "InvalidDefinition: PostgreSQL needs its driver: pip install 'ditto-tasks[postgres]'"
            in ended.stderr
        )


def test_a_table_of_another_program_is_left_as_it_is(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE memories (id integer)")
    with pytest.raises(StoreUnavailable, match="another program"):
        open_store(postgres_url)
    assert execute(postgres_url, "SELECT count(*) FROM memories") == [(0,)]


def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    open_store(postgres_url).close()
    execute(postgres_url, "UPDATE memories_schema SET version = 3")
    with pytest.raises(StoreUnavailable, match="version 3, this release knows 2"):
        open_store(postgres_url)


def test_tables_from_before_the_change_feed_get_one(rest: str, postgres_url: str) -> None:
    execute(
        postgres_url, "CREATE TEXT SEARCH DICTIONARY memory_stemmer (TEMPLATE = snowball, Language = english)"
    )
    for statement in SCHEMA[0]:
        execute(postgres_url, statement)
    execute(postgres_url, "INSERT INTO memories_schema VALUES (1, 'english')")
    execute(
        postgres_url,
        "INSERT INTO memories (id, content, orders, words)"
        " SELECT 'id' || n, to_json('apple ' || n)::text, '{}', memory_words('apple')"
        " FROM generate_series(1, 3) AS n",
    )
    with ThreadPoolExecutor(4) as pool:
        for store in pool.map(lambda _: PostgresStore(rest), range(4)):
            store.close()
    with PostgresStore(rest) as store:
        cursor = store.change_cursor()
        assert store.changes(cursor, limit=9).ids == ()
        assert len(Memory(store).search({"query": "apple"}).unwrap()) == 3
        Memory(store).update({"memories": [{"id": "id2", "content": "pear"}]}).unwrap()
        Memory(store).delete({"ids": ["id1"]}).unwrap()
        [record] = write(store, {"content": "new"})
        assert store.changes(cursor, limit=9).ids == ("id2", "id1", record["id"])


def test_records_are_there_after_reopening(postgres_url: str) -> None:
    with open_store(postgres_url) as store:
        [record] = write(store, {"key": "k\x00", "content": "apple \x00"})
    with open_store(postgres_url) as store:
        assert Memory(store).search({"query": "apple"}).unwrap()[0]["memory"] == record


def test_an_index_brings_pgvector_into_a_new_database(postgres_server: PostgresServer) -> None:
    postgres_server.execute("CREATE DATABASE fresh")
    with open_index(postgres_server.url("fresh"), name="notes", manifest=MANIFEST) as index:
        index.upsert([entry("a", QUERY)])
        assert found(index) == ["a"]


@pytest.mark.parametrize("dimensions", [1, 2_001, 16_000])
def test_vectors_of_any_length_that_pgvector_has(postgres_url: str, dimensions: int) -> None:
    manifest = IndexManifest("model/1", dimensions, "content/1")
    with open_index(postgres_url, name="long", manifest=manifest) as index:
        index.upsert([entry("a", [1.0] * dimensions)])
        [hit] = index.search([2.0] * dimensions, limit=5)
        assert hit.score == pytest.approx(1, abs=1e-5)
    with pytest.raises(InvalidDefinition, match="16,000"):
        open_index(postgres_url, name="long", manifest=IndexManifest("model/1", 16_001, "content/1"))


# --- languages


def test_words_are_compared_by_the_stems_of_the_language(rest: str) -> None:
    with PostgresStore(rest, language="german") as store:
        write(store, {"content": "viele Häuser"})
        assert len(Memory(store).search({"query": "Hauses"}).unwrap()) == 1
    with pytest.raises(StoreUnavailable, match="indexed for german, not for english"):
        PostgresStore(rest)


def test_simple_words_are_compared_as_they_are(rest: str) -> None:
    with PostgresStore(rest, language="simple") as store:
        write(store, {"content": "running"})
        assert Memory(store).search({"query": "run"}).unwrap() == []
        assert len(Memory(store).search({"query": "running"}).unwrap()) == 1


@pytest.mark.parametrize("language", ["klingon", "", "English", "english'", "english)"])
def test_an_unknown_language_is_refused(rest: str, language: str) -> None:
    with pytest.raises(InvalidDefinition, match=r"language|stemmer"):
        PostgresStore(rest, language=language)


# --- what is kept


@pytest.mark.parametrize("text", ["", "\x00", "\x01", "a\x00\x01\x02\x01\x01", "\x01\x01\x02", "\x00\x00b"])
def test_text_without_nul_can_be_read_back(text: str) -> None:
    assert "\x00" not in stored_text(text)
    assert read_text(stored_text(text)) == text


def test_text_without_nul_keeps_its_order() -> None:
    texts = sorted(
        a + b + c for a in "\x00\x01\x02b" for b in ("", *"\x00\x01\x02b") for c in ("", *"\x00\x01b")
    )
    assert sorted(texts, key=stored_text) == texts


def test_keys_and_filters_are_of_any_length(store: PostgresStore) -> None:
    longs = [os.urandom(20_000).hex() + end for end in ("a", "b")]
    written = write(
        store, *({"key": long, "content": 1, "metadata": {"namespace": long, "kind": long}} for long in longs)
    )
    memory = Memory(store)
    for long, record in zip(longs, written, strict=True):
        assert memory.get({"keys": [long]}).unwrap() == [record]
        for field in ("key", "namespace", "kind"):
            assert memory.query({"filter": {field: long}}).unwrap() == {"items": [record]}


def test_a_content_with_more_words_than_an_index_entry_holds_is_kept_and_found(store: PostgresStore) -> None:
    text = " ".join(f"word{number}" for number in range(200_000)) + " " + "x" * 10_000
    [record] = write(store, {"key": "long", "content": text})
    [hit] = Memory(store).search({"query": "word0 word1"}).unwrap()
    assert hit["memory"] == record


def test_a_longer_word_than_an_index_entry_is_found(store: PostgresStore) -> None:
    word = "é" * 5_000
    write(store, {"content": f"a {word}"})
    assert len(Memory(store).search({"query": word}).unwrap()) == 1


# --- what statements cost


def test_a_search_in_a_namespace_reads_its_records_only(store: PostgresStore, postgres_url: str) -> None:
    write(store, *({"content": "apple", "metadata": {"namespace": f"n{n % 200}"}} for n in range(4_000)))
    execute(postgres_url, "ANALYZE memories")
    statement, values = ranking([("apple",)], {"namespace": "n1"}, 10)
    plan = "\n".join(row[0] for row in execute(postgres_url, f"EXPLAIN {statement}", values))
    assert "Index Cond: (namespace = 'n1'::text)" in plan
    assert "Seq Scan on memories" not in plan


def test_changes_are_read_from_an_index(store: PostgresStore, postgres_url: str) -> None:
    write(store, *({"content": n} for n in range(4_000)))
    execute(postgres_url, "ANALYZE memories")
    [(seen,)] = execute(postgres_url, "SELECT pg_current_snapshot()::text")
    values = {"revision": seen.split(":")[0], "id": "", "seen": seen, "limit": 9}
    plan = "\n".join(row[0] for row in execute(postgres_url, f"EXPLAIN {CHANGES}", values))
    assert "using memories_revision on memories" in plan
    assert "Seq Scan on memories" not in plan


# --- changes amid transactions


def test_a_transaction_that_began_first_and_commits_last_is_told_and_holds_nobody_up(
    store: PostgresStore, postgres_url: str
) -> None:
    [updated, deleted] = write(store, {"content": "old"}, {"content": "old"})
    cursor = store.change_cursor()
    with psycopg.connect(postgres_url) as slow:
        slow.execute(
            "UPDATE memories SET content = '1', revision = pg_current_xact_id() WHERE id = %s",
            (updated["id"],),
        )
        slow.execute(DELETE.encode(), ([deleted["id"]], 9, 9))
        [quick] = write(store, {"content": "quick"})
        page = store.changes(cursor, limit=9)
        assert page.ids == (quick["id"],)
        assert page.is_last
        [later] = write(store, {"content": "later"})
        second = store.changes(page.cursor, limit=9)
        assert second.ids == (later["id"],)
    third = store.changes(second.cursor, limit=9)
    assert set(third.ids) == {updated["id"], deleted["id"]}
    assert store.changes(third.cursor, limit=9).ids == ()


def test_a_transaction_that_commits_between_two_pages_is_told_after_them(
    store: PostgresStore, postgres_url: str
) -> None:
    [held] = write(store, {"content": "old"})
    cursor = store.change_cursor()
    with psycopg.connect(postgres_url) as slow:
        slow.execute(
            "UPDATE memories SET content = '1', revision = pg_current_xact_id() WHERE id = %s", (held["id"],)
        )
        quick = [write(store, {"content": n})[0]["id"] for n in range(3)]
        first = store.changes(cursor, limit=2)
        assert list(first.ids) == quick[:2]
    second = store.changes(first.cursor, limit=2)
    assert list(second.ids) == quick[2:]
    assert not second.is_last
    third = store.changes(second.cursor, limit=2)
    assert third.ids == (held["id"],)
    assert third.is_last


def test_a_cursor_of_a_server_with_more_transactions_behind_it_has_expired(
    store: PostgresStore, postgres_url: str
) -> None:
    cursor = store.change_cursor()
    parts = decode_json(base64.urlsafe_b64decode(cursor))
    ahead = [parts[0], parts[1], "1:900000000:", "", ""]
    with pytest.raises(MemoryNodeError, match="CURSOR_EXPIRED"):
        store.changes(base64.urlsafe_b64encode(encode_json(ahead)).decode(), limit=1)


# --- calls that end


@pytest.mark.parametrize("work", ["write", "lock"])
def test_a_running_statement_ends_when_its_call_is_cancelled(
    store: PostgresStore, postgres_url: str, work: str
) -> None:
    cancel = Cancellation()
    with slowed(postgres_url, work):
        ended = in_a_thread(lambda: write_one(store, Call(cancel=cancel)))
        until_running(postgres_url)
        cancelled_at = time.monotonic()
        cancel.cancel("enough")
        assert str(ended(InvocationCancelled)) == "enough"
        assert time.monotonic() - cancelled_at < 1 + LATE
    assert Memory(store).query({}).unwrap() == {"items": []}  # nothing of it, and the connection is as new
    write(store, {"content": 1})


@pytest.mark.parametrize("work", ["write", "lock"])
def test_a_running_statement_ends_when_its_time_is_used_up(
    store: PostgresStore, postgres_url: str, work: str
) -> None:
    with slowed(postgres_url, work):
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            write_one(store, Call(deadline=began + 0.3))
        assert 0.25 < time.monotonic() - began < 0.3 + CANCEL_WAIT + LATE
    write(store, {"content": 1})


def test_a_cancel_after_the_call_disturbs_nobody(store: PostgresStore) -> None:
    cancel = Cancellation()
    store.query(MemoryQueryInput(), Call(cancel=cancel))
    cancel.cancel()
    assert Memory(store).query({}).status == "success"


def test_a_call_waits_for_a_connection_as_long_as_it_may(rest: str, postgres_url: str) -> None:
    with PostgresStore(rest, connections=1) as store, slowed(postgres_url, "write"):
        cancel = Cancellation()
        first = in_a_thread(lambda: write_one(store, Call(cancel=cancel)))
        until_running(postgres_url)
        began = time.monotonic()
        with pytest.raises(MemoryNodeError, match="STORE_BUSY"):
            store.query(MemoryQueryInput(), Call(deadline=began + 0.2))
        assert 0.15 < time.monotonic() - began < 1 + LATE
        unwanted = Cancellation()
        second = in_a_thread(lambda: store.query(MemoryQueryInput(), Call(cancel=unwanted)))
        unwanted.cancel("no more")
        assert str(second(InvocationCancelled)) == "no more"
        waiting = in_a_thread(lambda: store.query(MemoryQueryInput()))
        cancel.cancel("enough")
        first(InvocationCancelled)
        waiting(None)


def test_no_more_connections_are_open_than_the_store_may_have(rest: str, postgres_url: str) -> None:
    with PostgresStore(rest.replace("options=", "application_name=counted&options="), connections=3) as store:
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(lambda n: write(store, {"content": n}), range(60)))
        [(count,)] = execute(
            postgres_url, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
        )
        assert 1 <= count <= 3


# --- a server that is away


def test_a_server_that_went_away_is_said_and_the_next_call_after_it_is_back_works(
    own_server: PostgresServer,
) -> None:
    with (
        open_store(own_server.url()) as store,
        open_index(own_server.url(), name="notes", manifest=MANIFEST) as index,
    ):
        [record] = write(store, {"key": "k", "content": 1})
        index.upsert([entry("a", QUERY)])
        own_server.stop()
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(MemoryNodeError, match="STORE_UNAVAILABLE") as failure:
                store.query(MemoryQueryInput(), Call(deadline=began + 10))
            with pytest.raises(RetrievalError, match="RETRIEVAL_PROVIDER_UNAVAILABLE"):
                index.count(Call(deadline=began + 10))
            assert time.monotonic() - began < 2 + LATE
            assert "127.0.0.1" not in str(failure.value)
        own_server.start()
        assert Memory(store).query({}).unwrap() == {"items": [record]}
        assert found(index) == ["a"]


def test_a_server_that_does_not_answer_costs_a_call_no_more_than_its_time(own_server: PostgresServer) -> None:
    with open_store(own_server.url()) as store:
        [record] = write(store, {"key": "k", "content": 1})
        own_server.pause()
        began = time.monotonic()
        with pytest.raises((DeadlineExceeded, MemoryNodeError)):
            store.query(MemoryQueryInput(), Call(deadline=began + 0.3))
        assert time.monotonic() - began < 0.3 + 2 * CANCEL_WAIT + 0.5 + LATE
        own_server.resume()
        assert Memory(store).query({}).unwrap() == {"items": [record]}


def test_a_connection_that_was_ended_is_replaced(store: PostgresStore, rest: str, postgres_url: str) -> None:
    write(store, {"content": 1})
    execute(
        postgres_url,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'ditto-tasks' AND pid <> pg_backend_pid()",
    )
    write(store, {"content": 2})


# --- processes


def test_processes_race_for_one_key(postgres_url: str) -> None:  # M19
    def race(number: int, answer: Connection) -> None:
        with open_store(postgres_url) as store:
            content = number if number % 2 else "same"
            answer.send(Memory(store).write({"memories": [{"key": "k", "content": content}]}).to_wire())

    results = in_processes(PROCESSES, race)
    with open_store(postgres_url) as store:
        [kept] = Memory(store).query({}).unwrap()["items"]
    for number, result in enumerate(results):
        if kept["content"] == (number if number % 2 else "same"):
            assert result["output"] == [kept]
        else:
            assert result["error"]["code"] == "KEY_CONFLICT"


def test_writers_of_the_same_keys_in_other_orders_do_not_block_each_other(store: PostgresStore) -> None:
    keys = [f"k{number}" for number in range(50)]

    def work(number: int) -> str:
        order = keys if number % 2 else keys[::-1]
        return Memory(store).write({"memories": [{"key": key, "content": 1} for key in order]}).status

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(24))) == {"success"}
    assert len(Memory(store).query({}).unwrap()["items"]) == len(keys)


def test_a_store_opened_before_a_fork_serves_parent_and_child(store: PostgresStore) -> None:
    write(store, {"key": "before", "content": 1})

    def child() -> None:
        write(store, {"key": "child", "content": 1})
        store.close()

    process = fork.Process(target=child, daemon=True)
    process.start()
    write(store, {"key": "beside", "content": 1})
    process.join(WAIT)
    assert process.exitcode == 0
    write(store, {"key": "after", "content": 1})
    keys = ["before", "child", "beside", "after"]
    assert [record["key"] for record in Memory(store).get({"keys": keys}).unwrap()] == keys


def test_a_killed_writer_leaves_whole_batches(postgres_url: str) -> None:
    size = 200
    open_store(postgres_url).close()

    def write_on(answer: Connection) -> None:
        with open_store(postgres_url) as store:
            while True:
                write(store, *({"content": place} for place in range(size)))
                answer.send(None)

    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=write_on, args=(sender,), daemon=True)
    process.start()
    for _ in range(2):
        assert receiver.poll(WAIT)
        receiver.recv()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(WAIT)
    receiver.close()
    sender.close()
    [(count,)] = execute(postgres_url, "SELECT count(*) FROM memories")
    assert count % size == 0
    assert count >= 2 * size


def write(store: Any, *drafts: dict[str, Any]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = Memory(store).write({"memories": list(drafts)}).unwrap()
    return written


def write_one(store: PostgresStore, call: Call) -> None:
    store.write(MemoryWriteInput.from_wire({"memories": [{"key": "k", "content": 2}]}), call)


def execute(url: str, statement: str, values: Any = None) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def slowed(url: str, how: str) -> Iterator[None]:
    """Make each insert wait: in a trigger that sleeps, or for a lock on the table that another holds."""
    if how == "write":
        execute(url, SLOW)
        execute(url, SLOWED)
        yield
        execute(url, "DROP TRIGGER slow ON memories")
    else:
        with psycopg.connect(url) as rival:
            rival.execute("LOCK TABLE memories IN SHARE MODE")
            yield


def until_running(url: str) -> None:
    asked = (
        "SELECT 1 FROM pg_stat_activity WHERE application_name = 'ditto-tasks' AND state = 'active'"
        " AND wait_event IS NOT NULL AND query LIKE '%INSERT INTO memories%'"
    )
    deadline = time.monotonic() + WAIT
    pause = threading.Event()
    while not execute(url, asked):
        assert time.monotonic() < deadline
        pause.wait(0.01)


def in_a_thread(work: Callable[[], object]) -> Callable[[type[BaseException] | None], BaseException | None]:
    """Start work; returns what waits for its end, and gives the error that it ended with."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)

    def ended(expected: type[BaseException] | None) -> BaseException | None:
        error = future.exception(WAIT)
        assert type(error) is (expected or type(None)), error
        return error

    return ended


def in_processes(count: int, work: Callable[[int, Connection], None]) -> list[Any]:
    pipes = [fork.Pipe(duplex=False) for _ in range(count)]
    processes = [
        fork.Process(target=work, args=(n, sender), daemon=True) for n, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    answers = []
    for (receiver, sender), process in zip(pipes, processes, strict=True):
        process.join(WAIT)
        assert process.exitcode == 0
        answers.append(receiver.recv())
        receiver.close()
        sender.close()
    return answers
