"""An HTTP server on loopback that answers as a test says, byte by byte if it must."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT = 30.0  # seconds; a bound on what ends within a few


class Exchange(BaseHTTPRequestHandler):
    """One request at the server's side; `body` is what it held."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two packets, and the second would wait for the first
    server: "Peer"
    body: bytes = b""

    def do_POST(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with self.server.lock:
            self.server.exchanges.append(self)
            self.server.times.append(time.monotonic())
            script = self.server.scripts.pop(0) if self.server.scripts else self.server.otherwise
        self.server.arrived.set()
        try:
            script(self)
        except OSError:  # the other side went away: that is what some tests are about
            self.server.left.set()
            self.close_connection = True

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def answer(self, body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def hang(self) -> None:
        """Wait until the other side goes away, or the test ends."""
        self.connection.settimeout(WAIT)
        self.connection.recv(1)  # b"" when it went away, or was told to read no more
        self.server.left.set()
        self.close_connection = True

    def drip(self, piece: bytes) -> None:
        """Send a piece again and again, for as long as the other side takes it."""
        while not self.server.over.wait(0.02):
            self.wfile.write(piece)


Script = Callable[[Exchange], None]


class Peer(ThreadingHTTPServer):
    """Plays its scripts, a request each, then the last one for all others.

    Attributes:
        exchanges: the requests so far.
        times: when each came, on `time.monotonic()`'s clock.
        arrived: set with each request; a test may clear it.
        left: set when the other side went away during a script.
        closed: set when the server closed a connection.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.scripts = list(scripts)
        self.otherwise = scripts[-1]
        self.exchanges: list[Exchange] = []
        self.times: list[float] = []
        self.connections = 0
        self.lock = threading.Lock()
        self.arrived = threading.Event()
        self.left = threading.Event()
        self.closed = threading.Event()
        self.over = threading.Event()
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.closed.set()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that breaks is part of the test."""


@contextmanager
def serving(*scripts: Script, tls: ssl.SSLContext | None = None) -> Iterator[Peer]:
    """Run a peer for one test."""
    with Peer(*scripts, tls=tls) as peer:
        thread = threading.Thread(target=peer.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield peer
        finally:
            peer.over.set()
            peer.shutdown()
            thread.join(WAIT)


def says(value: Any, status: int = 200, **headers: str) -> Script:
    """Make a script that answers with JSON, or with bytes as they are."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return lambda exchange: exchange.answer(body, status, named)


def writes(data: bytes) -> Script:
    """Make a script that writes these bytes, headers and all, and closes the connection."""

    def script(exchange: Exchange) -> None:
        exchange.wfile.write(data)
        exchange.close_connection = True

    return script
