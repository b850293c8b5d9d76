"""What only the SQLite store can get wrong: files, processes, driver errors, statements that run long."""

import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import (
    InvalidDefinition,
    InvocationCancelled,
    MemoryNodeError,
    StoreUnavailable,
)
from ditto_tasks.contracts.memory import MemoryQueryInput, MemorySearchInput, MemoryWriteInput
from ditto_tasks.nodes.memory import Memory
from providers.stores import _sqlite_connections
from providers.stores._sqlite_sql import CHANGES, INSERT_WORDS, SCHEMA, selecting
from providers.stores.sqlite import SqliteStore

WAIT = 30.0  # seconds; a bound on what ends within a few
PROCESSES = 16
fork = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "memory.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    with SqliteStore(path) as store:
        yield store


# --- opening


@pytest.mark.parametrize("path", ["", ":memory:", "a\x00b"])
def test_a_path_must_name_a_file(path: str) -> None:
    with pytest.raises(InvalidDefinition, match="memory://"):
        SqliteStore(path)


def test_a_path_below_a_file_or_of_a_directory_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "memory.db", tmp_path, tmp_path / "missing" / "memory.db"):
        with pytest.raises(StoreUnavailable, match=str(path)):
            SqliteStore(str(path))


def test_a_file_that_is_no_database_is_left_as_it_is(path: str) -> None:
    Path(path).write_text("my notes, not yours" * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        SqliteStore(path)
    assert Path(path).read_text().startswith("my notes")


def test_a_database_of_another_program_is_left_as_it_is(path: str) -> None:
    _execute(path, "CREATE TABLE memories (id TEXT PRIMARY KEY)")
    with pytest.raises(StoreUnavailable, match="another program"):
        SqliteStore(path)
    assert _execute(path, "SELECT name FROM sqlite_master WHERE type = 'table'") == [("memories",)]


def test_a_newer_schema_is_refused(path: str) -> None:
    SqliteStore(path).close()
    _execute(path, "PRAGMA user_version = 3")
    with pytest.raises(StoreUnavailable, match="version 3, this release knows 2"):
        SqliteStore(path)


def test_a_file_from_before_the_change_feed_gets_one(path: str) -> None:
    rows = [(number, f"id{number}", f"k{number}", json.dumps(f"apple {number}")) for number in range(1, 4)]
    with closing(sqlite3.connect(path)) as connection:
        for statement in SCHEMA[0]:
            connection.execute(statement)
        inserted = "INSERT INTO memories (number, id, memory_key, content) VALUES (?, ?, ?, ?)"
        connection.executemany(inserted, rows)
        connection.executemany(INSERT_WORDS, [(number, "apple") for number, *_ in rows])
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    _in_processes(4, lambda _, answer: answer.send(SqliteStore(path).close()))
    with SqliteStore(path) as store:
        cursor = store.change_cursor()
        assert store.changes(cursor, limit=9).ids == ()
        assert len(Memory(store).search({"query": "apple"}).unwrap()) == 3
        Memory(store).update({"memories": [{"id": "id2", "content": "pear"}]}).unwrap()
        Memory(store).delete({"ids": ["id1"]}).unwrap()
        [record] = _write(store, {"content": "new"})
        assert store.changes(cursor, limit=9).ids == ("id2", "id1", record["id"])


def test_a_file_that_went_back_to_a_former_state_is_read_anew(path: str, tmp_path: Path) -> None:
    with SqliteStore(path) as store:
        _write(store, {"content": 1})
    kept = shutil.copy(path, tmp_path / "kept.db")
    with SqliteStore(path) as store:
        _write(store, {"content": 2})
        cursor = store.change_cursor()
    with SqliteStore(str(kept)) as store, pytest.raises(MemoryNodeError, match="CURSOR_EXPIRED"):
        store.changes(cursor, limit=1)


def test_records_are_there_after_reopening(path: str) -> None:
    with SqliteStore(path) as store:
        [record] = _write(store, {"content": "apple"})
    with SqliteStore(path) as store:
        assert Memory(store).search({"query": "apple"}).unwrap()[0]["memory"] == record


def test_a_relative_path_keeps_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SqliteStore("memory.db") as store:
        monkeypatch.chdir("/")
        store._connections.close_idle()
        _write(store, {"content": 1})


def test_a_url_or_odd_characters_in_a_path_are_a_file_name(tmp_path: Path) -> None:
    for name in ("file:x?mode=memory", "a b%20#?.db", "用户.db"):
        with SqliteStore(str(tmp_path / name)) as store:
            _write(store, {"content": 1})
        assert (tmp_path / name).exists()


# --- what statements cost


def test_a_record_is_read_by_one_look_into_an_index(store: SqliteStore, path: str) -> None:
    for column, index in (("id", "1"), ("memory_key", "2")):
        [(*_, plan)] = _execute(path, f"EXPLAIN QUERY PLAN {selecting(column, 1)}", "x")
        assert plan == f"SEARCH memories USING INDEX sqlite_autoindex_memories_{index} ({column}=?)"


def test_a_page_of_a_namespace_is_read_from_its_index(store: SqliteStore, path: str) -> None:
    where = "metadata -> '$.namespace' = 'x' AND id > 'y'"
    plan = _execute(path, f"EXPLAIN QUERY PLAN SELECT * FROM memories WHERE {where} ORDER BY id LIMIT 9")
    assert [row[3] for row in plan] == ["SEARCH memories USING INDEX memories_namespace (<expr>=? AND id>?)"]


def test_changes_are_read_from_an_index(store: SqliteStore, path: str) -> None:
    plan = [row[3] for row in _execute(path, f"EXPLAIN QUERY PLAN {CHANGES}", 1, 9, 1, 9, 9)]
    assert "SEARCH memories USING INDEX memories_revision (revision>?)" in plan
    assert any(step.startswith("SEARCH memory_tombstones USING INDEX") for step in plan)
    assert not any(step.startswith("SCAN memor") for step in plan)


# --- errors of the driver


def test_a_full_disk_is_said_and_nothing_of_the_batch_is_kept(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*_sqlite_connections.SETTINGS, "PRAGMA max_page_count = 64")
    monkeypatch.setattr(_sqlite_connections, "SETTINGS", settings)
    with SqliteStore(path) as store:
        [kept] = _write(store, {"content": "kept"})
        result = Memory(store).write({"memories": [{"content": "x" * 1_000}] * 1_000})
        assert result.error is not None
        assert result.error.code == "STORE_FULL"
        assert path not in result.error.message
        assert Memory(store).query({}).unwrap() == {"items": [kept]}
        _write(store, {"content": "small"})


def test_a_writer_that_keeps_the_lock_makes_the_store_busy(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sqlite_connections, "BUSY_TIMEOUT", 0.05)
    with SqliteStore(path) as store:
        rival = sqlite3.connect(path, isolation_level=None)
        rival.execute("BEGIN IMMEDIATE")
        with pytest.raises(MemoryNodeError, match="STORE_BUSY"):
            store.write(MemoryWriteInput.from_wire({"memories": [{"content": 1}]}))
        assert Memory(store).query({}).unwrap() == {"items": []}  # readers go on
        rival.execute("ROLLBACK")
        rival.close()
        _write(store, {"content": 1})


def test_a_damaged_file_is_unavailable(path: str) -> None:
    with SqliteStore(path) as store:
        _write(store, *({"content": "x" * 500} for _ in range(200)))
    with SqliteStore(path) as store:
        with open(path, "r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (os.path.getsize(path) - 4096))
        with pytest.raises(MemoryNodeError, match="STORE_UNAVAILABLE") as failure:
            store.query(MemoryQueryInput())
        assert path not in str(failure.value)


# --- cancelling


@pytest.mark.parametrize("work", ["query", "search", "write"])
def test_a_running_statement_stops_when_its_call_is_cancelled(store: SqliteStore, work: str) -> None:
    _write(store, *({"content": "apple pie " * 20, "metadata": {"n": n}} for n in range(20_000)))
    request: Any = {
        "query": MemoryQueryInput.from_wire({"orderBy": [{"field": "n"}]}),
        "search": MemorySearchInput(query=" ".join(["apple pie"] + ["pie apple"] * 3) + " *"),
        "write": MemoryWriteInput.from_wire(
            {"memories": [{"content": f"pear {n} " * 20} for n in range(10_000)]}
        ),
    }[work]
    cancel = Cancellation()
    ended: list[BaseException] = []

    def call() -> None:
        try:
            while True:
                getattr(store, work)(request, Call(cancel=cancel))
        except InvocationCancelled as cancelled:
            ended.append(cancelled)

    thread = threading.Thread(target=call)
    thread.start()
    _until(store._connections.is_in_use)
    cancel.cancel("enough")
    thread.join(WAIT)
    assert [str(error) for error in ended] == ["enough"]
    _write(store, {"key": "after", "content": 1})  # the connection is as good as new


def test_a_cancel_after_the_call_disturbs_nobody(store: SqliteStore) -> None:
    cancel = Cancellation()
    store.query(MemoryQueryInput(), Call(cancel=cancel))
    cancel.cancel()
    assert Memory(store).query({}).status == "success"


# --- processes


def test_processes_race_for_one_key(path: str) -> None:  # M19
    def write(number: int, answer: Connection) -> None:
        with SqliteStore(path) as store:
            content = number if number % 2 else "same"
            answer.send(Memory(store).write({"memories": [{"key": "k", "content": content}]}).to_wire())

    results = _in_processes(PROCESSES, write)
    with SqliteStore(path) as store:
        [kept] = Memory(store).query({}).unwrap()["items"]
    for number, result in enumerate(results):
        if kept["content"] == (number if number % 2 else "same"):
            assert result["output"] == [kept]
        else:
            assert result["error"]["code"] == "KEY_CONFLICT"


def test_processes_write_side_by_side(path: str) -> None:
    def write(number: int, answer: Connection) -> None:
        with SqliteStore(path) as store:
            for batch in range(5):
                _write(store, *({"content": [number, batch, place]} for place in range(10)))
        answer.send(None)

    _in_processes(8, write)
    with SqliteStore(path) as store:
        assert len(Memory(store).query({"limit": 1_000}).unwrap()["items"]) == 8 * 5 * 10


def test_a_store_opened_before_a_fork_serves_parent_and_child(path: str) -> None:
    store = SqliteStore(path)
    _write(store, {"key": "before", "content": 1})
    go, ready = fork.Event(), fork.Event()

    def child() -> None:
        _write(store, {"key": "early", "content": 1})
        ready.set()
        assert go.wait(WAIT)
        _write(store, {"key": "late", "content": 1})
        store.close()

    process = fork.Process(target=child, daemon=True)
    process.start()
    assert ready.wait(WAIT)
    _write(store, {"key": "parent", "content": 1})
    store.close()  # as far as the parent knows, it is the last: the child's log must stay all the same
    with SqliteStore(path) as again:
        _write(again, {"key": "again", "content": 1})
    go.set()
    process.join(WAIT)
    assert process.exitcode == 0
    keys = ["before", "early", "parent", "again", "late"]
    with SqliteStore(path) as store:
        assert [record["key"] for record in Memory(store).get({"keys": keys}).unwrap()] == keys
    assert _execute(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_fork_waits_for_calls_and_leaves_no_connection_to_the_child(store: SqliteStore) -> None:
    stop = threading.Event()
    failures: list[Exception] = []

    def call() -> None:
        try:
            while not stop.is_set():
                _write(store, {"content": 1})
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        for _ in range(20):
            process = fork.Process(target=_write, args=(store, {"content": 2}), daemon=True)
            process.start()
            process.join(WAIT)
            assert process.exitcode == 0
    finally:
        stop.set()
        thread.join(WAIT)
    assert failures == []


def test_a_killed_writer_leaves_whole_batches(path: str) -> None:
    size = 500
    SqliteStore(path).close()

    def write_on(answer: Connection) -> None:
        with SqliteStore(path) as store:
            number = 0
            while True:
                _write(store, *({"content": [number, place]} for place in range(size)))
                answer.send(number)
                number += 1

    for _ in range(3):
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=write_on, args=(sender,), daemon=True)
        process.start()
        assert receiver.poll(WAIT)
        receiver.recv()
        assert receiver.poll(WAIT)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(WAIT)
        answered = 1
        while receiver.poll():
            try:
                receiver.recv()
            except EOFError:
                break
            answered += 1
        receiver.close()
        sender.close()
        with SqliteStore(path) as store:
            (count,) = _execute(path, "SELECT count(*) FROM memories")[0]
            assert count % size == 0
            assert count >= answered * size
            assert _execute(path, "SELECT count(*) FROM memory_words") == [(count,)]
            _write(store, *({"content": "mine"} for _ in range(size)))
    assert _execute(path, "PRAGMA integrity_check") == [("ok",)]


def _write(store: SqliteStore, *drafts: dict[str, Any]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = Memory(store).write({"memories": list(drafts)}).unwrap()
    return written


def _execute(path: str, statement: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.commit()
        connection.close()


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    pause = threading.Event()
    while not is_so():
        assert time.monotonic() < deadline
        pause.wait(0.001)  # a loop without one would keep the other thread from its work


def _in_processes(count: int, work: Callable[[int, Connection], None]) -> list[Any]:
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
