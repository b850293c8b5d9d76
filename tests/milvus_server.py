"""A Milvus server for tests: Milvus Lite as a process of its own, over gRPC as any other."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pymilvus import MilvusClient

from tests.conftest import die_with_parent, free_port, wait_until

START_TIMEOUT = 60.0  # seconds; it imports much
STOP_TIMEOUT = 20.0


@contextmanager
def milvus_server(folder: Path) -> Iterator[str]:
    """Run one that keeps its data in `folder`; gives HOST:PORT."""
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "milvus_lite",
            "server",
            "--data-dir",
            str(folder / "data"),
            "--port",
            str(port),
        ],
        env={**os.environ, "PYTHONWARNINGS": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=die_with_parent,
    )
    try:
        wait_until(lambda: _listens(port), START_TIMEOUT, "Milvus listens")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(STOP_TIMEOUT)


def clear(address: str) -> None:
    """Drop all that a server has."""
    client = MilvusClient(uri=f"http://{address}", dedicated=True)
    for name in client.list_collections():
        client.drop_collection(name)
    client.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
