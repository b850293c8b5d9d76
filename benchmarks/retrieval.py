"""RETRIEVAL.SEARCH: how well it finds, what the node costs, and how it stands beside the engine alone.

`python -m benchmarks.retrieval [--quick [--ranx]] [--json FILE]`; the full run embeds two collections with
both local models and takes some minutes, `--quick` takes the small model only.

Quality is measured through the product: records written to a SQLite store, embedded into its index, found by
calls of RETRIEVAL.SEARCH. The references of the single branches are plain FTS5 (porter) and exact cosine
search by the same model; those of hybrid are the goals that it was built to. Queries with an odd index are
the half that nothing was chosen on. That nDCG, recall and fusion are reckoned rightly is checked against
ranx, which is installed into a virtual environment under `.ditto-benchmarks/`; it compiles for minutes, so
that `--quick` leaves it out unless told otherwise.
"""

import argparse
import math
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpora import Corpus, Query, cranfield, locomo
from benchmarks.environments import Failed
from benchmarks.oracle import agreement, ranx_python
from benchmarks.report import Row, finish, medians
from ditto_tasks import Runtime
from ditto_tasks.contracts.memory import MemoryWriteInput
from ditto_tasks.contracts.retrieval import (
    IdentifiedEmbedding,
    RetrievalCall,
    RetrievalCandidate,
    RetrievalQuery,
    RetrievalSearchInput,
    RetrievalSearchOutput,
)
from ditto_tasks.nodes.retrieval import Retrieval
from providers.embedding import open_embedding
from providers.retrieval.fusion import Branch, reciprocal_ranks
from providers.retrieval.hybrid import HybridSearch
from providers.retrieval.records import RecordTarget
from providers.retrieval.registry import Target, TargetRegistry
from providers.retrieval.rerank import CosineReranker
from providers.stores import open_store
from workers.retrieval import retrieval_worker

WRITTEN = 500  # records a WRITE
PAGE = 64  # records brought up at once
RRF_POOL = 200  # candidates a branch, as the references had
FUSED = 200  # queries whose fusion is held against ranx's

# Measured with plain SQLite FTS5 and exact cosine search: nDCG@10 of Cranfield, evidence recall@10 of LoCoMo.
REFERENCES = {
    ("Cranfield", "keyword", ""): 0.3789,
    ("LoCoMo", "keyword", ""): 0.5750,
    ("Cranfield", "vector", "minilm"): 0.3996,
    ("LoCoMo", "vector", "minilm"): 0.4660,
    ("Cranfield", "vector", "wordllama"): 0.3353,
    ("LoCoMo", "vector", "wordllama"): 0.463,
    ("Cranfield", "rrf", "minilm"): 0.4340,
    ("LoCoMo", "rrf", "minilm"): 0.6085,
    ("Cranfield", "rrf", "wordllama"): 0.3957,
    ("LoCoMo", "rrf", "wordllama"): 0.587,
    ("Cranfield", "hybrid", "minilm"): 0.445,
    ("LoCoMo", "hybrid", "minilm"): 0.66,
    ("Cranfield", "hybrid", "wordllama"): 0.3957,
    ("LoCoMo", "hybrid", "wordllama"): 0.587,
}

OVERHEAD = {10: 0.3, 1_000: 10.0}  # ms of the node over its provider
FUSION = 40.0  # ms for two branches of 10,000
COSINE = 5.0  # ms for 1,000 vectors of 256 numbers


class Indexed:
    """A corpus, each part of it a target: a store with its index, searched through the node."""

    def __init__(self, corpus: Corpus, embedding: IdentifiedEmbedding, folder: Path) -> None:
        self.corpus = corpus
        self.first_store = folder / "store-0.sqlite"
        parts = list(dict.fromkeys(text.part for text in corpus.texts))
        self.targets = {
            part: RecordTarget.open(
                "texts",
                open_store(f"sqlite:///{folder / f'store-{number}.sqlite'}"),
                f"sqlite:///{folder / f'index-{number}.sqlite'}",
                embedding,
            )
            for number, part in enumerate(parts)
        }
        registry = {part: _with_rrf(opened.target) for part, opened in self.targets.items()}
        self.runtime = Runtime(workers=[retrieval_worker(registry)])
        ids = {part: self._write(part) for part in parts}
        began = time.perf_counter()
        for part, of_part in ids.items():
            for start in range(0, len(of_part), PAGE):
                self.targets[part].bring_up(tuple(of_part[start : start + PAGE]), RetrievalCall())
        self.found: dict[str, list[list[str]]] = {}  # of all queries, by strategy
        self.documents_per_second = len(corpus.texts) / (time.perf_counter() - began)

    def close(self) -> None:
        self.runtime.close()
        for target in self.targets.values():
            target.close()

    def _write(self, part: str) -> list[str]:
        drafts = [
            {"key": text.key, "content": text.content} for text in self.corpus.texts if text.part == part
        ]
        ids: list[str] = []
        for start in range(0, len(drafts), WRITTEN):
            request = MemoryWriteInput.from_wire({"memories": drafts[start : start + WRITTEN]})
            ids += [record.id for record in self.targets[part].store.write(request)]
        return ids

    def search(self, query: Query, strategy: str, limit: int = 10) -> list[str]:
        """Return the keys that were found, best first."""
        return list(self.scored(query, strategy, limit))

    def scored(self, query: Query, strategy: str, limit: int = 10) -> dict[str, float]:
        """Return the scores of what was found, best first, by key."""
        output = self.runtime.invoke(
            "RETRIEVAL.SEARCH",
            {
                "query": {"content": query.text},
                "target": {"name": query.part},
                "strategy": strategy,
                "limit": limit,
            },
        ).unwrap()
        return {candidate["content"]["key"]: candidate["score"] for candidate in output["candidates"]}


def _with_rrf(target: Target) -> Target:
    """Add plain reciprocal rank fusion of the two branches, as the references have it."""
    branches = [
        {"provider": target.providers[strategy], "strategy": strategy} for strategy in ("keyword", "vector")
    ]
    rrf = HybridSearch(branches, candidate_limit=RRF_POOL)
    return Target(target.default_strategy, {**target.providers, "rrf": rrf})


def ndcg(found: Sequence[str], relevant: frozenset[str], limit: int = 10) -> float:
    """Normalised discounted cumulative gain with binary gain."""
    gain = sum(1 / math.log2(rank + 1) for rank, key in enumerate(found[:limit], 1) if key in relevant)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(limit, len(relevant)) + 1))
    return gain / best if best else 0.0


def recall(found: Sequence[str], relevant: frozenset[str], limit: int = 10) -> float:
    """Share of the relevant that is among the first."""
    return len(relevant & set(found[:limit])) / len(relevant)


MEASURES: dict[str, tuple[str, Callable[[Sequence[str], frozenset[str]], float]]] = {
    "Cranfield": ("nDCG@10", ndcg),
    "LoCoMo": ("recall@10", recall),
}


def quality(indexed: Indexed, model: str) -> Iterator[Row]:
    """Search all queries by each strategy, and report hybrid for the half not chosen on, too."""
    corpus = indexed.corpus
    label, measure = MEASURES[corpus.name]
    yield Row(f"{corpus.name}, indexing by {model}", indexed.documents_per_second, None, None, "texts/s")
    best = 0.0
    for strategy in ("keyword", "vector", "rrf", "hybrid"):
        values, seconds = [], []
        indexed.found[strategy] = []
        for query in corpus.queries:
            began = time.perf_counter()
            found = indexed.search(query, strategy)
            seconds.append(time.perf_counter() - began)
            values.append(measure(found, query.relevant))
            indexed.found[strategy].append(found)
        mean = statistics.fmean(values)
        by = "" if strategy == "keyword" else f", {model}"
        goal = REFERENCES[corpus.name, strategy, "" if strategy == "keyword" else model]
        yield Row(f"{corpus.name} {label}, {strategy}{by}", mean, goal, 1.0, "", better="higher")
        if strategy == "hybrid":
            yield Row(
                f"  the half not chosen on{by}", statistics.fmean(values[1::2]), goal, 1.0, "", "higher"
            )
            yield Row(f"  against its best branch{by}", mean, best, 1.0, "", better="higher")
        if strategy in ("keyword", "vector"):
            best = max(best, mean)
        p99 = sorted(seconds)[int(len(seconds) * 0.99)] * 1e3
        yield Row(f"  a call, p50 (reference: p99){by}", statistics.median(seconds) * 1e3, p99, None, "ms")


def beside_engine(indexed: Indexed, rounds: int) -> Iterator[Row]:
    """Keyword search through the node beside the statement alone, over the same file."""
    part = indexed.corpus.texts[0].part
    queries = [query for query in indexed.corpus.queries if query.part == part and query.text.isascii()][
        :rounds
    ]
    connection = sqlite3.connect(indexed.first_store)

    def plain(number: int) -> list[Any]:
        words = " OR ".join(f'"{word}"' for word in queries[number].text.replace('"', " ").split())
        statement = (
            "SELECT id, memory_key, content, metadata, -rank FROM memory_words JOIN memories ON "
            "memories.number = memory_words.rowid WHERE memory_words MATCH ? ORDER BY rank LIMIT 10"
        )
        return connection.execute(statement, (words,)).fetchall()

    ours, reference = medians(len(queries), lambda number: indexed.search(queries[number], "keyword"), plain)
    connection.close()
    name = f"{indexed.corpus.name} keyword beside its statement"
    yield Row(name, ours * 1e3, reference * 1e3, None, "ms")


def beside_ranx(indexed: Indexed, python: Path) -> Iterator[Row]:
    """Hold what we measured, and the fusion of the first queries, against ranx."""
    queries = indexed.corpus.queries[:FUSED]
    branches = [
        [indexed.search(query, strategy, RRF_POOL) for query in queries] for strategy in ("keyword", "vector")
    ]
    fused = [indexed.scored(query, "rrf") for query in queries]
    relevant = [query.relevant for query in indexed.corpus.queries]
    measures = {"ndcg@10": ndcg, "recall@10": recall}
    yield from agreement(python, indexed.corpus.name, relevant, indexed.found, measures, branches, fused)


def costs(rounds: int) -> Iterator[Row]:
    """What the node, the fusion and the cosine reranker take by themselves."""
    for count, goal in OVERHEAD.items():
        name = f"the node over its provider, {count:,} candidates"
        yield Row(name, _overhead(count, rounds) * 1e3, None, goal, "ms", measure="value")
    branches = [
        Branch([(f"id-{(number * step) % 10_007}", 1.0) for number in range(10_000)]) for step in (1, 7)
    ]
    [seconds] = medians(max(5, rounds // 10), lambda _: reciprocal_ranks(branches, limit=10))
    yield Row("fusion of two branches of 10,000", seconds * 1e3, None, FUSION, "ms", measure="value")
    vectors = np.random.default_rng(7).normal(size=(1_001, 256)).astype(np.float32)
    reranker = CosineReranker(_Known(vectors))
    candidates = [RetrievalCandidate(id=str(number), content=number) for number in range(1_000)]
    query = RetrievalQuery(content=1_000)
    [seconds] = medians(max(5, rounds // 10), lambda _: reranker.rank(query, candidates, 10))
    yield Row("cosine rerank of 1,000 vectors of 256", seconds * 1e3, None, COSINE, "ms", measure="value")


def _overhead(count: int, rounds: int) -> float:
    """Return the seconds that a call takes beyond its provider's."""
    provider = _Fixed(count)
    node = Retrieval(TargetRegistry({"kb": {"defaultStrategy": "s", "providers": {"s": provider}}}))
    input = {"query": {"content": "q"}, "target": {"name": "kb"}, "limit": count}
    request = RetrievalSearchInput.from_wire(input)
    ours, alone = medians(rounds, lambda _: node.search(input), lambda _: provider.search(request))
    return ours - alone


class _Fixed:
    """Gives the same candidates again and again."""

    def __init__(self, count: int) -> None:
        self._output = RetrievalSearchOutput.from_wire(
            {
                "candidates": [
                    {
                        "id": f"record-{number}",
                        "content": {"text": "a text of some words that was found", "number": number},
                        "score": 1 / (number + 1),
                        "source": {"target": "kb", "ref": f"record-{number}"},
                    }
                    for number in range(count)
                ],
                "target": {"name": "kb"},
            }
        )

    def search(self, request: RetrievalSearchInput, call: Any = None) -> RetrievalSearchOutput:
        return self._output


class _Known:
    """An embedding whose vectors are made already: a content is the number of its vector."""

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors

    def embed(self, contents: Sequence[Any], purpose: str, call: Any = None) -> Any:
        return self._vectors[list(contents)]


def _ranx_python() -> Path:
    try:
        return ranx_python()
    except Failed as error:
        raise SystemExit(str(error)) from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small model only")
    parser.add_argument("--ranx", action="store_true", help="with --quick: check against ranx all the same")
    parser.add_argument("--json", metavar="FILE", help="write the rows there, too")
    options = parser.parse_args()
    python = _ranx_python() if options.ranx or not options.quick else None
    rows = list(costs(100 if options.quick else 300))
    for model in ("wordllama",) if options.quick else ("wordllama", "minilm"):
        embedding = open_embedding(model)
        for corpus in (cranfield(), locomo()):
            with tempfile.TemporaryDirectory() as folder:
                indexed = Indexed(corpus, embedding, Path(folder))
                rows += quality(indexed, model)
                if model == "wordllama":
                    rows += beside_engine(indexed, 200)
                    if python is not None:
                        rows += beside_ranx(indexed, python)
                indexed.close()
    return finish(rows, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
