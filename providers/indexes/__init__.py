"""Indexes of vectors; `open_index` picks one by the scheme of a URL."""

from importlib import import_module
from typing import Protocol, cast

from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.index import IndexManifest, VectorIndex

__all__ = ["open_index"]

_OPENERS = {  # scheme -> module and its opener; imported when asked for, so that drivers stay optional
    "memory": ("providers.indexes.in_memory", "open_in_memory"),
    "sqlite": ("providers.indexes.sqlite", "open_sqlite"),
    "postgresql": ("providers.indexes.postgres", "open_postgres"),
    "postgres": ("providers.indexes.postgres", "open_postgres"),
    "qdrant": ("providers.indexes.qdrant", "open_qdrant"),
    "milvus": ("providers.indexes.milvus", "open_milvus"),
}


class _Opener(Protocol):
    def __call__(self, rest: str, *, name: str, manifest: IndexManifest) -> VectorIndex: ...


def open_index(url: str, *, name: str, manifest: IndexManifest) -> VectorIndex:
    """Open an index in the engine that a URL names, and make it if it is missing; the caller closes it.

    `memory://`, `sqlite:///PATH`, `postgresql://USER@HOST/DATABASE`, `qdrant://HOST` or `qdrant:///PATH`,
    `milvus://HOST` or `milvus:///PATH.db`.

    Args:
        name: of the index within the engine: lower-case letters, digits and '_', at most 41.
        manifest: what makes the vectors.

    Raises:
        InvalidDefinition: no index has this scheme, the rest or the name is not in its form, or the engine's
            driver is not installed.
        IndexMismatch: the index holds vectors that something else made.
        StoreUnavailable: the engine is known, but cannot be reached.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in _OPENERS:
        known = ", ".join(f"{name}://" for name in _OPENERS)
        raise InvalidDefinition(f"no index has the URL scheme {scheme[:40]!r}: use one of {known}")
    module, opener = _OPENERS[scheme]
    return cast(_Opener, getattr(import_module(module), opener))(rest, name=name, manifest=manifest)
