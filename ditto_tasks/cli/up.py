"""`ditto-tasks up`: the broker and one worker a capability, until it is told to stop."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import click

import ditto_tasks
from ditto_tasks.cli.options import config_file
from ditto_tasks.cli.output import say
from ditto_tasks.cli.worker import worker_command
from ditto_tasks.config import DittoConfig, find_config, load_config
from ditto_tasks.contracts.catalog import CAPABILITIES
from ditto_tasks.embedded.errors import ProcessDied
from ditto_tasks.embedded.processes import Child, Program, how_it_ended
from ditto_tasks.embedded.state import FOLDER

__all__ = ["Stack", "started"]

_GRACE = 30.0  # seconds that running calls get to end; as long as a call may take by default
_READY_TIME = 60.0  # seconds until each worker must have announced itself
_MOMENT = 0.1  # seconds between two looks at the processes
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.argument("capabilities", metavar="[CAPABILITY...]", nargs=-1, type=click.Choice(CAPABILITIES))
@click.option("--port", type=click.IntRange(1, 65535), help="Let the broker listen on 127.0.0.1, too.")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=_GRACE,
    show_default=True,
    metavar="SECONDS",
    help="Time that running calls get to end.",
)
@config_file
def up(capabilities: tuple[str, ...], port: int | None, grace: float, config_path: Path | None) -> None:
    """Run a broker and one worker a capability in this folder until Ctrl-C or SIGTERM.

    Without names, one of each capability. Data are kept below .ditto. With DITTO_BROKER_URL set, that broker
    is used and none is started.

    \b
    Examples:
      ditto-tasks up
      ditto-tasks up memory
      ditto-tasks invoke MEMORY.QUERY '{"limit": 3}'    # in another terminal
    """
    path = config_path or find_config(os.environ)
    config = load_config(path, os.environ)
    names = capabilities or CAPABILITIES
    with (
        _stop_signals() as stopping,
        started(config, names, port=port, grace=grace, stopping=stopping) as stack,
    ):
        if not stopping():
            click.echo(f"ready: {', '.join(names)}; {stack.broker}; stop with Ctrl-C")
        while not stopping():
            stack.keep_alive()
            time.sleep(_MOMENT)
        say("stopping")


@dataclass(frozen=True, slots=True)
class Stack:
    """What `up` runs.

    Attributes:
        config: of callers: names the broker.
        broker: says which one that is, without its address.
        children: the processes.
    """

    config: DittoConfig
    broker: str
    children: tuple[Child, ...]

    def keep_alive(self) -> None:
        """Restart what died; call this every moment.

        Raises:
            ProcessDied: something dies again and again.
        """
        for child in self.children:
            child.keep_alive()


@contextmanager
def started(
    config: DittoConfig,
    capabilities: Sequence[str] = CAPABILITIES,
    *,
    port: int | None = None,
    grace: float = _GRACE,
    stopping: Callable[[], int] = lambda: 0,
) -> Iterator[Stack]:
    """Run broker and workers for the length of the block, which begins when all of them are ready.

    Args:
        config: without a broker, one is started in the workspace.
        capabilities: each has a worker.
        port: of that broker, beside its socket.
        grace: seconds that running calls get to end.
        stopping: how often somebody asked to stop: once ends the waiting for readiness, twice the grace.

    Raises:
        CannotStart: the folder is in use or not writable, the port is taken, or there is no broker to start.
        ProcessDied: a process died before it was ready.
    """
    from ditto_tasks.embedded.lock import owned
    from ditto_tasks.embedded.valkey import embedded_server

    folder = config.workspace / FOLDER
    with ExitStack() as stack:
        stack.enter_context(owned(folder))
        children: list[Child] = []
        broker = "the broker of DITTO_BROKER_URL"
        if config.broker_url is None:
            url, server = stack.enter_context(embedded_server(folder, port=port))
            config = replace(config, broker_url=url, result_url=config.result_url or url)
            broker = f"the broker of {folder}" + (f" and 127.0.0.1:{port}" if port else "")
            children.append(server)
        workers: list[Child] = []
        stack.callback(_stop_all, workers, grace, lambda: stopping() > 1)
        environ = _environ(config)
        for capability in dict.fromkeys(capabilities):
            command = worker_command(capability, config.path)
            workers.append(Child(Program(f"the worker {capability}", command, environ)))
        _wait_until_announced(config, workers, stopping)
        yield Stack(config, broker, (*children, *workers))


@contextmanager
def _stop_signals() -> Iterator[Callable[[], int]]:
    """Count the signals that ask to stop, for the length of the block."""
    count = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1

    former = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield lambda: count
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _environ(config: DittoConfig) -> Mapping[str, str]:
    """Give the workers our environment, with what we found out; our package last on their path."""
    root = str(Path(ditto_tasks.__file__).parent.parent)
    python_path = [part for part in (os.environ.get("PYTHONPATH"), root) if part]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(python_path),
        "DITTO_BROKER_URL": config.broker_url or "",
        "DITTO_RESULT_URL": config.result_url or "",
        "DITTO_WORKER_MEMORY_STORE_URL": config.memory_store_url or "",
        "DITTO_WORKER_RETRIEVAL_INDEX_URL": config.index_url or "",
        "DITTO_WORKER_RETRIEVAL_EMBEDDING_BASE_URL": config.embedding.base_url if config.embedding else "",
        "DITTO_WORKER_RETRIEVAL_EMBEDDING_MODEL": config.embedding.model if config.embedding else "",
        "DITTO_RUNTIME_WORKSPACE": str(config.workspace),
    }


def _stop_all(workers: list[Child], grace: float, is_impatient: Callable[[], bool]) -> None:
    for worker in workers:
        worker.ask_to_stop()
    deadline = time.monotonic() + grace
    for worker in workers:
        worker.stop(max(0.0, deadline - time.monotonic()), is_impatient)


def _wait_until_announced(config: DittoConfig, workers: list[Child], stopping: Callable[[], int]) -> None:
    from ditto_tasks.transport.app import redis_url
    from ditto_tasks.transport.connection import broker_errors, connect
    from ditto_tasks.transport.directory import Directory
    from ditto_tasks.transport.keys import Keys

    deadline = time.monotonic() + _READY_TIME
    with broker_errors("looking for workers"), connect(redis_url(config)) as client:
        directory = Directory(client, Keys(config.transport.prefix))
        waiting = {f"{socket.gethostname()}:{worker.pid}": worker for worker in workers}
        while waiting and not stopping():
            for worker in waiting.values():
                _refuse_dead(worker, time.monotonic() > deadline)
            for info in directory.list():
                waiting.pop(info.id.partition("@")[2], None)
            time.sleep(_MOMENT if waiting else 0)


def _refuse_dead(worker: Child, is_late: bool) -> None:
    status = worker.exit_status()
    if status is not None:
        raise ProcessDied(
            f"{worker.name} ended before it was ready ({how_it_ended(status)}): see what it printed"
        )
    if is_late:
        raise ProcessDied(f"{worker.name} was not ready within {_READY_TIME:g} s: see what it printed")
