"""What only the SQLite index can get wrong: its matrix beside the file, other writers, files of others."""

import multiprocessing
import os
import random
import signal
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import (
    InvalidDefinition,
    InvocationCancelled,
    RetrievalError,
    StoreUnavailable,
)
from ditto_tasks.contracts.index import IndexEntry, IndexHit, IndexManifest
from ditto_tasks.contracts.memory import MemoryItem
from providers.indexes import open_index, sqlite
from providers.indexes._matrix import Matrix, MatrixRow
from providers.indexes.sqlite import SqliteIndex
from providers.stores import _sqlite_connections
from providers.stores.sqlite import SqliteStore
from tests.conftest import wait_until

DIMENSIONS = 8
MANIFEST = IndexManifest("model/1", DIMENSIONS, "content/1")
WAIT = 30.0  # seconds; a bound on what ends within a few
fork = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notes.index")


@pytest.fixture
def index(path: str) -> Iterator[SqliteIndex]:
    with SqliteIndex(path, "notes", MANIFEST) as index:
        yield index


# --- files


@pytest.mark.parametrize("url", ["sqlite://notes.index", "sqlite:///", "sqlite:///:memory:"])
def test_a_url_in_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidDefinition):
        open_index(url, name="notes", manifest=MANIFEST)


def test_a_file_of_another_program_or_of_a_store_is_left_as_it_is(path: str) -> None:
    with SqliteStore(path):
        pass
    with pytest.raises(StoreUnavailable, match="a file of its own"):
        SqliteIndex(path, "notes", MANIFEST)
    with SqliteStore(path):
        pass


def test_a_store_refuses_the_file_of_an_index(index: SqliteIndex, path: str) -> None:
    with pytest.raises(StoreUnavailable):
        SqliteStore(path)


def test_a_newer_schema_is_refused(path: str) -> None:
    SqliteIndex(path, "notes", MANIFEST).close()
    execute(path, "PRAGMA user_version = 10002")
    with pytest.raises(StoreUnavailable, match="version 10002, this release knows 10001"):
        SqliteIndex(path, "notes", MANIFEST)


def test_a_full_disk_is_said_and_nothing_of_the_batch_is_kept(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (*_sqlite_connections.SETTINGS, "PRAGMA max_page_count = 64")
    monkeypatch.setattr(_sqlite_connections, "SETTINGS", settings)
    with SqliteIndex(path, "notes", MANIFEST) as index:
        index.upsert(entries(["kept"]))
        with pytest.raises(RetrievalError, match="no room left") as failure:
            index.upsert(entries([f"{number} {'x' * 200}" for number in range(2_000)]))
        assert failure.value.code == "RETRIEVAL_BACKEND_ERROR"
        assert index.page(None, limit=10) == [("kept", "digest of kept")]
        assert ids(index.search(vector("kept"), limit=10)) == ["kept"]


# --- what is read anew


def test_a_search_reads_only_what_was_written_since_the_last(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    put = Matrix.put

    def counted(matrix: Matrix, rows: Sequence[MatrixRow]) -> None:
        read.append(len(rows))
        put(matrix, rows)

    monkeypatch.setattr(Matrix, "put", counted)
    index.upsert(entries([f"{number}" for number in range(100)]))
    index.search(vector("1"), limit=1)
    index.search(vector("2"), limit=1)
    assert read == [100]
    index.upsert(entries(["7", "new"]))
    index.delete(["8"])
    index.search(vector("1"), limit=1)
    assert read == [100, 2]


def test_an_instance_that_is_far_behind_reads_all(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "HISTORY", 5)
    with SqliteIndex(path, "notes", MANIFEST) as writer, SqliteIndex(path, "notes", MANIFEST) as reader:
        writer.upsert(entries([f"{number}" for number in range(20)]))
        assert len(reader.search(vector("1"), limit=100)) == 20
        for number in range(19):
            writer.delete([f"{number}"])
        assert ids(reader.search(vector("1"), limit=100)) == ["19"]
        assert execute(path, "SELECT count(*) FROM removed") == [(5,)]


def test_a_file_that_was_set_back_is_read_anew(path: str) -> None:
    with SqliteIndex(path, "notes", MANIFEST) as index:
        index.upsert(entries(["old"]))
        index.upsert(entries(["new"]))
        assert len(index.search(vector("x"), limit=10)) == 2
        execute(path, "DELETE FROM entries WHERE id = 'new'")
        execute(path, "UPDATE indexes SET revision = 1")
        assert ids(index.search(vector("x"), limit=10)) == ["old"]


def test_two_writers_and_a_reader_agree_at_every_step(path: str) -> None:
    chance = random.Random(7)
    kept: dict[str, str] = {}
    with (
        SqliteIndex(path, "notes", MANIFEST) as one,
        SqliteIndex(path, "notes", MANIFEST) as two,
        SqliteIndex(path, "notes", MANIFEST) as reader,
    ):
        for step in range(150):
            writer = chance.choice([one, two])
            chosen = [f"{chance.randrange(40):02}" for _ in range(chance.randrange(1, 6))]
            if chance.random() < 0.4:
                writer.delete(chosen)
                for id in chosen:
                    kept.pop(id, None)
            else:
                kind = f"k{step % 3}"
                writer.upsert(entries(chosen, kind=kind))
                kept.update(dict.fromkeys(chosen, kind))
            for filter in (None, {"kind": "k1"}):
                matching = [id for id, kind in kept.items() if filter is None or kind == filter["kind"]]
                hits = reader.search(vector("20"), limit=7, filter=filter)
                assert ids(hits) == nearest(vector("20"), matching)[:7]


def test_equal_vectors_are_ordered_by_id_wherever_they_are(index: SqliteIndex) -> None:
    names = [str(uuid.uuid4()) for _ in range(333)]
    same = vector("same")
    for name in names:
        index.upsert([IndexEntry(MemoryItem(id=name, content=1), same, "d")])
    index.delete(names[::7])
    left = sorted(set(names) - set(names[::7]))
    for limit in (1, 10, 100, 400):
        assert ids(index.search(vector("other"), limit=limit)) == left[:limit]


# --- dropping


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made anew"])
def test_a_dropped_index_is_never_answered_from_memory(path: str, anew: bool) -> None:
    with SqliteIndex(path, "notes", MANIFEST) as loaded:
        loaded.upsert(entries(["a"]))
        assert ids(loaded.search(vector("a"), limit=10)) == ["a"]
        in_a_child(lambda: drop(path, anew))
        for filter in (None, {"kind": "k"}):
            with pytest.raises(RetrievalError, match="The index notes is gone: it was dropped"):
                loaded.search(vector("a"), limit=10, filter=filter)


def test_an_index_is_never_taken_for_a_dropped_one_of_its_name(path: str, index: SqliteIndex) -> None:
    index.upsert(entries(["old"]))
    drop(path, anew=True)
    for work in (
        lambda: index.upsert(entries(["late"])),
        lambda: index.delete(["new"]),
        lambda: index.search(vector("new"), limit=10),
        lambda: index.digests(["new"]),
        lambda: index.vectors(["new"]),
        lambda: index.page(None, limit=10),
        lambda: index.count(),
    ):
        with pytest.raises(RetrievalError, match="RETRIEVAL_PROVIDER_UNAVAILABLE: The index notes is gone"):
            work()
    index.drop()
    with SqliteIndex(path, "notes", MANIFEST) as again:
        assert again.page(None, limit=10) == [("new", "digest of new")]


def test_nothing_of_a_dropped_index_stays_in_the_file(path: str, index: SqliteIndex) -> None:
    with SqliteIndex(path, "notes", MANIFEST) as other:
        other.upsert(entries(["a", "b"]))
        other.delete(["a"])
        index.drop()
        for work in (lambda: other.upsert(entries(["c"])), lambda: other.delete(["b"])):
            with pytest.raises(RetrievalError, match="gone"):
                work()
    for table in ("indexes", "entries", "removed"):
        assert execute(path, f"SELECT count(*) FROM {table}") == [(0,)]


class CancelledAtThird(Cancellation):
    """Is cancelled when it is looked at for the third time."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def raise_if_cancelled(self) -> None:
        self._looks += 1
        if self._looks == 3:
            self.cancel()
        super().raise_if_cancelled()


def test_what_an_interrupted_drop_has_left_the_next_one_takes_along(path: str, index: SqliteIndex) -> None:
    index.upsert(entries([f"r{number}" for number in range(2_000)]))
    with pytest.raises(InvocationCancelled):
        index.drop(Call(cancel=CancelledAtThird()))
    [(left,)] = execute(path, "SELECT count(*) FROM entries")
    assert 0 < left < 2_000
    with pytest.raises(RetrievalError, match="gone"):
        index.count()
    with SqliteIndex(path, "other", MANIFEST) as other:
        other.drop()
    for table in ("indexes", "entries", "removed"):
        assert execute(path, f"SELECT count(*) FROM {table}") == [(0,)]


# --- cancelling, threads, processes


def test_a_write_stops_when_its_call_is_cancelled(index: SqliteIndex) -> None:
    batch = entries([f"{number}" for number in range(2_000)])
    cancel = Cancellation()
    ended: list[BaseException] = []

    def call() -> None:
        try:
            while True:
                index.upsert(batch, Call(cancel=cancel))
        except InvocationCancelled as cancelled:
            ended.append(cancelled)

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(index._connections.is_in_use)
    cancel.cancel("enough")
    thread.join(WAIT)
    assert [str(error) for error in ended] == ["enough"]
    index.upsert(entries(["after"]))
    assert index.digests(["after"]) == {"after": "digest of after"}


def test_children_of_a_fork_search_while_threads_of_the_parent_do(index: SqliteIndex) -> None:
    index.upsert(entries([f"{number}" for number in range(500)]))
    stop = threading.Event()
    failures: list[Exception] = []

    def call() -> None:
        try:
            while not stop.is_set():
                assert len(index.search(vector("1"), limit=10)) == 10
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            process = fork.Process(target=write_and_find, args=(index, f"child {number}"), daemon=True)
            process.start()
            process.join(WAIT)
            assert process.exitcode == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT)
    assert failures == []
    assert index.count() == 510


def test_a_killed_writer_leaves_whole_batches(path: str) -> None:
    size = 200
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=write_on, args=(path, size, sender), daemon=True)
    process.start()
    for _ in range(2):
        assert receiver.poll(WAIT)
        receiver.recv()
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join(WAIT)
    receiver.close()
    sender.close()
    with SqliteIndex(path, "notes", MANIFEST) as index:
        assert index.count() % size == 0
        assert index.count() >= 2 * size
        assert len(index.search(vector("x"), limit=10_000)) == index.count()
    assert execute(path, "PRAGMA integrity_check") == [("ok",)]


def write_on(path: str, size: int, answer: Connection) -> None:
    with SqliteIndex(path, "notes", MANIFEST) as index:
        while True:
            index.upsert(entries([str(uuid.uuid4()) for _ in range(size)]))
            answer.send(None)


def drop(path: str, anew: bool) -> None:
    with SqliteIndex(path, "notes", MANIFEST) as index:
        index.drop()
    if anew:
        with SqliteIndex(path, "notes", MANIFEST) as index:
            index.upsert(entries(["new"]))


def in_a_child(work: Callable[[], None]) -> None:
    process = fork.Process(target=work, daemon=True)
    process.start()
    process.join(WAIT)
    assert process.exitcode == 0


def write_and_find(index: SqliteIndex, id: str) -> None:
    index.upsert(entries([id]))
    assert ids(index.search(vector(id), limit=1)) == [id]


def vector(id: str) -> list[float]:
    """Give a vector that only this id has."""
    chance = random.Random(id)
    return [chance.gauss(0, 1) for _ in range(DIMENSIONS)]


def entries(names: Sequence[str], **metadata: str) -> list[IndexEntry]:
    fields: dict[str, Any] = {"metadata": metadata} if metadata else {}
    return [
        IndexEntry(MemoryItem(id=name, content=name, **fields), vector(name), f"digest of {name}")
        for name in names
    ]


def nearest(query: Sequence[float], names: Sequence[str]) -> list[str]:
    def score(name: str) -> float:
        one, other = np.array(query), np.array(vector(name))
        return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    return sorted(names, key=lambda name: (-score(name), name))


def ids(hits: Sequence[IndexHit]) -> list[str]:
    return [hit.record.id for hit in hits]


def execute(path: str, statement: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.commit()
        connection.close()
