"""`open_store`, and the words that the stores with a search of their own make of text."""

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ditto_tasks.contracts.errors import InvalidDefinition, StoreUnavailable
from providers.stores import open_store
from providers.stores._paging import order_key
from providers.stores.in_memory import InMemoryStore
from providers.stores.sqlite import SqliteStore
from providers.text import index_text, phrases, search_text, words


def test_memory_urls_open_a_store_in_memory() -> None:
    with open_store("memory://") as store:
        assert isinstance(store, InMemoryStore)


def test_three_slashes_are_a_path_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///notes.db") as store:
        assert isinstance(store, SqliteStore)
    assert (tmp_path / "notes.db").exists()


def test_four_slashes_are_an_absolute_path(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/notes.db").close()
    assert (tmp_path / "notes.db").exists()


@pytest.mark.parametrize("url", ["", "notes.db", "redis://x", "Memory://", "://", "sqlite:/notes.db"])
def test_an_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(InvalidDefinition, match="memory://, sqlite://"):
        open_store(url)


def test_a_refused_url_is_not_repeated_beyond_its_scheme() -> None:
    with pytest.raises(InvalidDefinition) as refusal:
        open_store("oracle://user:secret@host")
    assert "'oracle'" in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("url", ["memory://name", "sqlite://notes.db", "sqlite:///", "sqlite:///:memory:"])
def test_a_url_in_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidDefinition):
        open_store(url)


def test_a_file_that_cannot_be_opened_is_said_when_opening(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"missing/notes\.db"):
        open_store(f"sqlite:///{tmp_path}/missing/notes.db")


def test_the_package_imports_no_driver() -> None:
    code = "import sys, providers.stores; print('sqlite3' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout == "False\n"


def test_search_text_is_all_strings_and_numbers_among_the_values() -> None:
    content = {"a": ["x", {"b": 1}], "c": 2.5, "d": True, "e": None, "f": "y"}
    assert search_text(content) == "x\n1\n2.5\ny"
    assert search_text(None) == ""


def test_words_are_folded_and_chinese_characters_stand_alone() -> None:
    assert words("Café ＡＢＣ x_y 用户v2が") == ["cafe", "abc", "x", "y", "用", "户", "v2", "が"]


def test_phrases_are_split_by_white_space_and_by_script() -> None:
    assert phrases('TCK-358 用户v2 "foo foo * ') == [("tck", "358"), ("用", "户"), ("v2",), ("foo",)]


def test_fts5_makes_the_same_words_of_every_character() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE f USING fts5 (t, tokenize = 'unicode61 remove_diacritics 2')")
    connection.execute("CREATE VIRTUAL TABLE v USING fts5vocab (f, 'instance')")
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    connection.executemany(
        "INSERT INTO f (rowid, t) VALUES (?, ?)", ((ord(c) + 1, index_text(f"{c} é")) for c in characters)
    )
    counted = Counter(place for (place,) in connection.execute("SELECT doc FROM v"))
    connection.close()
    assert [c for c in characters if counted[ord(c) + 1] != len(words(c)) + 1] == []


def test_order_keys_sort_by_kind_then_value() -> None:
    values = [
        None,
        -(10**400),
        -1e300,
        -2,
        -0.5,
        False,
        5e-324,
        0.5,
        True,
        2,
        10**400,
        "",
        "a",
        "a\x00",
        "é",
        "\uffff",
        "😀",
        [1],
        [],
        {"a": 1},
        {},
    ]
    keys = [order_key(value) for value in values]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert order_key(0) == order_key(False) == order_key(-0.0)
    assert order_key(1) == order_key(1.0) == order_key(True)
