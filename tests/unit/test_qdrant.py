"""What the Qdrant store promises beyond the contract: ids, vectors, the manifest, one process a directory."""

import json
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient, models

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import (
    DeadlineExceeded,
    InvalidDefinition,
    InvocationCancelled,
    MemoryNodeError,
    RetrievalError,
    StoreUnavailable,
)
from ditto_tasks.contracts.index import IndexManifest, IndexMismatch
from ditto_tasks.contracts.memory import MemoryItem
from ditto_tasks.nodes.memory import Memory
from providers.indexes import open_index
from providers.indexes.qdrant import QdrantIndex
from providers.stores import open_store
from providers.stores._failures import STORE
from providers.stores._qdrant_connections import QdrantConnection
from providers.stores._qdrant_points import MANIFEST_ID, first_id_after, payload_of, record_of
from providers.stores._stable_id import stable_id
from providers.stores.qdrant import QdrantStats, QdrantStore
from tests.conftest import ROOT
from tests.contract.embedding import WordEmbedding
from tests.contract.memory_store import WAIT

DRINKS = "The user prefers green tea"
FOOD = "The user prefers rice for lunch"


@pytest.fixture
def embedding() -> WordEmbedding:
    return WordEmbedding()


@pytest.fixture
def store(tmp_path: Path, embedding: WordEmbedding) -> Iterator[QdrantStore]:
    with QdrantStore(str(tmp_path / "qdrant"), embedding=embedding) as store:
        yield store


@pytest.fixture
def memory(store: QdrantStore) -> Memory:
    return Memory(store)


def preference(text: Any, **fields: Any) -> dict[str, Any]:
    metadata = {"kind": "preference", **fields.pop("metadata", {})}
    return {"content": {"text": text}, "metadata": metadata, **fields}


def written(memory: Memory, *drafts: dict[str, Any]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = memory.write({"memories": list(drafts)}).unwrap()
    return records


def code(result: Any) -> str:
    assert result.error is not None, result
    return str(result.error.code)


def points(folder: Path) -> dict[str, models.Record]:
    """Read all points of a directory that nobody has open."""
    client = QdrantClient(path=str(folder / "qdrant"))
    found, _ = client.scroll("memories", limit=100, with_vectors=True)
    client.close()
    return {str(point.id): point for point in found}


# --- ids


@pytest.mark.parametrize(
    ("key", "id"),
    [
        ("team-b:alice:memory:communication", "02a34347-4135-5f62-9d65-eba6c69007f0"),
        ("team-a:alice:task:task-a:base", "63f4d958-f51d-585b-86f8-51dd4dfd2a3a"),
    ],
)
def test_the_id_of_a_record_follows_from_its_key(memory: Memory, key: str, id: str) -> None:
    assert stable_id(key) == id
    assert written(memory, {"key": key, "content": 1})[0]["id"] == id


def test_ids_that_are_no_uuids_and_the_manifest_are_no_records(memory: Memory) -> None:
    assert memory.get({"ids": [MANIFEST_ID, "x"]}).unwrap() == []
    assert code(memory.update({"memories": [{"id": MANIFEST_ID, "content": 1}]})) == "NOT_FOUND"
    assert memory.delete({"ids": [MANIFEST_ID, "x"]}).unwrap() == {"deleted": []}
    assert memory.query({}).unwrap() == {"items": []}


def test_the_first_id_after_a_text_is_the_least_that_sorts_behind_it() -> None:
    ids = [stable_id(str(number)) for number in range(50)]
    for text in ["", "5", "a-", "\U0001f600", *ids, *(id[:9] for id in ids)]:
        first = first_id_after(text)
        assert [id for id in ids if first is not None and id >= first] == [id for id in ids if id > text]
    assert first_id_after("f" * 8) == "ffffffff-0000-0000-0000-000000000000"
    assert first_id_after("ffffffff-ffff-ffff-ffff-ffffffffffff") is None


# --- vectors


def test_preferences_alone_are_embedded(tmp_path: Path, store: QdrantStore, memory: Memory) -> None:
    [wanted, other, bare] = written(
        memory,
        preference(DRINKS),
        {"content": {"text": FOOD}, "metadata": {"kind": "checkpoint"}},
        {"content": 1},
    )
    assert store.stats == QdrantStats(embedding_calls=1, embedded_texts=1)
    store.close()
    kept = points(tmp_path)
    assert {id: bool(point.vector) for id, point in kept.items()} == {
        MANIFEST_ID: False,
        wanted["id"]: True,
        other["id"]: False,
        bare["id"]: False,
    }
    assert kept[wanted["id"]].payload == wanted


def test_a_search_finds_the_nearest_preferences(
    store: QdrantStore, memory: Memory, embedding: WordEmbedding
) -> None:
    [drinks, food] = written(memory, preference(DRINKS), preference(FOOD))
    hits = memory.search({"query": "what tea", "strategy": "vector"}).unwrap()
    assert [hit["memory"] for hit in hits] == [drinks, food]
    assert 1 >= hits[0]["score"] > hits[1]["score"]
    assert embedding.asked == [(DRINKS, "document"), (FOOD, "document"), ("what tea", "query")]
    assert store.stats == QdrantStats(embedding_calls=2, embedded_texts=3, vector_queries=1)


def test_a_search_keeps_to_filter_and_limit(memory: Memory) -> None:
    written(
        memory,
        *(preference(f"{DRINKS} {n}", key=f"a{n}", metadata={"namespace": "a"}) for n in range(12)),
        preference(FOOD, key="b", metadata={"namespace": "b"}),
        preference(FOOD, key="c", metadata={"namespace": ["b"]}),
    )

    def keys(**request: Any) -> list[str]:
        return [hit["memory"]["key"] for hit in memory.search({"query": DRINKS, **request}).unwrap()]

    assert len(keys()) == 10
    assert len(keys(limit=3)) == 3
    assert keys(filter={"namespace": "b"}) == ["b"]
    assert keys(filter={"namespace": "b", "kind": "preference"}) == ["b"]
    assert keys(filter={"kind": "checkpoint"}) == []
    assert keys(filter={"key": "c"}) == ["c"]


@pytest.mark.parametrize("text", [None, 1, "", " \n", "x" * 8_001])
def test_a_preference_needs_a_text_of_bounded_length(store: QdrantStore, memory: Memory, text: Any) -> None:
    [kept] = written(memory, preference("x" * 8_000))
    assert code(memory.write({"memories": [{"content": 1}, preference(text)]})) == "INVALID_INPUT"
    assert (
        code(memory.write({"memories": [{"content": "x", "metadata": {"kind": "preference"}}]}))
        == "INVALID_INPUT"
    )
    assert (
        code(memory.update({"memories": [{"id": kept["id"], "content": {"text": text}}]})) == "INVALID_INPUT"
    )
    assert memory.query({}).unwrap() == {"items": [kept]}
    assert store.stats.embedded_texts == 1


def test_an_update_makes_the_vector_anew(memory: Memory) -> None:
    [record] = written(memory, preference(DRINKS))
    memory.update({"memories": [{"id": record["id"], "content": {"text": FOOD}}]}).unwrap()
    [hit] = memory.search({"query": FOOD}).unwrap()
    assert hit["score"] == pytest.approx(1)
    memory.update({"memories": [{"id": record["id"], "metadata": {}}]}).unwrap()
    assert memory.search({"query": FOOD}).unwrap() == []


def test_the_same_record_again_is_neither_written_nor_embedded(store: QdrantStore, memory: Memory) -> None:
    first = written(memory, preference(DRINKS, key="k"))
    assert written(memory, preference(DRINKS, key="k")) == first
    assert store.stats.embedded_texts == 1


@pytest.mark.parametrize(
    "request_",
    [
        {"query": 1},
        {"query": None},
        {"query": " "},
        {"query": "a", "strategy": "keyword"},
        {"query": "a", "options": {"k": 1}},
        {"query": "a", "filter": {"tenant": "a"}},
    ],
)
def test_what_search_cannot_do_is_refused(memory: Memory, request_: dict[str, Any]) -> None:
    assert code(memory.search(request_)) == "INVALID_INPUT"


def test_a_wrong_vector_is_refused_and_nothing_is_written(
    store: QdrantStore, memory: Memory, embedding: WordEmbedding
) -> None:
    embedding.dimensions = 63
    assert code(memory.write({"memories": [preference(DRINKS)]})) == "RETRIEVAL_INVALID_EMBEDDING"
    assert memory.query({}).unwrap() == {"items": []}


def test_numbers_beyond_a_payload_are_kept_exactly(
    tmp_path: Path, store: QdrantStore, memory: Memory
) -> None:
    content = [0.1, 10**400, -(2**63) - 1, 2**64 - 1, 1e-300]
    [record] = written(memory, {"key": "k", "content": content})
    assert (
        memory.get({"keys": ["k"]}).unwrap() == [record] == written(memory, {"key": "k", "content": content})
    )
    store.close()
    payload = points(tmp_path)[record["id"]].payload
    assert payload is not None
    assert json.loads(payload["ditto"]["exact"]) == record


# --- records of payloads


@pytest.mark.parametrize(
    "payload",
    [
        None,
        {"content": 1},
        {"id": "", "content": 1},
        {"id": 7, "content": 1},
        {"id": "a", "key": "k"},
        {"id": "a", "content": 1, "key": ""},
        {"id": "a", "content": 1, "key": None},
        {"id": "a", "content": 1, "metadata": []},
        {"id": "a", "content": 1, "ditto": {"exact": "7"}},
        {"id": "a", "content": 1, "ditto": {"exact": "{"}},
    ],
)
def test_a_point_without_a_record_is_named(tmp_path: Path, payload: dict[str, Any] | None) -> None:
    location, manifest = str(tmp_path / "qdrant"), IndexManifest("model/1", 2, "content/1")
    QdrantIndex(location, "notes", manifest).close()
    client = QdrantClient(path=location)
    client.upsert("notes", [models.PointStruct(id=1, vector={"record": [1, 0]}, payload=payload)])
    client.close()
    with QdrantIndex(location, "notes", manifest) as index, pytest.raises(RetrievalError) as raised:
        index.search([1, 0], limit=1)
    assert raised.value.code == "RETRIEVAL_INVALID_BACKEND_OUTPUT"


@pytest.mark.parametrize("fields", [{}, {"key": "k"}, {"metadata": {"kind": "note", "tags": ["a"]}}])
@pytest.mark.parametrize("content", [None, {"text": DRINKS}, [1, 0.1]])
def test_the_record_of_a_payload_is_the_one_it_was_made_of(content: Any, fields: dict[str, Any]) -> None:
    record = MemoryItem.from_wire({"id": "a", "content": content, **fields})
    assert record_of({**payload_of(record), "digest": "d"}) == record


# --- listing and limits


@pytest.mark.parametrize("field", ["key", "rank"])
def test_other_orders_than_by_id_are_refused(memory: Memory, field: str) -> None:
    assert code(memory.query({"orderBy": [{"field": field}]})) == "INVALID_INPUT"
    assert code(memory.query({"orderBy": [{"field": "id", "direction": "desc"}]})) == "INVALID_INPUT"


def test_more_than_ten_thousand_records_are_not_read_at_once(memory: Memory) -> None:
    keys = [str(number) for number in range(10_001)]
    assert memory.get({"keys": keys[1:]}).unwrap() == []
    assert code(memory.get({"keys": keys})) == "RESULT_LIMIT"


# --- the manifest


def test_the_manifest_says_what_made_the_vectors(tmp_path: Path, store: QdrantStore) -> None:
    store.close()
    assert points(tmp_path)[MANIFEST_ID].payload == {
        "identity": "words/v1",
        "dimensions": 64,
        "preprocessing": "preference.content.text/v1",
        "distance": "Cosine",
    }


def test_another_identity_or_length_is_refused(
    tmp_path: Path, store: QdrantStore, embedding: WordEmbedding
) -> None:
    store.close()
    with pytest.raises(IndexMismatch, match=r"words/v1.*words/v2"):
        QdrantStore(str(tmp_path / "qdrant"), embedding=embedding, identity="words/v2")
    with pytest.raises(IndexMismatch, match=r"64.*32"):
        QdrantStore(str(tmp_path / "qdrant"), embedding=WordEmbedding(32))
    QdrantStore(str(tmp_path / "qdrant"), embedding=embedding).close()


def test_records_without_a_manifest_are_never_given_one(tmp_path: Path, embedding: WordEmbedding) -> None:
    with open_store(f"qdrant:///{tmp_path}/qdrant") as store:
        written(Memory(store), {"content": 1})
    with pytest.raises(IndexMismatch, match="name another collection"):
        QdrantStore(str(tmp_path / "qdrant"), embedding=embedding)


def test_a_store_without_an_embedding_says_what_search_needs(
    tmp_path: Path, embedding: WordEmbedding
) -> None:
    with QdrantStore(str(tmp_path / "qdrant"), embedding=embedding) as store:
        [record] = written(Memory(store), preference(DRINKS))
    with open_store(f"qdrant:///{tmp_path}/qdrant") as bare:
        memory = Memory(bare)
        assert memory.get({"ids": [record["id"]]}).unwrap() == [record]
        assert written(memory, {"content": 1})
        for result in (memory.search({"query": DRINKS}), memory.write({"memories": [preference(FOOD)]})):
            assert code(result) == "SEARCH_UNAVAILABLE"
            assert result.error is not None
            assert "embedding" in result.error.message


# --- directories and servers


def test_stores_and_indexes_share_a_directory_in_one_process(tmp_path: Path) -> None:
    manifest = IndexManifest("model/1", 2, "content/1")
    url = f"qdrant:///{tmp_path}/qdrant"
    with open_store(url) as store, open_index(url, name="notes", manifest=manifest) as index:
        written(Memory(store), {"content": 1})
        assert index.count() == 0
        with open_store(url) as again:
            assert len(Memory(again).query({}).unwrap()["items"]) == 1
        assert len(Memory(store).query({}).unwrap()["items"]) == 1
    open_store(url).close()


def test_another_process_is_told_to_use_a_server(tmp_path: Path) -> None:
    url = f"qdrant:///{tmp_path}/qdrant"
    code = f"from providers.stores import open_store; open_store({url!r})"
    with open_store(url):
        ended = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    assert "StoreUnavailable" in ended.stderr
    assert "use qdrant://HOST:PORT" in ended.stderr


def test_a_child_of_a_fork_is_refused_and_leaves_the_parent_its_directory(tmp_path: Path) -> None:
    url = f"qdrant:///{tmp_path}/qdrant"
    with open_store(url) as store:
        memory = Memory(store)

        def work() -> None:
            result = memory.write({"memories": [{"content": 1}]})
            assert code(result) == "STORE_UNAVAILABLE"
            assert result.error is not None
            assert "one process" in result.error.message
            with pytest.raises(StoreUnavailable):
                open_store(url)
            store.close()

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(WAIT)
        assert child.exitcode == 0
        written(memory, {"content": 1})
        test_another_process_is_told_to_use_a_server(tmp_path)


def test_a_server_that_is_not_there_is_named_when_opening() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(StoreUnavailable, match=f"{address}.*cannot be reached"):
            open_store(f"qdrant://{address}")


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_running_request_ends_with_its_call(silent: str) -> None:
    cancel = Cancellation()
    connection = QdrantConnection(silent, STORE)
    asked = threading.Event()

    def work(client: QdrantClient) -> bool:
        asked.set()
        return client.collection_exists("memories")

    threading.Thread(target=lambda: (asked.wait(WAIT), cancel.cancel("enough"))).start()
    with pytest.raises(InvocationCancelled, match="enough"):
        connection.run(work, Call(cancel=cancel))
    with pytest.raises(DeadlineExceeded):
        connection.run(work, Call(deadline=time.monotonic() + 0.2))
    connection.close()
    with pytest.raises(MemoryNodeError, match="STORE_UNAVAILABLE"):
        connection.run(work, NO_CALL)


@pytest.mark.parametrize(
    "url",
    [
        "qdrant://",
        "qdrant:///",
        "qdrant://key@host",
        "qdrant://host?x=1",
        "qdrant://host/A",
        "qdrant://host/a-b",
    ],
)
def test_a_url_in_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidDefinition):
        open_store(url)


@pytest.mark.parametrize(
    "fields",
    [
        {"identity": "x", "dimensions": 2},
        {"embedding": WordEmbedding(), "dimensions": 0},
        {"embedding": WordEmbedding(), "dimensions": True},
        {"embedding": object()},
        {"collection": "A"},
        {"collection": "a" * 102},
    ],
)
def test_what_describes_no_store_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidDefinition):
        QdrantStore(str(tmp_path / "qdrant"), **fields)


def test_without_its_client_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['qdrant_client'] = None; import providers.stores as s; s.open_store('qdrant://x')"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert "InvalidDefinition: Qdrant needs its client: pip install 'ditto-tasks[qdrant]'" in ended.stderr
