"""all-MiniLM-L6-v2 over onnxruntime; imported only when the model is loaded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ditto_tasks.contracts.call import Call
from providers.embedding._texts import parts
from providers.embedding._wheels import WheelFile

__all__ = ["MiniLm"]

BATCH_TOKENS = 1024  # four full windows; larger batches are slower on one thread
CLS, SEP = 101, 102  # BERT's tokens for the beginning and the end of a text

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class _Window:
    text: int  # index of the text that it belongs to
    tokens: IntArray  # shape (length,), without the marks of beginning and end


class MiniLm:
    """The model, on one thread of its own a call; so it may be used from many threads, and after a fork."""

    def __init__(self, model: WheelFile, vocabulary: WheelFile, *, dimensions: int, window: int) -> None:
        self._dimensions = dimensions
        self._window = window
        self._tokenizer = Tokenizer.from_file(str(vocabulary.verified()))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # no pool of threads, none to lose
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(
            str(model.verified()), options, providers=["CPUExecutionProvider"]
        )

    def embed(self, texts: Sequence[str], call: Call) -> NDArray[np.float32]:
        """Return shape (n, d), rows of length 1; the call is checked before each batch."""
        totals = np.zeros((len(texts), self._dimensions))
        windows = [window for place, text in enumerate(texts) for window in self._windows(place, text, call)]
        for batch in _batches(windows):
            call.check()
            means = self._run(np.stack([window.tokens for window in batch]))
            for window, mean in zip(batch, means, strict=True):
                totals[window.text] += mean * max(1, window.tokens.size)
        return _units(totals).astype(np.float32)

    def _windows(self, place: int, text: str, call: Call) -> Iterator[_Window]:
        found = []
        for part in parts(text):
            call.check()
            # One by one: the tokenizer's batches use threads that do not survive a fork.
            found.append(np.array(self._tokenizer.encode(part, add_special_tokens=False).ids, np.int64))
        tokens = np.concatenate(found)
        for start in range(0, max(1, tokens.size), self._window):
            yield _Window(place, tokens[start : start + self._window])

    def _run(self, tokens: IntArray) -> FloatArray:
        """Return the mean of each row's token vectors, scaled to length 1."""
        ids = np.pad(tokens, ((0, 0), (1, 1)), constant_values=((0, 0), (CLS, SEP)))
        inputs = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        (hidden,) = self._session.run(None, inputs)
        return _units(hidden.mean(axis=1, dtype=np.float64))


def _batches(windows: Sequence[_Window]) -> Iterator[list[_Window]]:
    """Put windows of the same length together: none is padded, so none depends on what is beside it."""
    by_length = sorted(windows, key=lambda window: window.tokens.size)
    for size, group in groupby(by_length, key=lambda window: window.tokens.size):
        alike = list(group)
        step = max(1, BATCH_TOKENS // (size + 2))
        for start in range(0, len(alike), step):
            yield alike[start : start + step]


def _units(rows: FloatArray) -> FloatArray:
    units: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return units
