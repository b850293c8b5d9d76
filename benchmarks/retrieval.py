"""What RETRIEVAL.SEARCH costs beside its provider: process time of the node, no queue.

    python -m benchmarks.retrieval

The provider returns the same candidates each time, as dicts in wire form or as contracts.
"""

import statistics
import time
from typing import Any

from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    RetrievalCall,
    RetrievalSearchInput,
    RetrievalSearchOutput,
)
from ditto_tasks.nodes.retrieval import Retrieval
from providers.retrieval.registry import Target, TargetRegistry

ROUNDS = 100


class Same:
    """Answers every search alike."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def search(self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL) -> Any:
        return self._answer


def candidate(number: int) -> dict[str, Any]:
    return {
        "id": f"id-{number}",
        "content": {"text": "a few words of text", "n": number},
        "score": 1.0 / (number + 1),
        "source": {"target": "kb", "ref": f"id-{number}"},
        "metadata": {"kind": "note", "page": number},
    }


def measure(answer: Any, count: int) -> list[float]:
    """Return the seconds of each search."""
    retrieval = Retrieval(TargetRegistry({"kb": Target("same", {"same": Same(answer)})}))
    input = {"query": {"content": "tea"}, "target": {"name": "kb"}, "limit": count}
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        retrieval.search(input).unwrap()
        taken.append(time.process_time() - start)
    return taken


def main() -> None:
    for count in (10, 1000):
        wire = {"candidates": [candidate(n) for n in range(count)], "target": {"name": "kb"}}
        for name, answer in (("dicts", wire), ("contracts", RetrievalSearchOutput.from_wire(wire))):
            taken = measure(answer, count)
            least, median = min(taken) * 1000, statistics.median(taken) * 1000
            print(f"{count:5} {name:10} least {least:7.3f} ms, median {median:7.3f} ms")


if __name__ == "__main__":
    main()
