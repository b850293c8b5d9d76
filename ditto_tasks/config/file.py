"""Reads ditto.yaml into `Settings`, or says all that is wrong with it, line by line."""

import difflib
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ditto_tasks.config.model import Settings
from ditto_tasks.config.reference import find_setting, siblings
from ditto_tasks.config.yaml_reader import Document, Step, dotted, read_yaml
from ditto_tasks.contracts.errors import ConfigError

__all__ = ["read_settings"]

_SHOWN = 60  # characters of a refused value that a message repeats


def read_settings(path: Path) -> Settings:
    """Read one file.

    Raises:
        ConfigError: it is not there, or something in it is wrong; each line of the message names file, line,
            key and remedy.
    """
    document = read_yaml(_content(path), str(path))
    if not isinstance(document.data, dict):
        raise ConfigError(
            f"{path}: must be a mapping of settings, not {_shown(document.data)}: "
            "write at least one section, or read no file"
        )
    try:
        return Settings.model_validate(document.data, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = sorted({_problem(detail, document, path) for detail in details})
    raise ConfigError("\n".join(text for _, text in problems))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file: create it, or name another") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}") from None


def _problem(detail: ErrorDetails, document: Document, path: Path) -> tuple[int, str]:
    place = _place(detail)
    line = _line(place, document)
    return line, f"{path}:{line}: {dotted(place)} {_reason(detail, place)}"


def _place(detail: ErrorDetails) -> tuple[Step, ...]:
    at: tuple[Step, ...] = detail.get("ctx", {}).get("at", ())
    return (*(step for step in detail["loc"] if step != "[key]"), *at)


def _line(place: tuple[Step, ...], document: Document) -> int:
    """Find the line of a key, or of the nearest one above it when it is missing."""
    for length in range(len(place), 0, -1):
        if place[:length] in document.lines:
            return document.lines[place[:length]]
    return 1


def _reason(detail: ErrorDetails, place: tuple[Step, ...]) -> str:
    kind = detail["type"]
    if kind == "extra_forbidden":
        return f"is no setting: {_suggestion(place)}"
    if kind == "missing":
        return "is missing: add it"
    setting = find_setting(place)
    if detail["input"] is None:
        return "is empty: give it a value, or leave the key out to get the default"
    if kind == "not_json":
        return f"is not JSON: {detail['msg']}"
    if setting is None or kind in _SELF_EXPLAINING:
        return detail["msg"]
    return f"must be {setting.kind}, not {_shown(detail['input'])}"


def _suggestion(place: tuple[Step, ...]) -> str:
    known = siblings(place)
    close = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here are {', '.join(known)}"


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"{value!r:.{_SHOWN}}"


_SELF_EXPLAINING = frozenset(
    {
        "queue_name",
        "not_its_node",
        "provider_name",
        "not_a_node",
        "cron",
        "timezone",
        "rhythm",
        "input",
        "repeated_name",
        "reindex",
        "remembered",
    }
)  # errors of our own validators, whose messages hold the remedy
