"""An embedding that needs no model: texts with words in common are near each other."""

import re
import zlib
from collections.abc import Sequence
from typing import Any

from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall


class WordEmbedding:
    """Counts the words of a text, each at the place that its checksum names.

    Attributes:
        asked: what it was asked to embed, in order, with the purpose.
    """

    identity = "words/v1"

    def __init__(self, dimensions: int = 64) -> None:
        self.dimensions = dimensions
        self.asked: list[tuple[str, Purpose]] = []

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> list[list[float]]:
        self.asked += [(content, purpose) for content in contents]
        return [self._vector(content) for content in contents]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for word in re.findall(r"\w+", text.lower()):
            vector[zlib.crc32(word.encode()) % self.dimensions] += 1.0
        return vector
