"""Manifests of collections: what an engine keeps beside the vectors, to say what made them."""

from collections.abc import Mapping
from typing import Any

from ditto_tasks.contracts.index import IndexManifest

__all__ = ["index_manifest"]


def index_manifest(kept: Mapping[str, Any] | None) -> IndexManifest | None:
    """Return the manifest of an index; None for that of a memory store, which names other things."""
    try:
        return IndexManifest(**(kept or {}))
    except TypeError:
        return None
