"""Names and manifests of indexes: checked, kept as text, held against each other."""

import re
from dataclasses import asdict

from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.index import IndexManifest, IndexMismatch
from ditto_tasks.contracts.json_value import decode_json, encode_json

__all__ = ["check_definition", "check_manifest", "manifest_text", "read_manifest"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,40}\Z")


def check_definition(name: str, manifest: IndexManifest) -> None:
    """Refuse what no index can be called or be made with.

    Raises:
        InvalidDefinition: naming the value and the remedy.
    """
    if not _NAME.match(name):
        raise InvalidDefinition(
            f"index name {name!r:.80}: use a lower-case letter, then up to 40 of letters, digits and '_'"
        )
    if type(manifest.dimensions) is not int or manifest.dimensions < 1:
        raise InvalidDefinition(f"index {name}: dimensions {manifest.dimensions!r:.80} must be 1 or more")
    if not (manifest.model and manifest.preprocessing):
        raise InvalidDefinition(f"index {name}: model and preprocessing must be named")
    if manifest.distance != "cosine":
        raise InvalidDefinition(f"index {name}: distance {manifest.distance!r:.80} is unknown: use 'cosine'")


def check_manifest(name: str, kept: IndexManifest, wanted: IndexManifest) -> None:
    """Refuse to mix vectors.

    Raises:
        IndexMismatch: the index was made with another manifest; both are named.
    """
    if kept != wanted:
        raise IndexMismatch(
            f"index {name} was made with {_told(kept)}, and is to be opened with {_told(wanted)}: "
            "build a new index by that name, or open this one as it was made",
            kept,
        )


def manifest_text(manifest: IndexManifest) -> str:
    """Write a manifest for keeping, as JSON."""
    return encode_json(asdict(manifest)).decode()


def read_manifest(text: str) -> IndexManifest:
    """Read what `manifest_text` wrote."""
    return IndexManifest(**decode_json(text))


def _told(manifest: IndexManifest) -> str:
    return (
        f"{manifest.model} ({manifest.dimensions} dimensions, {manifest.preprocessing}, {manifest.distance})"
    )
