"""How an engine's failures are named to callers; one engine may serve stores and indexes."""

from dataclasses import dataclass

from ditto_tasks.contracts.errors import MemoryNodeError, NodeError, RetrievalError

__all__ = ["INDEX", "STORE", "Failures"]


@dataclass(frozen=True, slots=True)
class Failures:
    """The names for one port.

    Attributes:
        kind: of the errors.
        subject: what messages call the thing.
        closed: code of a call after closing, or after somebody dropped what it asks.
        unavailable: code when the engine does not answer.
        refused: code when it answers with an error; None: the engine's own code.
    """

    kind: type[NodeError]
    subject: str
    closed: str
    unavailable: str
    refused: str | None = None

    def is_closed(self) -> NodeError:
        """Make the error of a call after closing."""
        return self.kind(self.closed, f"The {self.subject} is closed")

    def is_gone(self, name: str) -> NodeError:
        """Make the error of a call to what somebody dropped."""
        return self.kind(self.closed, f"The {self.subject} {name} is gone: it was dropped")

    def is_unavailable(self, why: str = "cannot be reached") -> NodeError:
        """Make the error of an engine that does not answer."""
        return self.kind(self.unavailable, f"The {self.subject} {why}")

    def is_refused(self, code: str, why: str) -> NodeError:
        """Make the error of an engine that answered with one, or with nonsense."""
        return self.kind(self.refused or code, f"The {self.subject} {why}")


STORE = Failures(MemoryNodeError, "memory store", "STORE_UNAVAILABLE", "STORE_UNAVAILABLE")
INDEX = Failures(
    RetrievalError,
    "index",
    "RETRIEVAL_PROVIDER_UNAVAILABLE",
    "RETRIEVAL_BACKEND_ERROR",
    "RETRIEVAL_BACKEND_ERROR",
)
