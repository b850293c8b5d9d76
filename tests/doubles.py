"""Searches, embeddings and stores of the tests: they answer what they are told, or less than they could."""

from collections.abc import Sequence
from typing import Any

from ditto_tasks.contracts.retrieval import (
    NO_RETRIEVAL_CALL,
    Purpose,
    RetrievalCall,
    RetrievalSearchInput,
)
from providers.stores.in_memory import InMemoryStore

__all__ = ["Letters", "Quiet", "RecordingSearch", "found", "request", "wire"]


def wire(**fields: Any) -> dict[str, Any]:
    """Make a search of the target `kb`, in wire form."""
    return {"query": {"content": "tea"}, "target": {"name": "kb"}, **fields}


def request(**fields: Any) -> RetrievalSearchInput:
    """Make a search of the target `kb`."""
    return RetrievalSearchInput.from_wire(wire(**fields))


def found(*candidates: Any, **fields: Any) -> dict[str, Any]:
    """Make an output for the target `kb`, in wire form; a string stands for a candidate with that id."""
    listed = [{"id": one, "content": one} if isinstance(one, str) else one for one in candidates]
    return {"candidates": listed, "target": {"name": "kb"}, **fields}


class RecordingSearch:
    """Answers every search alike.

    Args:
        answer: what it returns, raises, or calls with the request and the call to get either.
    """

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.requests: list[RetrievalSearchInput] = []
        self.calls: list[RetrievalCall] = []

    def search(self, request: RetrievalSearchInput, call: RetrievalCall = NO_RETRIEVAL_CALL) -> Any:
        self.requests.append(request)
        self.calls.append(call)
        answer = self.answer(request, call) if callable(self.answer) else self.answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @property
    def limits(self) -> list[int | None]:
        return [request.limit for request in self.requests]


class Letters:
    """Embeds a text as how often the letters a, b and c are in it."""

    identity = "letters/1"
    dimensions = 3

    def __init__(self) -> None:
        self.asked: list[tuple[list[Any], Purpose]] = []

    def embed(
        self, contents: Sequence[Any], purpose: Purpose, call: RetrievalCall = NO_RETRIEVAL_CALL
    ) -> Sequence[Sequence[float]]:
        self.asked.append((list(contents), purpose))
        return [[float(text.count(letter)) for letter in "abc"] for text in contents]


class Quiet:
    """A store that does not tell what changed."""

    def __init__(self, store: InMemoryStore) -> None:
        for name in ("get", "query", "write", "update", "delete", "search", "close"):
            setattr(self, name, getattr(store, name))
