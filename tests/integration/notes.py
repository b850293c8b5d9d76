"""What the nodes of the tests did, noted in Redis by whatever process ran them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ditto_tasks.contracts.json_value import decode_json, encode_json
from ditto_tasks.transport.connection import connect

__all__ = ["Note", "Notes"]

KEY = "test:notes"


@dataclass(frozen=True, slots=True)
class Note:
    """A node with this label started, or ended, in this process; `at` is in seconds since the epoch."""

    event: str
    label: str
    pid: int
    at: float


class Notes:
    """A list in Redis to which all workers of a test append."""

    def __init__(self, url: str) -> None:
        self._client = connect(url)

    def add(self, note: Note) -> None:
        self._client.rpush(KEY, encode_json([note.event, note.label, note.pid, note.at]))

    def all(self) -> list[Note]:
        return [Note(*decode_json(stored)) for stored in self._client.lrange(KEY, 0, -1)]

    def of(self, event: str, prefix: str = "") -> list[Note]:
        return [note for note in self.all() if note.event == event and note.label.startswith(prefix)]

    def started(self, prefix: str = "") -> list[str]:
        """List the labels of the nodes that were started, in that order."""
        return [note.label for note in self.of("started", prefix)]

    def most_at_once(self, prefix: str = "") -> int:
        """Count how many nodes ran at once at the most."""
        return most_at_once(note for note in self.all() if note.label.startswith(prefix))

    def most_at_once_by_pid(self) -> dict[int, int]:
        notes = self.all()
        return {
            pid: most_at_once(note for note in notes if note.pid == pid)
            for pid in {note.pid for note in notes}
        }

    def close(self) -> None:
        self._client.close()


def most_at_once(notes: Iterable[Note]) -> int:
    """Count how many of these nodes ran at once; one that was killed runs no more once the kill is noted."""
    running: Counter[int] = Counter()
    most = 0
    for note in sorted(notes, key=lambda note: note.at):
        if note.event == "killed":
            running.pop(note.pid, None)
        else:
            running[note.pid] += 1 if note.event == "started" else -1
        most = max(most, running.total())
    return most
