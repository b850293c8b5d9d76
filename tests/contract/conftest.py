"""The servers that the contracts are held against."""

from collections.abc import Iterator

import pytest

from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The server that all tests share; each takes a schema of its own."""
    server = PostgresServer()
    server.start()
    server.execute("CREATE EXTENSION vector")
    yield server
    server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    return postgres_server.fresh_url()
