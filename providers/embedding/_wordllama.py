"""WordLlama's table of token vectors; imported only when the model is loaded.

The package itself is not imported: it configures logging, and brings code that downloads.
"""

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


class WordLlama:
    """The table and its tokenizer; both are only read, so they may be used from many threads."""

    def __init__(self, weights: WheelFile, tokenizer: WheelFile) -> None:
        self._table = load_file(weights.verified())[TENSOR].astype(np.float32)
        self._tokenizer = Tokenizer.from_file(str(tokenizer.verified()))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def embed(self, texts: Sequence[str], call: Call) -> NDArray[np.float32]:
        """Return shape (n, d), rows of length 1; the call is checked before each part of a text.

        White space is made one blank: the tokenizer gives line breaks and double blanks tokens of their own.
        """
        totals = np.zeros((len(texts), self._table.shape[1]))
        for total, text in zip(totals, texts, strict=True):
            for part in parts(" ".join(text.split())):
                call.check()
                tokens = self._tokenizer.encode(part, add_special_tokens=False).ids
                total += self._table[tokens].sum(axis=0, dtype=np.float64)
        lengths = np.linalg.norm(totals, axis=1, keepdims=True)
        return np.asarray(totals / lengths, np.float32)
