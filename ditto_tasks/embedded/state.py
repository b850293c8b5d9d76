"""What a running `ditto-tasks up` leaves in its folder, for the other commands and apps there to find."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ditto_tasks.contracts.json_value import NotJson, decode_json, encode_json

if TYPE_CHECKING:
    from ditto_tasks.config import DittoConfig

__all__ = ["FOLDER", "forget_broker", "note_broker", "running_broker", "with_embedded_broker"]

FOLDER = ".ditto"  # below the folder in which `up` was started; holds all data
_STATE = "up.json"


def note_broker(folder: Path, url: str) -> None:
    """Leave the broker's URL for others to find."""
    (folder / _STATE).write_bytes(encode_json({"brokerUrl": url}))


def forget_broker(folder: Path) -> None:
    """Take the note away; does nothing when there is none."""
    (folder / _STATE).unlink(missing_ok=True)


def running_broker(folder: Path) -> str | None:
    """Return the URL of the broker that `up` runs with this folder, None when it left no note."""
    try:
        return str(decode_json((folder / _STATE).read_bytes())["brokerUrl"])
    except (OSError, NotJson, KeyError, TypeError):
        return None


def with_embedded_broker(config: "DittoConfig") -> "DittoConfig":
    """Fill in the embedded broker of the workspace where the environment names none."""
    if config.broker_url is not None:
        return config
    url = running_broker(config.workspace / FOLDER)
    return replace(config, broker_url=url, result_url=config.result_url or url)
