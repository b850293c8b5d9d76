"""What a search reads of a record, and how text becomes words; for whatever searches or embeds records.

A word is a run of letters and digits, folded; each Chinese, Japanese or Korean character is a word by itself,
so that any part of such text is found as a phrase.
"""

import re
import unicodedata
from typing import Any

__all__ = ["contains_literally", "index_text", "literal", "phrases", "search_text", "words"]

_CJK = (
    "\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff"  # Hangul
    "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\u3041-\u31ff\U0001aff0-\U0001b16f"  # kana, bopomofo
    "\U00020000-\U0003ffff"  # Han beyond the basic plane
)
_UNKNOWN_TO_FTS5 = "\u19b0-\u19c0\u19c8-\u19c9\u1cf2-\u1cf3"  # no letters yet in its Unicode
_WORD = re.compile(rf"(?=\w)[{_CJK}]|[^\W_{_CJK}{_UNKNOWN_TO_FTS5}]+")
_RUN = re.compile(rf"[{_CJK}]+|[^{_CJK}]+")
_ACCENTS = re.compile("[\u0300-\u036f]+")


def search_text(content: Any) -> str:
    """Collect the strings and numbers among the values of `content`, one a line; never keys of objects."""
    if isinstance(content, str):
        return content
    found: list[str] = []
    _collect(content, found)
    return "\n".join(found)


def index_text(text: str) -> str:
    """Prepare text for an index that splits at all but letters and digits, as FTS5's unicode61 does.

    ASCII is left as it is; the index makes the same words of it.
    """
    return text if text.isascii() else " ".join(words(text))


def words(text: str) -> list[str]:
    """Split text into folded words: lower case, no accents, full-width letters as plain ones."""
    return _WORD.findall(_folded(text))


def phrases(query: str) -> list[tuple[str, ...]]:
    """Turn what a person typed into phrases, each to be found as it is; empty when there is no word in it.

    White space separates; so does a change between Chinese and other script. `TCK-358` is the phrase
    (tck, 358). No character has a meaning of its own.
    """
    chunks = _folded(query).split()
    runs = chunks if query.isascii() else (run for chunk in chunks for run in _RUN.findall(chunk))
    found = (tuple(_WORD.findall(run)) for run in runs)
    return [phrase for phrase in dict.fromkeys(found) if phrase]


def literal(query: str) -> str:
    """Prepare a query without words for `contains_literally`; empty when it is blank."""
    return query.strip().casefold()


def contains_literally(content: Any, needle: str) -> bool:
    """Tell whether the search text holds `needle`, which has been through `literal`."""
    return needle in search_text(content).casefold()


def _collect(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict):
        for inner in value.values():
            _collect(inner, found)
    elif isinstance(value, list | tuple):
        for inner in value:
            _collect(inner, found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found.append(str(value))


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    return unicodedata.normalize("NFC", bare.casefold())
