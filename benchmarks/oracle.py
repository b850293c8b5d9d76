"""Our measures and our fusion held against those of ranx, which runs in a virtual environment of its own."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environments import ROOT, environment_of
from benchmarks.report import Row

__all__ = ["Fused", "agreement", "ranx_python"]

RANX = "ranx==0.3.21"  # heavy: it brings numba, which compiles what it needs first
FIRST = 10  # places that are compared
DIFFERENCE = 1e-9  # of a figure, for it was added up in another order
WAIT = 900.0  # seconds, most of them for that compiling

Found = Sequence[Sequence[str]]
"""Keys, best first, a list for each query."""

Fused = Mapping[str, float]
"""Scores of the first places of a fusion, by key."""


def ranx_python() -> Path:
    """Return the Python that has ranx, installed if need be.

    Raises:
        Failed: it cannot be installed.
    """
    python = environment_of("ranx", [RANX], may_install=True)
    assert python is not None
    return python


def agreement(
    python: Path,
    name: str,
    relevant: Sequence[frozenset[str]],
    found: Mapping[str, Found],
    measures: Mapping[str, Callable[[Sequence[str], frozenset[str]], float]],
    branches: Sequence[Found],
    fused: Sequence[Fused],
) -> Iterator[Row]:
    """Tell the most that ranx differs from us by, in any query.

    Args:
        name: of the collection, for the rows.
        relevant: what answers each query.
        found: rankings, by strategy.
        measures: ours, by ranx's names.
        branches: two rankings of the first queries, of which `fused` is what we made of them.
    """
    answer = _asked(
        python,
        {
            "judgements": {str(number): sorted(keys) for number, keys in enumerate(relevant)},
            "found": {strategy: _numbered(rankings) for strategy, rankings in found.items()},
            "branches": [_numbered(rankings) for rankings in branches],
        },
    )
    for metric, measure in measures.items():
        differences = [
            abs(measure(keys, wanted) - answer["measured"][strategy][metric][str(number)])
            for strategy, rankings in found.items()
            for number, (keys, wanted) in enumerate(zip(rankings, relevant, strict=True))
        ]
        yield _row(f"{name} {metric} beside ranx", differences)
    differences = [
        difference
        for number, ours in enumerate(fused)
        for difference in _fused_differences(ours, answer["fused"][str(number)])
    ]
    yield _row(f"{name} RRF beside ranx", differences)


def _fused_differences(ours: Fused, theirs: Fused) -> Iterator[float]:
    """Compare scores key by key, and place by place: which of equal ones comes first is each one's own."""
    yield from (abs(score - theirs[key]) for key, score in ours.items())
    places = sorted(theirs.values(), reverse=True)[:FIRST]
    yield from (abs(score - place) for score, place in zip(ours.values(), places, strict=True))


def _row(name: str, differences: Sequence[float]) -> Row:
    return Row(
        f"{name}: largest difference of {len(differences):,}",
        max(differences),
        None,
        DIFFERENCE,
        "",
        measure="value",
    )


def _numbered(rankings: Found) -> dict[str, list[str]]:
    return {str(number): list(keys) for number, keys in enumerate(rankings)}


def _asked(python: Path, question: Mapping[str, Any]) -> Any:
    answer = subprocess.run(
        [str(python), "-W", "ignore", "-m", "benchmarks.ranx_oracle"],
        input=json.dumps(question).encode(),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        timeout=WAIT,
        check=True,
    )
    return json.loads(answer.stdout)
