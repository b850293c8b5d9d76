"""A MariaDB server for the tests, in a folder of its own; installed where it is missing."""

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.conftest import STOP_TIMEOUT, die_with_parent, free_port, wait_until
from tests.debian import install_missing

START_TIMEOUT = 60.0  # seconds; a second or two on an idle machine


class MysqlServer:
    """Listens on a port and a socket, with the user root and no password; what it answered survives it."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._log = folder / "server.log"
        self._port = free_port()
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = folder / "server.sock"
        install_missing("mariadb-server", "mariadbd", path=_PATH)
        _run(
            "mariadb-install-db",
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            f"--user={_user()}",
            f"--datadir={self._data}",
            "--skip-test-db",
        )

    def url(self, database: str, *, user: str = "root", password: str = "") -> str:
        return f"mysql://{user}:{password}@127.0.0.1:{self._port}/{database}"

    def fresh_database(self) -> str:
        """Make a database that no other test uses."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def drop(self, database: str) -> None:
        self.execute(f"DROP DATABASE {database}")

    def execute(self, statement: str, *values: Any, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement over a connection of its own."""
        with self.connection(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def connection(self, database: str | None = None) -> "pymysql.Connection[Any]":
        return pymysql.connect(
            host="127.0.0.1", port=self._port, user="root", database=database, autocommit=True
        )

    def start(self) -> None:
        options = {
            "datadir": str(self._data),
            "socket": str(self.socket),
            "port": str(self._port),
            "bind-address": "127.0.0.1",
            "user": _user(),
            "pid-file": str(self._data / "server.pid"),
            "log-error": str(self._log),
            "innodb-flush-method": "nosync",  # a killed server loses nothing, and the disk may be slow
            "innodb-buffer-pool-size": "64M",
        }
        binary = shutil.which("mariadbd", path=_PATH) or "mariadbd"
        self._process = subprocess.Popen(
            [binary, "--no-defaults", *(f"--{name}={value}" for name, value in options.items())],
            preexec_fn=die_with_parent,
        )
        wait_until(self._answers, START_TIMEOUT, "MariaDB answers")

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Let it neither answer nor refuse."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        wait_until(lambda: all(map(_is_stopped, threads.glob("*/stat"))), what="all its threads stop")

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"MariaDB ended with {self._process.returncode}:\n{self._log.read_text()[-2000:]}")
        try:
            return self.execute("SELECT 1") == [(1,)]
        except pymysql.Error:
            return False

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
            self._process.wait(STOP_TIMEOUT)
            self._process = None


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    """The server that all tests share; each takes a database of its own."""
    server = MysqlServer(tmp_path_factory.mktemp("mysql"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mysql_database(mysql_server: MysqlServer) -> Iterator[str]:
    """A database that the tests of a module share: one for each would take most of their time."""
    name = mysql_server.fresh_database()
    yield name
    mysql_server.drop(name)


@pytest.fixture
def mysql_url(mysql_server: MysqlServer, mysql_database: str) -> Iterator[str]:
    """The URL of that database; the records of one test are not there in the next."""
    yield mysql_server.url(mysql_database)
    for table in ("memories", "memory_changes"):
        mysql_server.execute(f"DELETE FROM {table}", database=mysql_database)


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def _is_stopped(stat: Path) -> bool:
    return stat.read_text().rpartition(") ")[2].startswith("T")


def _user() -> str:
    return "root" if os.geteuid() == 0 else str(os.geteuid())


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if ended.returncode != 0:
        pytest.fail(f"`{' '.join(command)}` failed: {ended.stdout[-500:]}{ended.stderr[-500:]}")
