"""What only the MySQL store can get wrong: URLs, collations, statements that run long, lost servers."""

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import (
    DeadlineExceeded,
    InvalidDefinition,
    InvocationCancelled,
    MemoryNodeError,
    StoreUnavailable,
)
from ditto_tasks.contracts.memory import MemoryDeleteInput, MemoryQueryInput, MemoryWriteInput
from ditto_tasks.nodes.memory import Memory
from providers.stores import _mysql_connections as connections
from providers.stores import open_store
from providers.stores._mysql_connections import Address
from providers.stores._mysql_sql import ADVANCE, CHANGES, FEED, INSERT, NOTE, SCHEMA, columns
from providers.stores._rows import Row
from providers.stores._stems import encoded
from providers.stores.mysql import MysqlStore
from tests.conftest import LATE, free_port, wait_until
from tests.mysql_server import MysqlServer

WAIT = 30.0  # seconds; a bound on what ends within a few
fork = multiprocessing.get_context("fork")


@pytest.fixture
def store(mysql_url: str) -> Iterator[MysqlStore]:
    with opened(mysql_url) as store:
        yield store


@pytest.fixture
def locked(mysql_server: MysqlServer, mysql_database: str, store: MysqlStore) -> Iterator[str]:
    """The id of a record that another transaction holds."""
    [record] = write(store, {"content": "held"})
    with mysql_server.connection(mysql_database) as rival, rival.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # no lock on the gap beside it
        rival.begin()
        cursor.execute("SELECT * FROM memories WHERE id = %s FOR UPDATE", (record["id"].encode(),))
        yield record["id"]


# --- URLs


def test_a_url_is_read() -> None:
    address = Address.parse("me%40here:p%2Fw:x@db.example:3307/notes")
    assert address == Address("notes", "me@here", "p/w:x", "db.example", 3307, None)
    assert "p/w" not in repr(address)
    assert Address.parse("[::1]/notes").host == "::1"


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "host",
        "host/",
        "host:x/notes",
        "u:secret@host/a/b",
        "host/notes?charset=x",
        "host/notes#x",
        "h/n?x",
    ],
)
def test_a_url_in_another_form_is_refused_and_not_repeated(rest: str) -> None:
    with pytest.raises(InvalidDefinition, match="mysql://user:password@host") as refusal:
        open_store(f"mysql://{rest}")
    assert "secret" not in str(refusal.value)


def test_a_socket_is_named_in_the_query(mysql_server: MysqlServer, mysql_database: str) -> None:
    with opened(f"mysql:///{mysql_database}?unix_socket={mysql_server.socket}") as store:
        write(store, {"content": 1})
    with opened(f"mariadb://root@/{mysql_database}?unix_socket={mysql_server.socket}") as store:
        assert len(listed(store)) == 1


@pytest.mark.parametrize("package", ["pymysql", "snowballstemmer"])
def test_a_missing_package_is_said_with_the_remedy(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from providers.stores import open_store\n"
        "try: open_store('mysql://host/notes')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.startswith("InvalidDefinition ")
    assert "pip install 'ditto-tasks[mysql]'" in asked.stdout


# --- opening


def test_what_cannot_be_opened_is_said_without_host_or_credential(mysql_server: MysqlServer) -> None:
    cases = {
        mysql_server.url("missing"): "create it",
        mysql_server.url("mysql", user="nobody", password="secret"): "check user, password",
        f"mysql://127.0.0.1:{free_port()}/notes": "check that the server runs",
    }
    for url, remedy in cases.items():
        with pytest.raises(StoreUnavailable, match=remedy) as failure:
            open_store(url)
        for hidden in ("secret", "nobody", "127.0.0.1"):
            assert hidden not in str(failure.value)


def test_a_table_of_another_program_or_a_newer_version_is_refused(mysql_server: MysqlServer) -> None:
    database = mysql_server.fresh_database()
    mysql_server.execute("CREATE TABLE memories (id INT)", database=database)
    with pytest.raises(StoreUnavailable, match="another program"):
        open_store(mysql_server.url(database))
    comment = "ditto-tasks memories, version 3"
    mysql_server.execute("ALTER TABLE memories COMMENT = %s", comment, database=database)
    with pytest.raises(StoreUnavailable, match="version 3, this release knows 2"):
        open_store(mysql_server.url(database))
    mysql_server.drop(database)


def test_tables_from_before_the_change_feed_get_one(mysql_server: MysqlServer) -> None:
    database = mysql_server.fresh_database()
    mysql_server.execute(SCHEMA.replace("version 2", "version 1"), database=database)
    rows = [columns(None, Row(f"id{n}", f"k{n}", f'"apple {n}"', None)) for n in range(1, 4)]
    with mysql_server.connection(database) as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, rows)
    with ThreadPoolExecutor(4) as pool:
        for store in pool.map(lambda _: opened(mysql_server.url(database)), range(4)):
            store.close()
    with opened(mysql_server.url(database)) as store:
        cursor_ = store.change_cursor()
        assert store.changes(cursor_, limit=9).ids == ()
        assert len(Memory(store).search({"query": "apple"}).unwrap()) == 3
        Memory(store).update({"memories": [{"id": "id2", "content": "pear"}]}).unwrap()
        Memory(store).delete({"ids": ["id1"]}).unwrap()
        [record] = write(store, {"content": "new"})
        assert store.changes(cursor_, limit=9).ids == ("id2", "id1", record["id"])
    mysql_server.drop(database)


def test_many_open_a_new_database_at_once(mysql_server: MysqlServer) -> None:
    database = mysql_server.fresh_database()
    with ThreadPoolExecutor(4) as pool:
        for store in pool.map(lambda _: opened(mysql_server.url(database)), range(4)):
            store.close()
    mysql_server.drop(database)


# --- what the server's own comparisons would lose


def test_ids_and_keys_are_exact(store: MysqlStore) -> None:
    keys = ["k", "K", "k ", "k\x00", "ḱ", "k" * 5_000]
    records = write(store, *({"key": key, "content": key} for key in keys))
    for key, record in zip(keys, records, strict=True):
        assert Memory(store).get({"keys": [key]}).unwrap() == [record]
    id = records[0]["id"]
    assert Memory(store).get({"ids": [id.upper(), f"{id} ", f"{id}\x00", id[:-1]]}).unwrap() == []


def test_namespaces_are_exact(store: MysqlStore) -> None:
    names = ["n", "N", "n ", "ń", "n\x00", "n" * 5_000]
    write(store, *({"content": name, "metadata": {"namespace": name}} for name in names))
    for name in names:
        page = Memory(store).query({"filter": {"namespace": name}}).unwrap()
        assert [record["content"] for record in page["items"]] == [name]


def test_long_values_that_begin_alike_are_each_listed_once(store: MysqlStore) -> None:
    values = ["x" * 2_000 + end for end in "cba"]
    write(store, *({"key": value, "content": 1, "metadata": {"rank": value}} for value in values))
    for field in ("rank", "key"):
        request: dict[str, Any] = {"orderBy": [{"field": field}], "limit": 1}
        seen = []
        while True:
            page = Memory(store).query(request).unwrap()
            seen += [record["key"] for record in page["items"]]
            if "nextCursor" not in page:
                break
            request["cursor"] = page["nextCursor"]
        assert sorted(seen) == sorted(values)


@pytest.mark.parametrize(
    ("query", "content"),
    [
        ("is", "this is it"),  # a stop word of the server
        ("x", "x y"),
        ("go", "to go"),
        ("running", "he runs"),
        ("apple", "two APPLES"),
        ("w" * 300, "w" * 300),
        ("привет", "Привет, мир"),
        ("www", "the www"),
    ],
)
def test_words_that_the_server_would_leave_out_are_found(store: MysqlStore, query: str, content: str) -> None:
    write(store, {"content": content}, {"content": "unrelated"})
    assert [hit["memory"]["content"] for hit in Memory(store).search({"query": query}).unwrap()] == [content]


def test_encoded_words_are_ascii_of_a_length_that_is_indexed() -> None:
    for word in ("a", "the", "用", "\U00020bb7", "é" * 100, "1", "z" * 1_000):
        [written] = encoded([word])
        assert written.isascii()
        assert written.isalnum()
        assert 3 <= len(written) <= 80
    assert len(set(encoded(["a", "b", "用", "户", "z" * 90, "z" * 91]))) == 6


def test_a_value_over_the_servers_limit_is_refused(store: MysqlStore) -> None:
    [kept] = write(store, {"content": "kept"})
    result = Memory(store).write({"memories": [{"content": "small"}, {"content": "x" * (17 << 20)}]})
    assert result.error is not None
    assert result.error.code == "INVALID_INPUT"
    assert listed(store) == [kept]


# --- changes amid transactions


def test_a_transaction_that_began_first_and_commits_last_is_told(
    store: MysqlStore, mysql_server: MysqlServer, mysql_database: str
) -> None:
    [held, other] = write(store, {"content": "old"}, {"content": "old"})
    cursor = store.change_cursor()
    with mysql_server.connection(mysql_database) as slow, slow.cursor() as slowly:
        slowly.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")  # no lock on the gap beside it
        slow.begin()
        slowly.execute("UPDATE memories SET content = '1' WHERE id = %s", (held["id"],))
        quick = [write(store, {"content": n})[0]["id"] for n in range(3)]
        first = store.changes(cursor, limit=2)
        assert list(first.ids) == quick[:2]
        slowly.execute(ADVANCE, (0,))
        slowly.execute(FEED)
        [(_, revision, _, _)] = slowly.fetchall()
        slowly.execute(NOTE, (held["id"], revision, None))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.delete, _ids(other["id"]))
            wait_until(
                lambda: running(mysql_server),
                what="the other writer waits for the end of this one",
                pause=FRESH,
            )
            second = store.changes(first.cursor, limit=2)
            assert list(second.ids) == quick[2:]
            assert second.is_last
            slow.commit()
            waiting.result(WAIT)
    assert store.changes(second.cursor, limit=2).ids == (held["id"], other["id"])


def test_changes_are_read_from_an_index(
    store: MysqlStore, mysql_server: MysqlServer, mysql_database: str
) -> None:
    write(store, *({"content": n} for n in range(1_000)))
    plan = mysql_server.execute(f"EXPLAIN {CHANGES}", 5, 9, 5, b"", 9, database=mysql_database)
    assert "memory_changes_revision" in plan[0]
    assert "Using filesort" not in str(plan)


# --- calls that end


def test_a_running_statement_ends_when_its_call_is_cancelled(
    store: MysqlStore, mysql_server: MysqlServer, locked: str
) -> None:
    cancel = Cancellation()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.delete, _ids(locked), Call(cancel=cancel))
        wait_until(lambda: running(mysql_server), what="the statement waits for the lock", pause=FRESH)
        cancel.cancel("enough")
        with pytest.raises(InvocationCancelled, match="enough"):
            waiting.result(WAIT)
    wait_until(lambda: not running(mysql_server), ENDED, "the server ends it, too", pause=FRESH)
    write(store, {"content": "after"})


def test_a_running_statement_ends_when_its_time_is_used_up(
    store: MysqlStore, mysql_server: MysqlServer, locked: str
) -> None:
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        store.delete(_ids(locked), Call(deadline=started + 0.3))
    assert time.monotonic() - started < 3 + LATE
    wait_until(lambda: not running(mysql_server), ENDED, "the server ends it, too", pause=FRESH)


def test_a_cancel_after_the_call_disturbs_nobody(store: MysqlStore) -> None:
    cancel = Cancellation()
    store.query(MemoryQueryInput(), Call(cancel=cancel))
    cancel.cancel()
    assert Memory(store).query({}).status == "success"


def test_a_writer_that_keeps_the_lock_makes_the_store_busy(
    mysql_url: str, locked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        connections, "SETTINGS", (*connections.SETTINGS, "SET SESSION innodb_lock_wait_timeout = 1")
    )
    with opened(mysql_url) as store:
        with pytest.raises(MemoryNodeError, match="STORE_BUSY"):
            store.delete(_ids(locked))
        write(store, {"content": 1})


def test_batches_that_lock_each_other_out_are_done_again(store: MysqlStore) -> None:
    records = write(store, *({"content": number} for number in range(40)))

    def update(number: int) -> None:
        order = records if number % 2 else records[::-1]
        patches = [{"id": record["id"], "content": number} for record in order]
        Memory(store).update({"memories": patches}).unwrap()
        keys = [f"k{place}" for place in range(40)][:: 1 if number % 2 else -1]
        write(store, *({"key": key, "content": "same"} for key in keys))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(update, range(24)))
    assert len({str(record["content"]) for record in listed(store)}) == 2


def test_more_calls_than_connections_wait_their_turn(
    store: MysqlStore, mysql_server: MysqlServer, mysql_database: str
) -> None:
    with ThreadPoolExecutor(3 * connections.CONNECTIONS) as pool:
        list(pool.map(lambda n: write(store, {"content": n}), range(200)))
    assert len(listed(store)) == 200
    asked = "SELECT count(*) FROM information_schema.processlist WHERE db = %s"
    [(count,)] = mysql_server.execute(asked, mysql_database)
    assert count <= connections.CONNECTIONS


# --- servers that go away


def test_a_connection_that_the_server_ended_is_replaced(
    store: MysqlStore, mysql_server: MysqlServer, mysql_database: str
) -> None:
    write(store, {"content": 1})
    asked = "SELECT id FROM information_schema.processlist WHERE db = %s"
    for (number,) in mysql_server.execute(asked, mysql_database):
        mysql_server.execute(f"KILL {number}")
    wait_until(lambda: not mysql_server.execute(asked, mysql_database))
    write(store, {"content": 2})


def test_a_server_that_is_away_is_said_and_used_again_when_it_is_back(
    store: MysqlStore, mysql_server: MysqlServer
) -> None:
    [record] = write(store, {"key": "k", "content": "apple"})
    mysql_server.kill()
    try:
        for _ in range(2):
            with pytest.raises(MemoryNodeError, match="STORE_UNAVAILABLE") as failure:
                store.write(MemoryWriteInput.from_wire({"memories": [{"content": 1}]}))
            assert "127.0.0.1" not in str(failure.value)
    finally:
        mysql_server.start()
    assert Memory(store).get({"keys": ["k"]}).unwrap() == [record]
    assert Memory(store).search({"query": "apples"}).unwrap()[0]["memory"] == record


def test_a_server_that_is_silent_is_not_waited_for_beyond_the_deadline(
    store: MysqlStore, mysql_server: MysqlServer
) -> None:
    write(store, {"content": 1})
    mysql_server.pause()
    try:
        for _ in range(2):  # over the connection that is there, then over a new one
            started = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                store.query(MemoryQueryInput(), Call(deadline=started + 0.3))
            assert time.monotonic() - started < 3 + LATE
    finally:
        mysql_server.resume()
    assert len(listed(store)) == 1


# --- processes


def test_a_store_opened_before_a_fork_serves_parent_and_child(store: MysqlStore) -> None:
    write(store, {"key": "before", "content": 1})
    stop = threading.Event()
    failures: list[Exception] = []

    def call() -> None:
        try:
            while not stop.is_set():
                listed(store)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for number in range(5):
            process = fork.Process(target=write, args=(store, {"key": f"child {number}", "content": 1}))
            process.start()
            process.join(WAIT)
            assert process.exitcode == 0
            write(store, {"key": f"parent {number}", "content": 1})
    finally:
        stop.set()
        thread.join(WAIT)
    assert failures == []
    assert len(listed(store)) == 11


def opened(url: str) -> MysqlStore:
    store = open_store(url)
    assert isinstance(store, MysqlStore)
    return store


def write(store: MysqlStore, *drafts: dict[str, Any]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = Memory(store).write({"memories": list(drafts)}).unwrap()
    return written


def listed(store: MysqlStore) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = Memory(store).query({"limit": 1_000}).unwrap()["items"]
    return items


ENDED = 2.0 + LATE  # seconds; by itself a statement would wait fifty for a lock
FRESH = 0.2  # seconds; InnoDB tells what was while it is asked again within 0.1 s


def running(server: MysqlServer) -> list[Any]:
    """List what waits for the lock of a record."""
    return server.execute("SELECT trx_id FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")


def _ids(id: str) -> MemoryDeleteInput:
    return MemoryDeleteInput(ids=(id,))
