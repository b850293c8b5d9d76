"""A model server that takes its time: `/embeddings` as OpenAI has it, with vectors of a few numbers.

`python -m benchmarks.slow_model MILLISECONDS` prints its port and serves. A model is called `any/K`, K from 1
to 9. Its vectors have K + 1 numbers, and any document scores K / 10 for any question: a score tells which
model made both, and the vectors of two models cannot be held against each other. A text that begins with `?`
is a question.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.conftest import ROOT, STOP_TIMEOUT, die_with_parent

__all__ = ["slow_model"]


@contextmanager
def slow_model(milliseconds: int) -> Iterator[str]:
    """Have a server in a process of its own for as long as the block lasts; gives its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(milliseconds)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait(STOP_TIMEOUT)
        process.stdout.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections
    disable_nagle_algorithm = True
    wbufsize = (
        -1
    )  # head and body in one piece: in two, the second would wait for the client's acknowledgement
    seconds: float

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = int(asked["model"].rpartition("/")[2])
        time.sleep(self.seconds)
        data = [
            {"index": place, "embedding": _vector(number, text.startswith("?"))}
            for place, text in enumerate(asked["input"])
        ]
        body = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


def _vector(number: int, is_question: bool) -> list[float]:
    score = number / 10
    first = (1.0, 0.0) if is_question else (score, (1 - score**2) ** 0.5)
    return [*first, *[0.0] * (number - 1)]


def _serve(milliseconds: int) -> None:
    _Handler.seconds = milliseconds / 1000
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
