"""WordLlama's table of token vectors; imported only when the model is loaded.

The package itself is not imported: it configures logging, and brings code that downloads.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from ditto_tasks.contracts.call import Call
from providers.embedding._texts import parts
from providers.embedding._wheels import WheelFile

__all__ = ["WordLlama"]

TENSOR = "embedding.weight"
_BLANK = "\u2581"  # how the tokenizer writes one


class WordLlama:
    """The table and its tokenizer; both are only read, so they may be used from many threads."""

    def __init__(self, weights: WheelFile, tokenizer: WheelFile) -> None:
        self._table = load_file(weights.verified())[TENSOR].astype(np.float32)
        self._tokenizer = Tokenizer.from_file(str(tokenizer.verified()))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        pieces = [self._tokenizer.id_to_token(token) or "" for token in range(len(self._table))]
        self._says_something = np.array([not _is_punctuation(piece) for piece in pieces])

    def embed(self, texts: Sequence[str], call: Call) -> NDArray[np.float32]:
        """Return shape (n, d), rows of length 1; the call is checked before each part of a text.

        The table has other vectors for a word with a capital, and some for marks and for white space: all is
        made lower case, and of marks and white space nothing counts, unless a text has nothing else.
        """
        totals = np.zeros((len(texts), self._table.shape[1]))
        for row, text in enumerate(texts):
            lower = text.lower()
            total, count = self._sum(lower, call, only_words=True)
            totals[row] = total if count else self._sum(lower, call, only_words=False)[0]
        lengths = np.linalg.norm(totals, axis=1, keepdims=True)
        return np.asarray(totals / lengths, np.float32)

    def _sum(self, text: str, call: Call, *, only_words: bool) -> tuple[NDArray[np.float64], int]:
        """Add the vectors of a text's tokens up; returns how many they were, too."""
        total, count = np.zeros(self._table.shape[1]), 0
        for part in parts(text):
            call.check()
            tokens = np.array(self._tokenizer.encode(part, add_special_tokens=False).ids)
            if only_words:
                tokens = tokens[self._says_something[tokens]]
            total += self._table[tokens].sum(axis=0, dtype=np.float64)
            count += len(tokens)
        return total, count


def _is_punctuation(piece: str) -> bool:
    return all(character == _BLANK or unicodedata.category(character)[0] == "P" for character in piece)
