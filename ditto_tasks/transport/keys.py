"""The names of everything that is kept in Redis, in one place."""

from dataclasses import dataclass

__all__ = ["INBOX_MARK", "Keys"]

INBOX_MARK = ":inbox:"


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names under the configured prefix; results have Celery's own name, for its clients to find."""

    prefix: str

    def result(self, execution_id: str) -> str:
        """The stored result: a string of JSON, written once."""
        return f"celery-task-meta-{execution_id}"

    def started(self, execution_id: str) -> str:
        """Set by the worker that begins the call."""
        return f"{self.prefix}:started:{execution_id}"

    def cancelled(self, execution_id: str) -> str:
        """The tombstone: holds the reason; set by whoever cancels."""
        return f"{self.prefix}:cancelled:{execution_id}"

    def waiters(self, execution_id: str) -> str:
        """A set of inboxes that want the result beside the sender's."""
        return f"{self.prefix}:waiters:{execution_id}"

    def inbox(self, client: str) -> str:
        """A list into which the results for one client process are pushed."""
        return f"{self.prefix}{INBOX_MARK}{client}"

    @property
    def cancel_channel(self) -> str:
        """The channel on which cancels are told to running workers."""
        return f"{self.prefix}:cancel"

    @property
    def workers(self) -> str:
        """A set of the names of the workers that announced themselves."""
        return f"{self.prefix}:workers"

    def worker(self, name: str) -> str:
        """What one worker announced; expires unless its heart beats."""
        return f"{self.prefix}:worker:{name}"
