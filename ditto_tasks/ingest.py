"""Text and Markdown files as records: split into passages with stable keys, compared with what is stored.

Nothing here calls a node or keeps state; `ditto-tasks ingest` does.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "LONGEST_PASSAGE",
    "Changes",
    "Document",
    "Passage",
    "compare",
    "key_of",
    "read_documents",
    "split",
]

LONGEST_PASSAGE = (
    1600  # characters; a few paragraphs: enough to be understood alone, little enough to be precise
)
_MARKDOWN = frozenset({".md", ".markdown"})
_TEXT = frozenset({".txt", ".text", ".rst"})
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.+?)[ \t#]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_BREAKS = ("\n", ". ", "。", " ")  # where an overlong paragraph is cut, the best first


@dataclass(frozen=True, slots=True)
class Passage:
    """A part of a document that becomes one record.

    Attributes:
        path: of the document; see `read_documents`.
        position: its place in the document, from 1.
        heading: the headings that it stands under, outermost first; None: none.
        content: its text, with its heading where it is the first under it.
    """

    path: str
    position: int
    heading: str | None
    content: str

    @property
    def key(self) -> str:
        """The record's key: the same as long as path and position are."""
        return key_of(self.path, self.position)

    @property
    def metadata(self) -> dict[str, Any]:
        """The record's metadata."""
        heading = {} if self.heading is None else {"heading": self.heading}
        return {"kind": "document", "path": self.path, "position": self.position, **heading}


@dataclass(frozen=True, slots=True)
class Document:
    """One file, split."""

    path: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be done so that the store holds what the files say.

    Attributes:
        new: passages without a record.
        changed: ids of records with the passages that they shall hold.
        unchanged: how many records are as they should be.
        removed: ids of records whose position the document no longer has.
    """

    new: Sequence[Passage]
    changed: Sequence[tuple[str, Passage]]
    unchanged: int
    removed: Sequence[str]


def key_of(path: str, position: int) -> str:
    """Make the key of the record at a position of a document."""
    return f"ingest:{path}#{position}"


def read_documents(root: Path, base: Path) -> Iterator[Document | None]:
    """Read a file, or all files below a folder in the order of their names; None for each one skipped.

    Skipped are files that are no text or have another ending than a text's; a file that is named itself may
    have any. Hidden files and folders are passed over, and links to folders not followed.

    Args:
        root: the file or folder.
        base: paths are relative to this folder where they are below it, else absolute.

    Raises:
        OSError: `root` cannot be read.
    """
    if root.is_file():
        yield _read(root, base)
        return
    for folder, folders, files in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(folder, name)
            if name.startswith("."):
                continue
            yield _read(file, base) if file.suffix.lower() in _MARKDOWN | _TEXT else None


def split(text: str, *, is_markdown: bool = True) -> list[tuple[str | None, str]]:
    """Split a text at its headings, then between paragraphs, into passages of at most `LONGEST_PASSAGE`.

    Headings are lines that begin with `#`; fenced code is kept together where it fits.

    Returns:
        Headings (`Guide > First steps`, None: none) and text of each passage, in order.
    """
    sections = _sections(text) if is_markdown else [(None, text.splitlines())]
    return [(heading, passage) for heading, lines in sections for passage in _pack(_paragraphs(lines))]


def compare(passages: Iterable[Passage], stored: Mapping[str, Mapping[str, Any]]) -> Changes:
    """Compare passages with the records found under their keys and under those that follow.

    Args:
        stored: key to record in wire form.
    """
    new, changed, unchanged = [], [], 0
    left = dict(stored)
    for passage in passages:
        record = left.pop(passage.key, None)
        if record is None:
            new.append(passage)
        elif record["content"] != passage.content or record.get("metadata") != passage.metadata:
            changed.append((record["id"], passage))
        else:
            unchanged += 1
    return Changes(new, changed, unchanged, [record["id"] for record in left.values()])


def _read(file: Path, base: Path) -> Document | None:
    try:
        text = file.read_bytes().decode("utf-8-sig")
        path = _name(file, base)
        path.encode()
    except (OSError, UnicodeError):
        return None
    if "\0" in text:
        return None
    parts = split(text, is_markdown=file.suffix.lower() in _MARKDOWN)
    return Document(
        path,
        tuple(Passage(path, position, heading, part) for position, (heading, part) in enumerate(parts, 1)),
    )


def _name(file: Path, base: Path) -> str:
    file, base = file.resolve(), base.resolve()
    return (file.relative_to(base) if file.is_relative_to(base) else file).as_posix()


def _raise(error: OSError) -> None:
    raise error


def _sections(text: str) -> Iterator[tuple[str | None, list[str]]]:
    """Give the lines under each heading, the heading's own line first."""
    outline: list[tuple[int, str]] = []
    lines: list[str] = []
    for line, is_code in _lines(text):
        match = None if is_code else _HEADING.match(line)
        if match:
            yield _title(outline), lines
            level = len(match[1])
            outline = [*(entry for entry in outline if entry[0] < level), (level, match[2])]
            lines = []
        lines.append(line)
    yield _title(outline), lines


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Give each line, and whether it is inside fenced code."""
    fence: str | None = None
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if fence is None and mark:
            fence = mark[1]
            yield line, True
        elif fence is not None:
            yield line, True
            if mark and mark[1].startswith(fence) and not line.strip(" `~"):
                fence = None
        else:
            yield line, False


def _title(outline: Sequence[tuple[int, str]]) -> str | None:
    return " > ".join(title for _, title in outline) or None


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    """Give what stands between blank lines, fenced code with its own blank lines; cut what is too long."""
    paragraph: list[str] = []
    for line, is_code in _lines("\n".join(lines)):
        if line.strip() or is_code:
            paragraph.append(line.rstrip())
        else:
            yield from _cut("\n".join(paragraph))
            paragraph = []
    yield from _cut("\n".join(paragraph))


def _cut(text: str) -> Iterator[str]:
    while len(text) > LONGEST_PASSAGE:
        ends = (text.rfind(mark, 1, LONGEST_PASSAGE - 1) + len(mark) for mark in _BREAKS if mark in text)
        end = next((end for end in ends if end > LONGEST_PASSAGE // 2), LONGEST_PASSAGE)
        yield text[:end].rstrip()
        text = text[end:].lstrip()
    yield text


def _pack(paragraphs: Iterable[str]) -> list[str]:
    """Join neighbours as long as they fit into one passage."""
    packed: list[str] = []
    for paragraph in paragraphs:
        if not paragraph.strip():
            continue
        if packed and len(packed[-1]) + len(paragraph) + 2 <= LONGEST_PASSAGE:
            packed[-1] += "\n\n" + paragraph
        else:
            packed.append(paragraph)
    return packed
