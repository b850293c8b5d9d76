"""The names of everything that is kept in Redis, in one place."""

import hashlib
from dataclasses import dataclass

__all__ = ["INBOX_MARK", "PRIORITIES", "Keys", "queue_of", "stream_name", "streams_of"]

INBOX_MARK = ":inbox:"

PRIORITIES = ("high", "normal", "low")  # in the order in which workers look for calls


def stream_name(queue: str, priority: str = "normal") -> str:
    """Name the stream that holds a queue's calls of one priority.

    The queue's own name is left to kombu's lists, into which plain Celery clients write.
    """
    return f"{queue}:{priority}"


def streams_of(queue: str) -> list[str]:
    """Name the streams of a queue, the most urgent first."""
    return [stream_name(queue, priority) for priority in PRIORITIES]


def queue_of(stream: str) -> str:
    """Name the queue that a stream belongs to."""
    return stream.rsplit(":", 1)[0]


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names under the configured prefix; results have Celery's own name, for its clients to find."""

    prefix: str

    def result(self, execution_id: str) -> str:
        """The stored result: a string of JSON, written once."""
        return f"celery-task-meta-{execution_id}"

    def call(self, execution_id: str) -> str:
        """A hash about a call that has no result yet: `attempts` to run it, and why it was `cancelled`."""
        return f"{self.prefix}:call:{execution_id}"

    def input(self, execution_id: str) -> str:
        """The input of a call, where it is too large for a message; gone when the call has ended."""
        return f"{self.prefix}:input:{execution_id}"

    def output(self, execution_id: str) -> str:
        """The output of a call, where it is too large for a result."""
        return f"{self.prefix}:output:{execution_id}"

    def waiters(self, execution_id: str) -> str:
        """A set of inboxes that want the result beside the sender's."""
        return f"{self.prefix}:waiters:{execution_id}"

    def inbox(self, client: str) -> str:
        """A list into which the results for one client process are pushed."""
        return f"{self.prefix}{INBOX_MARK}{client}"

    def idempotency(self, node: str, key: str) -> str:
        """The execution id that an idempotency key of a node stands for; the key itself is not kept."""
        return f"{self.prefix}:key:{hashlib.sha256(f'{node} {key}'.encode()).hexdigest()}"

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

    def run(self, target: str) -> str:
        """A hash about the run that reindexes a target: its `owner` and `token`; expires unless renewed."""
        return f"{self.prefix}:reindex:{target}:run"

    def wanted(self, target: str) -> str:
        """A hash about runs of a target that were asked for meanwhile: their `count`, and the `mode`."""
        return f"{self.prefix}:reindex:{target}:wanted"

    def progress(self, target: str) -> str:
        """How the last run of a target stands, as JSON."""
        return f"{self.prefix}:reindex:{target}:progress"

    @property
    def leases(self) -> str:
        """A sorted set of the processes that take calls, by the server's time in ms when their lease ends."""
        return f"{self.prefix}:leases"

    @property
    def consumers(self) -> str:
        """A hash from such a process to the streams that it reads, as JSON."""
        return f"{self.prefix}:consumers"

    @property
    def parked(self) -> str:
        """A hash from a stream to how many of its calls wait elsewhere for their concurrency key."""
        return f"{self.prefix}:parked"

    @property
    def delayed(self) -> str:
        """A sorted set of messages that are not due yet, by the server's time in ms when they are."""
        return f"{self.prefix}:delayed"

    @property
    def dead(self) -> str:
        """A list of the calls that were given up, the newest first, as JSON."""
        return f"{self.prefix}:dead"

    @property
    def beat(self) -> str:
        """A hash about the beat that sends: its `holder` and its `token`; gone when it falls silent."""
        return f"{self.prefix}:beat"

    @property
    def beat_tokens(self) -> str:
        """A number: the last token that was given to a beat."""
        return f"{self.prefix}:beat:tokens"

    @property
    def slots_done(self) -> str:
        """A hash from a schedule to the time in µs up to which its slots were sent or left out."""
        return f"{self.prefix}:slots:done"

    @property
    def slots_sent(self) -> str:
        """A hash from a schedule to the last slot that was sent, in µs since the epoch."""
        return f"{self.prefix}:slots:sent"
