"""Texts on their way to a model: checked, and cut into parts that are quick to split into tokens."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ditto_tasks.contracts.errors import RetrievalError

__all__ = ["checked_texts", "parts"]

LONGEST_PART = 10_000  # characters; bounds what a tokenizer and a table look-up hold at once

_PART = re.compile(
    rf"\S(?:.{{0,{LONGEST_PART - 2}}}\S)?(?!\S)"  # up to white space or the end
    rf"|\S.{{0,{LONGEST_PART - 1}}}",  # a run without any white space
    re.DOTALL,
)


def checked_texts(contents: Sequence[Any]) -> list[str]:
    """Return the contents as texts.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT, naming the first that is no string, is blank, or has no
            UTF-8 form.
    """
    for place, content in enumerate(contents):
        if not isinstance(content, str):
            raise _invalid(place, f"must be a string, not {type(content).__name__}")
        if not content.strip():
            raise _invalid(place, "must not be blank")
        if not content.isascii() and any("\ud800" <= character <= "\udfff" for character in content):
            raise _invalid(place, "has half of a surrogate pair")
    return list(contents)


def parts(text: str) -> Iterator[str]:
    """Cut at white space, which is left out there, into parts of at most `LONGEST_PART` characters.

    A longer run without white space is cut within. White space around the text does not count, and any
    within is one blank: tokenizers give line breaks tokens of their own, or join words over form feeds.
    """
    return (found.group() for found in _PART.finditer(" ".join(text.split())))


def _invalid(place: int, what: str) -> RetrievalError:
    return RetrievalError("RETRIEVAL_INVALID_INPUT", f"contents.{place}: {what}")
