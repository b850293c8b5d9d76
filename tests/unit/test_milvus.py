"""What the Milvus store promises beyond the contract: its searches, its limits, and one process a file."""

import multiprocessing
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import InvalidDefinition, InvocationCancelled, StoreUnavailable
from ditto_tasks.contracts.index import IndexEntry, IndexManifest, IndexMismatch
from ditto_tasks.contracts.memory import MemoryItem
from ditto_tasks.nodes.memory import Memory
from providers.indexes import open_index
from providers.stores import open_store
from providers.stores._milvus_collection import MAX_BYTES
from providers.stores._stable_id import stable_id
from providers.stores.milvus import MilvusStore
from tests.conftest import ROOT
from tests.contract.embedding import WordEmbedding
from tests.contract.folders import quick_folder
from tests.contract.memory_store import WAIT
from tests.milvus_server import milvus_server


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def embedding() -> WordEmbedding:
    return WordEmbedding()


@pytest.fixture
def store(folder: Path, embedding: WordEmbedding) -> Iterator[MilvusStore]:
    with MilvusStore(f"{folder}/milvus.db", embedding=embedding) as store:
        yield store


@pytest.fixture
def memory(store: MilvusStore) -> Memory:
    return Memory(store)


def written(memory: Memory, *drafts: dict[str, Any]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = memory.write({"memories": list(drafts)}).unwrap()
    return records


def found(memory: Memory, query: str, **request: Any) -> list[Any]:
    return [hit["memory"]["content"] for hit in memory.search({"query": query, **request}).unwrap()]


def code(result: Any) -> str:
    assert result.error is not None, result
    return str(result.error.code)


def test_words_are_found_by_bm25(memory: Memory) -> None:
    texts = ["one apple among very many other words that say nothing", "apple apple pie", "pear"]
    written(
        memory, *({"content": {"text": text}} for text in texts), {"content": {"apple": 1}}, {"content": None}
    )
    hits = memory.search({"query": "APPLE pie"}).unwrap()
    assert [hit["memory"]["content"]["text"] for hit in hits] == [texts[1], texts[0]]
    assert hits[0]["score"] > hits[1]["score"] > 0
    assert found(memory, "apple", strategy="keyword", limit=1) == [{"text": texts[1]}]


@pytest.mark.parametrize(
    ("query", "content"),
    [
        ("用户", "用户喜欢简短的回答"),
        ("café", "CAFE\u0301"),
        ('say "hi', "they say hi"),
        ("* AND (rust", "rust"),
    ],
)
def test_any_text_is_searched_for_by_its_words(memory: Memory, query: str, content: str) -> None:
    written(memory, {"content": content}, {"content": "unrelated"})
    assert found(memory, query) == [content]


@pytest.mark.parametrize("query", ["", " ", "*", '"', "\x00"])
def test_a_query_without_words_finds_nothing_by_keyword(memory: Memory, query: str) -> None:
    written(memory, {"content": 'a * " \x00'})
    assert found(memory, query) == []


def test_vectors_find_what_is_near(memory: Memory, embedding: WordEmbedding) -> None:
    written(memory, {"content": "green tea"}, {"content": ["rice", 7]}, {"content": None}, {"content": " "})
    hits = memory.search({"query": "tea", "strategy": "vector"}).unwrap()
    assert [hit["memory"]["content"] for hit in hits] == ["green tea", ["rice", 7]]
    assert hits[0]["score"] == pytest.approx(0.7071, abs=1e-4)
    assert embedding.asked == [("green tea", "document"), ("rice\n7", "document"), ("tea", "query")]


def test_searches_see_updates_and_deletes_and_keep_to_filters(memory: Memory) -> None:
    [changed, removed, _] = written(
        memory,
        {"content": "apple", "metadata": {"namespace": "a"}},
        {"content": "apple 2", "metadata": {"namespace": "a"}},
        {"key": "k", "content": "apple 3", "metadata": {"namespace": "b' or 1 == 1", "kind": "x"}},
    )
    memory.update({"memories": [{"id": changed["id"], "content": "carrot"}]}).unwrap()
    memory.delete({"ids": [removed["id"]]}).unwrap()
    for strategy in ("keyword", "vector"):
        assert found(memory, "apple", strategy=strategy, limit=1) == ["apple 3"]
        assert found(memory, "carrot", strategy=strategy, filter={"namespace": "a"}) == ["carrot"]
        for filter in ({"namespace": "b' or 1 == 1"}, {"kind": "x"}, {"key": "k"}, {"key": "k", "kind": "x"}):
            assert found(memory, "apple", strategy=strategy, filter=filter) == ["apple 3"]
        assert found(memory, "apple", strategy=strategy, filter={"namespace": "b"}) == []


@pytest.mark.parametrize(
    "request_",
    [
        {"query": 1},
        {"query": None},
        {"query": " ", "strategy": "vector"},
        {"query": "a", "strategy": "hybrid"},
        {"query": "a", "options": {"k": 1}},
        {"query": "a", "filter": {"tenant": "a"}},
    ],
)
def test_what_search_cannot_do_is_refused(memory: Memory, request_: dict[str, Any]) -> None:
    assert code(memory.search(request_)) == "INVALID_INPUT"


def test_keys_and_records_have_bounds(memory: Memory) -> None:
    [record] = written(memory, {"key": "é" * 127, "content": 1})
    assert record["id"] == stable_id(record["key"])
    assert (
        code(memory.write({"memories": [{"content": 1}, {"key": "é" * 128, "content": 1}]}))
        == "INVALID_INPUT"
    )
    room = MAX_BYTES - len('{"id":"","content":""}') - len(record["id"])
    [large] = written(memory, {"content": "用" * (room // 3)})
    assert memory.get({"ids": [large["id"]]}).unwrap() == [large]
    assert (
        code(memory.write({"memories": [{"content": 1}, {"content": "x" * (room + 1)}]})) == "INVALID_INPUT"
    )
    too_large = {"id": record["id"], "content": "x" * room}
    assert code(memory.update({"memories": [too_large]})) == "INVALID_INPUT"
    assert len(memory.query({}).unwrap()["items"]) == 2


def test_more_than_ten_thousand_records_are_not_read_at_once(memory: Memory) -> None:
    assert code(memory.get({"keys": [str(number) for number in range(10_001)]})) == "RESULT_LIMIT"


@pytest.mark.parametrize("order", [{"field": "key"}, {"field": "id", "direction": "desc"}])
def test_other_orders_than_by_id_are_refused(memory: Memory, order: dict[str, str]) -> None:
    assert code(memory.query({"orderBy": [order]})) == "INVALID_INPUT"


def test_records_are_there_again_and_another_embedding_is_refused(
    folder: Path, store: MilvusStore, memory: Memory, embedding: WordEmbedding
) -> None:
    records = written(memory, {"key": "k", "content": {"n": [10**30, 0.1, "\x00"]}})
    store.close()
    path = f"{folder}/milvus.db"
    with pytest.raises(IndexMismatch, match=r"words/v1.*words/v2"):
        MilvusStore(path, embedding=embedding, identity="words/v2")
    with pytest.raises(IndexMismatch, match=r"64.*32"):
        MilvusStore(path, embedding=WordEmbedding(32))
    with pytest.raises(IndexMismatch, match="name another collection"):
        open_store(f"milvus:///{path}")
    with MilvusStore(path, embedding=embedding) as again:
        assert Memory(again).get({"keys": ["k"]}).unwrap() == records


def test_a_store_without_an_embedding_says_what_vectors_need(folder: Path) -> None:
    with open_store(f"milvus:///{folder}/milvus.db") as store:
        result = Memory(store).search({"query": "x", "strategy": "vector"})
        assert code(result) == "SEARCH_UNAVAILABLE"
        assert result.error is not None
        assert "embedding" in result.error.message


def test_an_index_refuses_a_record_beyond_a_row(folder: Path) -> None:
    manifest = IndexManifest("model/1", 2, "content/1")
    with open_index(f"milvus:///{folder}/milvus.db", name="notes", manifest=manifest) as index:
        small = IndexEntry(MemoryItem(id="a", content=1), [1, 0], "d")
        large = IndexEntry(MemoryItem(id="b", content="x" * MAX_BYTES), [1, 0], "d")
        with pytest.raises(Exception, match=r"RETRIEVAL_INVALID_INPUT.*'b'.*65535"):
            index.upsert([small, large])
        assert index.count() == 0


def test_stores_and_indexes_share_a_file_in_one_process(folder: Path) -> None:
    url = f"milvus:///{folder}/milvus.db"
    manifest = IndexManifest("model/1", 2, "content/1")
    with open_store(url) as store, open_index(url, name="notes", manifest=manifest) as index:
        written(Memory(store), {"content": 1})
        with open_store(url) as again:
            assert len(Memory(again).query({}).unwrap()["items"]) == 1
        assert index.count() == 0
        assert len(Memory(store).query({}).unwrap()["items"]) == 1
    open_store(url).close()


def test_another_process_is_told_to_use_a_server(folder: Path) -> None:
    url = f"milvus:///{folder}/milvus.db"
    with open_store(url):
        ended = _run(f"from providers.stores import open_store; open_store({url!r})")
    assert "StoreUnavailable" in ended
    assert "use milvus://HOST:PORT" in ended


def test_a_child_of_a_fork_is_told_to_open_its_own(store: MilvusStore, memory: Memory) -> None:
    written(memory, {"content": 1})

    def work() -> None:
        result = memory.query({})
        assert code(result) == "STORE_UNAVAILABLE"
        assert result.error is not None
        assert "open it in the child" in result.error.message
        store.close()

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(WAIT)
    assert child.exitcode == 0
    assert len(memory.query({}).unwrap()["items"]) == 1


def test_processes_share_a_server(folder: Path) -> None:
    with milvus_server(folder) as address, open_store(f"milvus://{address}/notes") as store:
        memory = Memory(store)
        written(memory, {"key": "k", "content": "apple"})

        def work() -> None:
            with open_store(f"milvus://{address}/notes") as own:
                assert found(Memory(own), "apple") == found(memory, "apple") == ["apple"]
                written(memory, {"content": "pear"})

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(WAIT)
        assert child.exitcode == 0
        assert found(memory, "pear") == ["pear"]


def test_a_running_request_ends_with_its_call(store: MilvusStore) -> None:
    cancel, asked, ended = Cancellation(), threading.Event(), threading.Event()

    def work(client: Any, seconds: float) -> None:
        asked.set()
        ended.wait(WAIT)

    threading.Thread(target=lambda: (asked.wait(WAIT), cancel.cancel("enough"))).start()
    with pytest.raises(InvocationCancelled, match="enough"):
        store._rows._connection.run(work, Call(cancel=cancel))
    ended.set()


def test_a_server_that_is_not_there_is_named_when_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("providers.stores._milvus_connections.TIMEOUT", 0.5)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(StoreUnavailable, match=f"{address}.*cannot be reached"):
            open_store(f"milvus://{address}")


@pytest.mark.parametrize(
    "url", ["milvus://", "milvus:///", "milvus:///x", "milvus://user:pw@host", "milvus://h/A"]
)
def test_a_url_in_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidDefinition):
        open_store(url)


def test_without_its_client_it_says_what_to_install() -> None:
    ended = _run(
        "import sys; sys.modules['pymilvus'] = None; import providers.stores as s; s.open_store('milvus://x')"
    )
    assert "InvalidDefinition: Milvus needs its client: pip install 'ditto-tasks[milvus]'" in ended


def _run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT * 2, check=False
    ).stderr
