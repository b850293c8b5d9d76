"""How files become passages."""

from pathlib import Path

import pytest

from ditto_tasks.ingest import LONGEST_PASSAGE, Passage, compare, read_documents, split


def test_splits_at_headings_and_names_those_above() -> None:
    text = "Before.\n\n# Guide\n\nOne.\n\n## Steps\n\nTwo.\n\n# End #\n\nThree.\n"
    assert split(text) == [
        (None, "Before."),
        ("Guide", "# Guide\n\nOne."),
        ("Guide > Steps", "## Steps\n\nTwo."),
        ("End", "# End #\n\nThree."),
    ]


def test_a_hash_in_fenced_code_is_no_heading() -> None:
    text = "# Guide\n\n```sh\n# a comment\n\n# another\n```\n"
    assert split(text) == [("Guide", "# Guide\n\n```sh\n# a comment\n\n# another\n```")]


def test_plain_text_has_no_headings() -> None:
    assert split("# not a heading\n", is_markdown=False) == [(None, "# not a heading")]


def test_paragraphs_are_joined_as_long_as_they_fit() -> None:
    paragraph = "word " * 150  # 749 characters
    parts = [text for _, text in split("\n\n".join([paragraph] * 3))]
    assert [len(part) for part in parts] == [749 * 2 + 2, 749]


@pytest.mark.parametrize("unit", ["a sentence of words. ", "一句话。", "x"])
def test_a_long_paragraph_is_cut_and_nothing_is_lost(unit: str) -> None:
    text = unit * (5 * LONGEST_PASSAGE // len(unit))
    parts = [part for _, part in split(text)]
    assert all(len(part) <= LONGEST_PASSAGE for part in parts)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


def test_blank_files_have_no_passage() -> None:
    assert split("") == split("\n \n") == []


def test_reads_text_in_order_and_skips_the_rest(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# B\n")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\n\r\nb\r\n")
    (tmp_path / "c.md").write_bytes(b"\xff\xfe")
    (tmp_path / "d.md").write_bytes(b"a\0b")
    (tmp_path / "e.png").write_bytes(b"")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "f.md").write_text("hidden")
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "h.md").write_text("h")
    documents = list(read_documents(tmp_path, tmp_path))
    assert [document and document.path for document in documents] == [
        "a.txt",
        "b.md",
        None,
        None,
        None,
        "g/h.md",
    ]
    assert documents[0] is not None
    assert [passage.content for passage in documents[0].passages] == ["a\n\nb"]


def test_a_file_named_itself_may_have_any_ending(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("text")
    (document,) = read_documents(tmp_path / "notes", tmp_path)
    assert document is not None
    assert [passage.key for passage in document.passages] == ["ingest:notes#1"]


def test_a_file_elsewhere_keeps_its_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    (document,) = read_documents(tmp_path / "a.md", tmp_path / "elsewhere")
    assert document is not None
    assert document.path == str(tmp_path / "a.md")


def test_compares_by_key_content_and_metadata() -> None:
    same, other, new = (Passage("a.md", position, None, "text") for position in (1, 2, 3))
    stored = {
        same.key: {"id": "1", "content": "text", "metadata": same.metadata},
        other.key: {"id": "2", "content": "former", "metadata": other.metadata},
        "ingest:a.md#9": {"id": "9", "content": "gone"},
    }
    changes = compare([same, other, new], stored)
    assert changes.unchanged == 1
    assert list(changes.changed) == [("2", other)]
    assert list(changes.new) == [new]
    assert list(changes.removed) == ["9"]
