"""Two collections with judgements, read from where they lie beside the checkout; nothing of them is kept."""

import html
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Corpus", "Query", "Text", "cranfield", "locomo"]

DATA = Path(__file__).parents[2] / "shared" / "data"


@dataclass(frozen=True, slots=True)
class Text:
    """One text to be found; `part` is the part of the corpus that a query about it searches."""

    key: str
    part: str
    content: str


@dataclass(frozen=True, slots=True)
class Query:
    """One query with the keys of the texts that answer it."""

    text: str
    part: str
    relevant: frozenset[str]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts and queries; queries with an even index are for choosing, the others for reporting."""

    name: str
    texts: tuple[Text, ...]
    queries: tuple[Query, ...]


def cranfield(folder: Path = DATA / "cranfield") -> Corpus:
    """Read 1,400 abstracts, each with its title before it, and 225 queries.

    Query n of the judgements is the n-th of the file.
    """
    texts = tuple(
        Text(
            _field(document, "docno"), "cranfield", f"{_field(document, 'title')} {_field(document, 'text')}"
        )
        for document in _elements(folder / "cran.all.1400.xml", "doc")
    )
    relevant: dict[int, set[str]] = {}
    for line in (folder / "cranqrel.trec.txt").read_text().splitlines():
        number, _, key, grade = line.split()
        if int(grade) > 0:
            relevant.setdefault(int(number), set()).add(key)
    queries = tuple(
        Query(" ".join(_field(query, "title").split()), "cranfield", frozenset(relevant.get(number, ())))
        for number, query in enumerate(_elements(folder / "cran.qry.xml", "top"), 1)
    )
    return Corpus("Cranfield", texts, queries)


def locomo(file: Path = DATA / "locomo" / "locomo10.zip") -> Corpus:
    """Read ten conversations: each turn is a text, each question of categories 1 to 4 a query."""
    texts: list[Text] = []
    queries: list[Query] = []
    with zipfile.ZipFile(file) as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".json")):
            talk = json.loads(archive.read(name))
            turns = [Text(f"{name}#{id}", name, content) for id, content in _turns(talk)]
            texts += turns
            queries += _questions(talk, name, {turn.key for turn in turns})
    return Corpus("LoCoMo", tuple(texts), tuple(queries))


def _elements(file: Path, tag: str) -> list[str]:
    return re.findall(rf"<{tag}>(.*?)</{tag}>", file.read_text(errors="replace"), re.DOTALL)


def _field(element: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", element, re.DOTALL)
    return html.unescape(found.group(1)).strip() if found else ""


def _turns(talk: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give each turn's id and text: DATE SPEAKER: TEXT CAPTION."""
    conversation = talk.get("conversation", talk)
    sessions = [key for key in conversation if re.fullmatch(r"session_\d+", key)]
    for session in sorted(sessions, key=lambda key: int(key.split("_")[1])):
        date = conversation[f"{session}_date_time"]
        for turn in conversation[session]:
            caption = turn.get("blip_caption") or ""
            yield turn["dia_id"], f"{date} {turn['speaker']}: {turn['text']} {caption}".strip()


def _questions(talk: Mapping[str, Any], part: str, keys: set[str]) -> Iterator[Query]:
    for question in talk["qa"]:
        if question["category"] not in (1, 2, 3, 4):
            continue
        relevant = frozenset(f"{part}#{id}" for id in question.get("evidence") or ()) & keys
        if relevant:
            yield Query(str(question["question"]), part, relevant)
