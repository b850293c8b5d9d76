"""Stores of memory records; `open_store` picks one by the scheme of a URL."""

from collections.abc import Callable
from importlib import import_module
from types import TracebackType
from typing import Protocol, Self, cast

from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.memory import MemorySearchProvider, MemoryStore

__all__ = ["Store", "open_store"]

_OPENERS = {  # scheme -> module and its opener; imported when asked for, so that drivers stay optional
    "memory": ("providers.stores.in_memory", "open_in_memory"),
    "sqlite": ("providers.stores.sqlite", "open_sqlite"),
    "qdrant": ("providers.stores.qdrant", "open_qdrant"),
    "milvus": ("providers.stores.milvus", "open_milvus"),
    "mysql": ("providers.stores.mysql", "open_mysql"),
    "mariadb": ("providers.stores.mysql", "open_mysql"),
    "postgresql": ("providers.stores.postgres", "open_postgres"),
    "postgres": ("providers.stores.postgres", "open_postgres"),
}


class Store(MemoryStore, MemorySearchProvider, Protocol):
    """A memory store that finds records, too, and that whoever opened it closes."""

    def close(self) -> None:
        """Let go of connections; calls from then on are refused. Closing twice does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open_store(url: str) -> Store:
    """Open the store that a URL names; the caller closes it.

    `memory://` keeps records in this process and loses them with it. `sqlite:///notes.db` is a file below the
    working directory, `sqlite:////var/lib/notes.db` one with an absolute path. `qdrant://HOST:PORT/NAME` and
    `milvus://HOST:PORT/NAME` are collections of a server; with a third slash and a path they are files of one
    process. `postgresql://USER:PASSWORD@HOST:PORT/DATABASE` is a database of a server.
    `mysql://user:password@host:port/database` is a database of MySQL or MariaDB,
    `mysql:///database?unix_socket=PATH` one on this machine.

    Raises:
        InvalidDefinition: no store has this scheme, the rest is not in its form, or its driver is missing.
        StoreUnavailable: the store is known, but cannot be opened.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _OPENERS:
        known = ", ".join(f"{name}://" for name in _OPENERS)
        raise InvalidDefinition(f"no store has the URL scheme {scheme[:40]!r}: use one of {known}")
    module, opener = _OPENERS[scheme]
    return cast(Callable[[str], Store], getattr(import_module(module), opener))(rest)
