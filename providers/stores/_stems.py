"""Words in the form in which a full-text index of another program keeps and finds all of them.

Such an index has opinions: a least and a largest length, a list of words that it leaves out, letters that it
does not know. So each word is written as lower-case ASCII of 3 to 80 characters that is no word of English.
"""

import hashlib
import threading
from collections.abc import Iterable
from functools import lru_cache

from ditto_tasks.contracts.errors import InvalidDefinition

try:
    import snowballstemmer
except ModuleNotFoundError as error:
    raise InvalidDefinition("mysql:// needs a stemmer: pip install 'ditto-tasks[mysql]'") from error

__all__ = ["encoded"]

LONGEST = 80  # characters; InnoDB leaves out words of more than 84
LONGEST_STEMMED = 64  # characters; SQLite's tokenizer has the same
STEMS = 65_536  # remembered: finding one anew takes some hundred times as long

_local = threading.local()  # a stemmer keeps state while it works


def encoded(words: Iterable[str]) -> list[str]:
    """Write words (of `_text.words`), English ones by their stem."""
    return [_short(word) if len(word) <= LONGEST_STEMMED else _digest(word) for word in words]


@lru_cache(STEMS)
def _short(word: str) -> str:
    if word.isascii():
        return f"qa{_stem(word)}"
    written = f"qx{word.encode().hex()}"
    return written if len(written) <= LONGEST else _digest(word)


def _digest(word: str) -> str:
    return f"qh{hashlib.sha256(word.encode()).hexdigest()}"


def _stem(word: str) -> str:
    """Return Porter's stem, as SQLite's tokenizer does.

    Source: Porter, 1980, doi:10.1108/eb046814.
    """
    if len(word) < 3:
        return word
    if not hasattr(_local, "stemmer"):
        _local.stemmer = snowballstemmer.stemmer("porter")
    stem: str = _local.stemmer.stemWord(word)
    return stem
