"""One process that takes calls from streams: its name, its lease, what it holds, and what it takes over.

What a process has fetched stays noted under its name until it is settled. While its lease is renewed, nobody
touches that; once the lease has run out, any other process takes the calls over.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from redis.exceptions import ConnectionError, NoScriptError, ResponseError

from ditto_tasks.contracts.json_value import encode_json
from ditto_tasks.transport import scripts
from ditto_tasks.transport.connection import REDIS_ERRORS, RedisClient, is_passing
from ditto_tasks.transport.dead import DeadCall, DeadLetters
from ditto_tasks.transport.entry import Entry, Fetched, read_entries, read_entry
from ditto_tasks.transport.keys import PRIORITIES, Keys, stream_name, streams_of
from ditto_tasks.transport.ledger import BEGIN, END, ENDED, Begun, Ending
from ditto_tasks.transport.limits import Limit
from ditto_tasks.transport.line import Line, LineScript, Pipe, SentScript
from ditto_tasks.transport.tags import split_tag, tag_of

__all__ = ["StreamConsumer"]

logger = logging.getLogger(__name__)

_TICK = 1.5  # seconds between two looks for dead processes and due messages
_TAKEN_OVER_AT_ONCE = 64  # calls a look takes over at most, slots permitting
_MOVED_AT_ONCE = 200  # messages a look moves at most: those that became due, those of plain Celery clients
_LIST_SEPARATOR = "\x06\x16"  # of kombu: between a queue's name and a priority in the key of a list
_LIST_SUFFIXES = ("", *(f"{_LIST_SEPARATOR}{priority}" for priority in (3, 6, 9)))
_STRAYS_INTERVAL = 30.0  # seconds between two looks for messages whose delivery was lost
_STRAY_AFTER = 15_000  # milliseconds since it was taken until a message that never arrived counts as that
_STRAYS_AT_ONCE = 1000  # messages one look gives back at most, a stream
_ENDS_AT_ONCE = 16  # ends that are sent, at most, until it is looked what came of them
_SUSPECT_FROM = 2  # deliveries; with that many processes a call has died
_COUNTED_EVERY = 3  # leases between two counts of those who hold messages
_RELEASED = "released"  # the owner of what was given back: always counted as dead

_Step = tuple[LineScript, list[str], list[Any]]  # a script, its keys, its arguments


class StreamConsumer:
    """Takes calls from streams in the name of this process; usable from any of its threads.

    Args:
        client: of the broker's server; stays the caller's to close.
        keys: the key names; the prefix also names the consumer group.
        lease: seconds after which a silent process counts as dead.
        begins: seconds that notes on begun calls are kept, where results are kept on the same server; None:
            calls are not begun here.
        limits: the limits by queue.
    """

    def __init__(
        self,
        client: RedisClient,
        keys: Keys,
        lease: float,
        begins: int | None = None,
        limits: Mapping[str, Limit] | None = None,
    ) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.group = keys.prefix
        self._client = client
        self._keys = keys
        self._lease = lease
        self._begins = begins
        self._limits = limits or {}
        self._streams: list[str] = []
        self._limited: dict[str, Limit] = {}
        self._closed: set[str] = set()
        self._unlimited_read: tuple[Any, ...] | None = None  # the command that waits for a message; kept
        self._lists: list[str] = []
        self._looks_at_lists = False  # with every second look: an idle worker asks the server for little
        self._held: set[str] = set()
        self._not_run: dict[str, str] = {}
        self._beginnings: dict[str, _Beginning] = {}  # those that were sent, by tag
        self._suspect = ""  # the tag of the last one taken over
        self._suspect_at = 0.0  # when that was
        self._unsettled: list[str] = []
        self._endings: list[Ending] = []
        self._sent_endings: list[Ending] = []  # whose answers the pipe has
        self._piping = threading.Lock()  # held by who uses the pipe
        self._unreleased: list[tuple[str, str]] = []
        self._overdue: list[str] = []
        self._looked_at = float("inf")  # not yet
        self._renewed_at = float("inf")
        self._trusts_until = 0.0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._line = line = Line(client)
        self._fetch = LineScript(line, client, scripts.FETCH)
        self._end = LineScript(line, client, END)
        self._ends = Pipe(client)
        self._begin = LineScript(line, client, BEGIN)
        self._hold = client.register_script(scripts.HOLD)
        self._settle = LineScript(line, client, scripts.SETTLE)
        self._count_all = client.register_script(scripts.COUNT_ALL)
        self._tick = LineScript(line, client, scripts.TICK)
        self._take_over = client.register_script(scripts.TAKE_OVER)
        self._release = client.register_script(scripts.RELEASE)
        self.on_change: Callable[[], None] = _do_nothing
        self.on_freed: Callable[[], None] = _do_nothing
        self.on_ended: Callable[[], None] | None = None
        self.loop_thread = 0  # whose event loop fetches
        self._steps = count()
        self.expects_more = False  # whether calls wait, as far as the last fetch could tell

    def read(self, queues: Sequence[str]) -> None:
        """Read these queues from now on: make their streams' groups, announce them, and hold a lease."""
        self._streams = [stream_name(queue, priority) for priority in PRIORITIES for queue in queues]
        self._unlimited_read = None
        self._lists = [f"{queue}{suffix}" for queue in queues for suffix in _LIST_SUFFIXES]
        limited = [queue for queue in queues if queue in self._limits]
        self._limited = {stream: self._limits[queue] for queue in limited for stream in streams_of(queue)}
        self.make_groups()
        self._client.hset(self._keys.consumers, self.name, encode_json(self._streams))
        self._renewed_at = float("inf")  # what the server knew of the lease, it may have lost
        self._renew()  # announced before the lease, so that whoever finds it ended knows where to look
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_lease, name="ditto-lease", daemon=True)
            self._thread.start()

    def make_groups(self) -> None:
        """Make the consumer group of each stream; what was queued before belongs to it, too."""
        pipeline = self._client.pipeline(transaction=False)
        for stream in [*self._streams, *self._bells()]:
            pipeline.xgroup_create(stream, self.group, id="0", mkstream=True)
        for answer in pipeline.execute(raise_on_error=False):
            if isinstance(answer, Exception) and not str(answer).startswith("BUSYGROUP"):
                raise answer

    def fetch(self, count: int, streams: Sequence[str] | None = None) -> Fetched:
        """Take up to `count` messages, the most urgent streams first, as far as limits allow; does not wait.

        What was settled since the last time is removed in the same round trip.
        """
        begins = (
            ["", "", ""]
            if self._begins is None
            else [self._keys.result(""), self._keys.call(""), self._begins]
        )
        arguments = [self.group, self.name, count, *begins, self._limits_by_stream(), self.group]
        arguments.append(self._new_step())
        self.look_at_ends()
        try:
            answer = self._after_settled(self._fetch, streams or self._streams, arguments)
        except ResponseError as error:
            raise ConnectionError(f"the server cannot give messages now: {error}") from None
        again, closed, parked, taken = answer
        self._closed = {name.decode() for name in closed}
        entries = self._entries(taken)
        return Fetched(entries, is_more=parked > 0, again_in=again / 1000 if again else None)

    def read_command(self, block: float) -> tuple[Any, ...]:
        """Give the command that waits up to `block` seconds for one message of any stream.

        Streams whose limit has no room are left out; their bell tells when it has. Without limits it is the
        same tuple each time.
        """
        if self._unlimited_read is not None:
            return self._unlimited_read
        streams = [
            stream
            for stream in self._streams
            if stream not in self._limited or self._limited[stream].name not in self._closed
        ]
        streams += self._bells()
        read = ("XREADGROUP", "GROUP", self.group, self.name, "COUNT", 1, "BLOCK", int(block * 1000))
        command = (*read, "STREAMS", *streams, *[">"] * len(streams))
        if not self._limited:
            self._unlimited_read = command
        return command

    def read_reply(self, reply: Any) -> Fetched:
        """Read what the server answered to `read_command`; a limited call must find its slot first.

        Raises:
            redis.ConnectionError: the server was lost, or refuses; all that was read is given back.
        """
        by_stream = reply.items() if isinstance(reply, dict) else reply or ()
        entries = [read_entry(stream, *held) for stream, all_held in by_stream for held in all_held]
        for entry in entries:
            self._held.add(entry.tag)
        if not self._limited:
            return Fetched(entries)
        bells = set(self._bells())
        rings = [entry for entry in entries if entry.stream in bells]
        for ring in rings:
            self.settle(ring.tag)
        try:
            calls = [entry for entry in entries if entry.stream not in bells and self._finds_slot(entry)]
        except REDIS_ERRORS as error:
            for entry in entries:
                self.release(entry.tag)
            raise ConnectionError(f"the server cannot give messages now: {error}") from None
        return Fetched(calls, is_more=bool(rings))

    def begin(self, entry: Entry) -> None:
        """Send what begins a call that a blocking read has brought; its answer comes while it is made ready.

        Raises:
            redis.RedisError: the server takes nothing in.
        """
        if self._begins is None or "i" not in entry.fields:
            return
        id = self._not_run[entry.tag] = entry.fields["i"].decode(errors="replace")
        keys = [self._keys.result(id), self._keys.call(id)]
        step = self._new_step() + entry.id
        sent = self._begin.send(keys, [self._begins, entry.stream, entry.id, step])
        self._beginnings[entry.tag] = _Beginning(sent, lambda: self._not_run.update({entry.tag: id}))
        if len(self._sent_endings) >= _ENDS_AT_ONCE:
            self.look_at_ends()

    def beginning(self, tag: str) -> Callable[[], Begun] | None:
        """Return what waits for the answer of `begin`, for whoever runs the call; None: it was not sent."""
        return self._beginnings.get(tag)

    def take_overdue(self, count: int) -> list[Entry]:
        """Take up to `count` messages of processes whose lease has run out.

        Of those that two processes died with, this one takes another only when the last has ended, or has run
        for a lease: the innocent among them end, and one that waits for another gets it.
        """
        taken: list[Entry] = []
        dead, self._overdue = self._overdue, []
        for name in dead:
            if len(taken) >= count:
                self._overdue.append(name)
                continue
            taken += self._take(name, min(count - len(taken), _TAKEN_OVER_AT_ONCE))
        if taken:
            logger.warning("took over %d calls of %d processes whose lease ran out", len(taken), len(dead))
        return taken

    @property
    def has_overdue(self) -> bool:
        """Whether the last look found processes whose lease has run out."""
        return bool(self._overdue)

    @property
    def held(self) -> int:
        """How many messages this process has fetched and not settled."""
        return len(self._held)

    def freed(self) -> None:
        """Tell whoever waits for it, once, that a message was settled or given back."""
        on_freed, self.on_freed = self.on_freed, _do_nothing
        on_freed()

    def runs(self, tag: str) -> None:
        """Note that an entry's call is being run: given back from now on, it counts as an attempt."""
        self._not_run.pop(tag, None)

    def settled(self, tag: str) -> bool:
        """Note that an entry is gone from its stream; False when this process did not hold it."""
        beginning = self._beginnings.pop(tag, None)
        if beginning is not None:
            beginning.wait()
        self._not_run.pop(tag, None)
        try:
            self._held.remove(tag)
        except KeyError:
            return False
        return True

    def end_later(self, ending: Ending) -> bool:
        """Have a call that we hold ended without waiting for it; its slot is free from now on.

        It is ended with the next fetch if more calls wait; else the thread of the event loop sends it at once
        and looks what came of it before it fetches.

        Returns:
            False when nothing was taken on: we do not hold it, no other call is about to be fetched, or there
            is no event loop that would turn soon.
        """
        on_ended = self.on_ended
        is_of_loop, more_wait = self.loop_thread == threading.get_ident(), self.expects_more
        if on_ended is None or not (more_wait or is_of_loop) or not self.settled(ending.tag):
            return False
        if more_wait:
            self._endings.append(ending)
            on_ended()
        else:
            self._send_end(ending)
        return True

    def _send_end(self, ending: Ending) -> None:
        command = self._end.command(ending.keys, ending.arguments)
        with self._piping:
            try:
                self._ends.send(command)
            except BaseException as error:
                self._endings += [*self._taken_from_pipe(), ending]  # all answers are lost
                if not isinstance(error, REDIS_ERRORS):
                    raise
            else:
                self._sent_endings.append(ending)

    def look_at_ends(self) -> None:
        """See what came of the calls whose end was sent.

        Those that could not be ended are left to the next fetch. The thread of the event loop looks, and that
        of the lease, since a solo worker's loop may be busy with a call for long.
        """
        if not self._sent_endings:
            return
        with self._piping:
            sent = self._taken_from_pipe()
            try:
                answers = self._ends.answers()
            except BaseException as error:
                self._endings += sent
                if isinstance(error, REDIS_ERRORS):
                    return
                raise
            for ending, answer in zip(sent, answers, strict=True):
                if isinstance(answer, NoScriptError):
                    self._endings.append(ending)
                else:
                    self._note_end(ending, answer)

    def _taken_from_pipe(self) -> list[Ending]:
        sent, self._sent_endings = self._sent_endings, []
        return sent

    @property
    def has_endings(self) -> bool:
        """Whether calls wait to be ended."""
        return bool(self._endings)

    def flush(self) -> None:
        """End and settle what waits for it, in one round trip."""
        self.look_at_ends()
        self._after_settled(None, [], [])

    def settle(self, tag: str) -> None:
        """Have an entry removed from its stream with the next fetch or look, unless it is gone."""
        if self.settled(tag):
            self._unsettled.append(tag)

    def release(self, tag: str) -> None:
        """Give an entry back, for any process to take with its next look; later if the server is away."""
        not_run = self._not_run.get(tag, "")
        if self.settled(tag):
            self._give_back(tag, not_run)

    def _give_back(self, tag: str, not_run: str = "") -> None:
        self._unreleased.append((tag, not_run))
        self._release_all()

    def _release_all(self) -> None:
        while self._unreleased:
            tag, not_run = self._unreleased.pop()
            entry, stream, key = split_tag(tag)
            limit = self._limited.get(stream)
            arguments = [self.group, self.name, _RELEASED, entry, tag, key, limit.encode() if limit else ""]
            arguments += [self.group, self._keys.call(not_run) if not_run else ""]
            try:
                self._release(keys=[self._keys.leases, self._keys.consumers, stream], args=arguments)
            except REDIS_ERRORS as error:
                self._unreleased.append((tag, not_run))
                logger.warning("%s cannot be given back yet: %s", tag, type(error).__name__)
                return

    def give_up(self, entry: Entry) -> None:
        """Move an entry that no worker can read to the dead letters."""
        fields = {name: value.decode(errors="replace") for name, value in entry.fields.items()}
        letter = DeadCall(entry.fields.get("i", b"").decode(errors="replace"), "", fields, time.time())
        DeadLetters(self._client, self._keys).add(letter)
        self.settle(entry.tag)

    def release_strays(self, idle: int = 0) -> None:
        """Give back what is noted under our name and never arrived: its reply was lost with a connection.

        Args:
            idle: milliseconds since it was taken; so much that a reply cannot be on its way any more.
        """
        for stream in self._streams:
            with suppress(ResponseError):  # purged this moment: it has no group, and nothing of ours
                for held in self._client.xpending_range(
                    stream, self.group, "-", "+", count=_STRAYS_AT_ONCE, consumername=self.name, idle=idle
                ):
                    self._release_stray(stream, held["message_id"].decode())

    def count_all(self) -> None:
        """Give a lease to each process that holds messages of our streams without one, so that it can end."""
        keys = [self._keys.leases, self._keys.consumers, *self._streams]
        self._count_all(keys=keys, args=[self.group, int(self._lease * 1000)])

    def stop(self) -> None:
        """End the lease; what is still held is given back."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(_TICK)
        self.on_ended = None
        self.flush()
        for tag in list(self._held):
            self.release(tag)
        self._client.zadd(self._keys.leases, {self.name: 0})
        self._take(self.name, 0)  # nothing is left to take: that forgets us
        self._line.close()
        self._ends.close()

    def _take(self, name: str, count: int) -> list[Entry]:
        keys = [self._keys.leases, self._keys.consumers, *self._streams]
        arguments = [self.group, name, self.name, count, self._limits_by_stream(), self.group]
        is_trusted = time.monotonic() - self._suspect_at > self._lease
        arguments += [_SUSPECT_FROM, int(is_trusted or self._suspect not in self._held)]
        taken: list[Entry] = []
        answer = self._take_over(keys=keys, args=arguments)
        for entry, (*_, deliveries) in zip(read_entries(answer, is_taken_over=True), answer, strict=True):
            if self._still_runs(entry.tag):
                self._give_back(entry.tag)
                continue
            if deliveries >= _SUSPECT_FROM:
                self._suspect, self._suspect_at = entry.tag, time.monotonic()
            self._held.add(entry.tag)
            taken.append(entry)
        return taken

    def _still_runs(self, tag: str) -> bool:
        """Tell whether an entry that we lost and regained has an attempt here whose end would settle it."""
        return tag in self._known_tags()

    def _known_tags(self) -> list[str]:
        """List the tags of what this process has: it runs, or its end is on the way."""
        with self._piping:  # or an end might be in neither list
            ended = [ending.tag for ending in (*self._endings, *self._sent_endings)]
        return [*self._held, *self._unsettled, *ended]

    def _finds_slot(self, entry: Entry) -> bool:
        limit = self._limited.get(entry.stream)
        if limit is None:
            return True
        arguments = [self.group, entry.id, entry.tag, entry.key, limit.encode(), self.group]
        answer = self._hold(keys=[entry.stream], args=arguments)
        if answer == 0:
            self._closed.add(limit.name)
            self.release(entry.tag)
        elif answer < 0:
            self.settled(entry.tag)
        return bool(answer > 0)

    def _release_stray(self, stream: str, id: str) -> None:
        known = (tag for tag in self._known_tags() if tag.startswith(f"{id} {stream}"))
        if next(known, None) is None:
            [entry] = self._client.xrange(stream, id, id) or [(None, {})]
            key = entry[1].get(b"k", b"").decode(errors="replace")
            tag = tag_of(id, stream, key)
            self._held.add(tag)
            self._not_run[tag] = entry[1].get(b"i", b"").decode(errors="replace")
            self.release(tag)

    def _bells(self) -> list[str]:
        return list(dict.fromkeys(limit.bell(self.group) for limit in self._limited.values()))

    def _limits_by_stream(self) -> bytes | str:
        if not self._limited:
            return ""
        return encode_json({stream: limit.to_json() for stream, limit in self._limited.items()})

    def _entries(self, answer: Iterable[Any]) -> list[Entry]:
        entries = read_entries(answer)
        for entry in entries:
            self._held.add(entry.tag)
            if entry.begun is not None:
                self._not_run[entry.tag] = entry.fields["i"].decode(errors="replace")
        return entries

    def _new_step(self) -> str:
        """Give what tells a step that begins calls from any other; our name is as random as an id."""
        return f"{self.name}:{next(self._steps)}:"

    def _settling(self) -> tuple[list[str], list[Any]]:
        """Give keys and arguments that remove what was settled since the last time."""
        tags, self._unsettled = self._unsettled, []
        settled = [(tag, *split_tag(tag)) for tag in tags]
        arguments: list[Any] = [self.group, self.name, self._limits_by_stream()]
        for tag, entry, _, key in settled:
            arguments += [entry, tag, key]
        return [stream for _, _, stream, _ in settled], arguments

    def _keep_lease(self) -> None:
        strays_looked_for = counted = time.monotonic()
        while not self._stopping.wait(min(_TICK, self._lease / 3)):
            try:
                self.look_at_ends()
                self._renew()  # and end what an event loop that is busy has not
                self._release_all()
                if time.monotonic() - strays_looked_for > _STRAYS_INTERVAL:
                    self.release_strays(idle=_STRAY_AFTER)
                    strays_looked_for = time.monotonic()
                if time.monotonic() - counted > _COUNTED_EVERY * self._lease:
                    self.count_all()
                    counted = time.monotonic()
                if self._overdue or self._closed:
                    self.on_change()
            except REDIS_ERRORS as error:
                logger.warning("the lease could not be renewed: %s", type(error).__name__)
            except Exception:  # without its thread the lease would end while calls run
                logger.exception("a look for dead processes failed")

    def _renew(self) -> None:
        """Look, and renew the lease if it would be late to do so with the next look: three times a lease."""
        self._looks_at_lists = not self._looks_at_lists
        keys = [self._keys.leases, self._keys.delayed, self._keys.consumers]
        keys += self._lists if self._looks_at_lists else ()
        asked_at = time.monotonic()
        is_due = not self._renewed_at <= asked_at < self._renewed_at + self._lease / 3 - _TICK
        arguments = [self.name, int(self._lease * 1000), _MOVED_AT_ONCE, encode_json(self._streams)]
        arguments += [_LIST_SEPARATOR, int(is_due)]
        ended = self._after_settled(self._tick, keys, arguments)
        now = time.monotonic()
        if now - self._looked_at > self._lease:  # the server was away: the others get as long to renew theirs
            self._trusts_until = now + self._lease
        self._looked_at = now
        if is_due:
            self._renewed_at = asked_at
        self._overdue = [name.decode() for name in ended] if now >= self._trusts_until else []

    def _after_settled(self, script: LineScript | None, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script; what was ended and settled since the last time goes ahead in the same round trip."""
        endings, self._endings = self._endings, []
        if not endings and not self._unsettled:
            return script(list(keys), list(arguments)) if script else None
        tags, (streams, settling) = self._unsettled, self._settling()
        steps = [(self._end, ending.keys, ending.arguments) for ending in endings]
        steps += [(self._settle, streams, settling)] if streams else []
        steps += [(script, list(keys), list(arguments))] if script else []
        try:
            answers = self._run(steps)
        except REDIS_ERRORS:
            self._endings = endings + self._endings
            self._unsettled = tags + self._unsettled
            raise
        for ending, answer in zip(endings, answers, strict=False):
            self._note_end(ending, answer)
        if script and isinstance(answers[-1], Exception):
            raise answers[-1]
        return answers[-1] if script else None

    def _run(self, steps: Sequence[_Step]) -> list[Any]:
        """Run scripts in one round trip; returns their answers, an error as the answer of its script."""
        answers = self._line.execute_all([script.command(keys, args) for script, keys, args in steps])
        return [
            _run_anew(step) if isinstance(answer, NoScriptError) else answer
            for step, answer in zip(steps, answers, strict=True)
        ]

    def _note_end(self, ending: Ending, answer: Any) -> None:
        if isinstance(answer, Exception) and is_passing(answer):
            logger.warning("%s cannot be ended yet: %s", ending.tag, answer)
            self._endings.append(ending)
        elif isinstance(answer, Exception):
            logger.error("%s could not be ended and is given back: %s", ending.tag, answer)
            self._give_back(ending.tag)
        elif ENDED[answer] == "known":  # this delivery was one too many
            self._unsettled.append(ending.tag)


class _Beginning:
    """The begin of a call that was sent; whoever runs the call asks how it went, from any thread.

    Args:
        sent: the script.
        on_failed: called when there is no answer, with which the call is not run.
    """

    def __init__(self, sent: SentScript, on_failed: Callable[[], None]) -> None:
        self._sent: SentScript | None = sent
        self._on_failed = on_failed
        self._lock = threading.Lock()

    def __call__(self) -> Begun:
        """Wait for the answer; once.

        Raises:
            redis.RedisError: there is none; the call may have begun all the same.
        """
        with self._lock:
            sent, self._sent = self._sent, None
            if sent is None:
                raise ConnectionError("the call was given back before it was run")
            try:
                return Begun.of(sent.answer())
            except REDIS_ERRORS as error:
                self._on_failed()
                if isinstance(error, ResponseError):  # of which Celery's worker would end
                    raise ConnectionError(f"the server cannot begin calls now: {error}") from None
                raise

    def wait(self) -> None:
        """Let the server have begun the call, if nobody has asked: what follows must not overtake it."""
        if self._sent is not None:
            with suppress(*REDIS_ERRORS):
                self()


def _run_anew(step: _Step) -> Any:
    """Run a script that the server did not know; as `_run`."""
    script, keys, arguments = step
    try:
        return script(keys, arguments)
    except ResponseError as error:
        return error


def _do_nothing() -> None: ...
