"""`open_index`, and what all indexes share."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from ditto_tasks.contracts.errors import InvalidDefinition, RetrievalError
from ditto_tasks.contracts.index import IndexManifest, IndexMismatch
from ditto_tasks.contracts.memory import MemoryItem
from providers.indexes import open_index
from providers.indexes._manifest import check_manifest, manifest_text, read_manifest
from providers.indexes._records import filter_values, read_record, record_text
from providers.indexes._vectors import unit_vector
from providers.indexes.in_memory import InMemoryIndex

MANIFEST = IndexManifest("model/1", 2, "content/1")


def test_memory_urls_open_an_index_in_memory() -> None:
    with open_index("memory://", name="notes", manifest=MANIFEST) as index:
        assert isinstance(index, InMemoryIndex)


@pytest.mark.parametrize("url", ["", "notes", "redis://x", "Memory://", "://", "oracle://user:secret@host"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(InvalidDefinition, match="memory://, sqlite://, postgresql://") as refusal:
        open_index(url, name="notes", manifest=MANIFEST)
    assert "secret" not in str(refusal.value)


def test_an_index_in_memory_has_no_address() -> None:
    with pytest.raises(InvalidDefinition, match="memory://"):
        open_index("memory://name", name="notes", manifest=MANIFEST)


@pytest.mark.parametrize(("model", "preprocessing"), [("", "content/1"), ("model/1", "")])
def test_what_made_the_vectors_is_named(model: str, preprocessing: str) -> None:
    with pytest.raises(InvalidDefinition, match="must be named"):
        open_index("memory://", name="notes", manifest=IndexManifest(model, 2, preprocessing))


def test_the_package_imports_no_driver() -> None:
    code = "import sys, providers.indexes; print({'numpy', 'psycopg', 'sqlite3'} & set(sys.modules))"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout == "set()\n"


def test_a_manifest_is_kept_as_text() -> None:
    manifest = IndexManifest("模型/1", 384, 'p"\x00')
    assert read_manifest(manifest_text(manifest)) == manifest
    check_manifest("notes", manifest, manifest)


def test_a_mismatch_names_both_manifests() -> None:
    with pytest.raises(
        IndexMismatch,
        match=r"notes was made with model/1 \(2 dimensions, content/1, cosine\), .*"
        r"with model/2 \(3 dimensions, content/2, cosine\)",
    ) as refusal:
        check_manifest("notes", MANIFEST, IndexManifest("model/2", 3, "content/2"))
    assert refusal.value.kept == MANIFEST
    again = pickle.loads(pickle.dumps(refusal.value))
    assert (type(again), str(again), vars(again)) == (
        IndexMismatch,
        str(refusal.value),
        vars(refusal.value),
    )


@pytest.mark.parametrize(
    "vector", [[3, 4], [3e300, 4e300], [3e-320, 4e-320], np.array([3, 4], dtype=np.int8)]
)
def test_a_vector_is_brought_to_length_one_whatever_its_size(vector: list[float]) -> None:
    assert unit_vector(vector, 2) == pytest.approx([0.6, 0.8], rel=1e-3)


def test_a_zero_vector_stays_zero() -> None:
    assert unit_vector([0, -0.0], 2).tolist() == [0, 0]


def test_a_refused_vector_is_told_with_both_lengths() -> None:
    with pytest.raises(RetrievalError, match="3 numbers where the index holds 2"):
        unit_vector([1, 2, 3], 2)


def test_a_record_is_kept_as_text_without_control_characters() -> None:
    record = MemoryItem(id="a", key="\x00", content={"b": "\x00\x01", "n": 1.0}, metadata={})
    assert not any(character < " " for character in record_text(record))
    assert read_record(record_text(record)) == record


def test_filters_compare_strings() -> None:
    record = MemoryItem(id="a", content=1, metadata={"namespace": "n", "kind": 1})
    assert filter_values(record) == {"key": None, "namespace": "n", "kind": None}
    assert filter_values(MemoryItem(id="a", content=1)) == {"key": None, "namespace": None, "kind": None}
