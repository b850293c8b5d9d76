"""Every setting by name, derived from the models: for the documentation and for error messages.

`python -m ditto_tasks.config` prints the table of docs/configuration.md.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from ditto_tasks.config.model import MAX_INTEGER, Section, Settings, Unit

__all__ = ["ANY_KEY", "EACH_ITEM", "SETTINGS", "Setting", "find_setting", "markdown_table", "siblings"]

ANY_KEY = "<name>"
EACH_ITEM = "[]"
UNITS = {"ms": "milliseconds", "s": "seconds", "bytes": "bytes"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of ditto.yaml.

    Attributes:
        path: the keys from the root; `<name>` stands for a free key, `[]` for each item of a list.
        kind: what it must be, as a noun phrase; bounds and unit included.
        default: as the file would say it; None when it has none.
        meaning: one sentence.
        is_section: whether it holds other settings.
    """

    path: tuple[str, ...]
    kind: str
    default: str | None
    meaning: str
    is_section: bool = False

    @property
    def name(self) -> str:
        """The path with dots."""
        return ".".join(self.path).replace(f".{EACH_ITEM}", EACH_ITEM)


def find_setting(path: tuple[str | int, ...]) -> Setting | None:
    """Find what stands at a place of a file."""
    return next((setting for setting in SETTINGS if _matches(setting.path, path)), None)


def siblings(path: tuple[str | int, ...]) -> list[str]:
    """List the keys that may stand where the last one of this path does."""
    return [
        setting.path[-1]
        for setting in SETTINGS
        if len(setting.path) == len(path) and _matches(setting.path[:-1], path[:-1])
    ]


def markdown_table() -> str:
    """Write the table of all settings that hold a value."""
    rows = ["| Key | Value | Default | Meaning |", "| --- | --- | --- | --- |"]
    for setting in SETTINGS:
        if not setting.is_section:
            default = "" if setting.default is None else f"`{setting.default}`"
            rows.append(f"| `{setting.name}` | {setting.kind} | {default} | {setting.meaning} |")
    return "\n".join(rows)


def _matches(pattern: tuple[str, ...], path: tuple[str | int, ...]) -> bool:
    return len(pattern) == len(path) and all(
        wanted == (EACH_ITEM if isinstance(step, int) else step) or (wanted == ANY_KEY and step != EACH_ITEM)
        for wanted, step in zip(pattern, path, strict=True)
    )


def _settings(model: type[Section], above: tuple[str, ...] = ()) -> Iterator[Setting]:
    for info in model.model_fields.values():
        path = (*above, str(info.validation_alias))
        type_, marks = _bare(info.annotation)
        inner = _inner(type_)
        if inner is None:
            yield Setting(path, _kind(type_, marks + info.metadata), _default(info), info.description or "")
            continue
        model_inside, step = inner
        yield Setting(path, _section_kind(step), None, "", is_section=True)
        if step:
            path = (*path, step)
            yield Setting(path, _section_kind(""), None, "", is_section=True)
        yield from _settings(model_inside, path)


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """Take `Annotated` and `| None` off a type; return what was noted on the way."""
    marks: list[Any] = []
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *found = get_args(annotation)
            marks += found
        elif get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation):
            annotation = Union[tuple(t for t in get_args(annotation) if t is not type(None))]  # noqa: UP007
        else:
            return annotation, marks


def _inner(type_: Any) -> tuple[type[Section], str] | None:
    """Return the section that a type holds, and the step that leads to it."""
    if isinstance(type_, type) and issubclass(type_, Section):
        return type_, ""
    for container, step in ((tuple, EACH_ITEM), (Mapping, ANY_KEY)):
        if _is_a(type_, container):
            held = get_args(type_)[0 if container is tuple else 1]
            if isinstance(held, type) and issubclass(held, Section):
                return held, step
    return None


def _is_a(type_: Any, container: type) -> bool:
    origin = get_origin(type_)
    return isinstance(origin, type) and issubclass(origin, container)


def _section_kind(step: str) -> str:
    return {"": "a mapping of settings", ANY_KEY: "a mapping of names to settings", EACH_ITEM: "a list"}[step]


def _kind(type_: Any, marks: list[Any]) -> str:
    if get_origin(type_) is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in get_args(type_))
    if type_ is str:
        return "a non-empty string"
    if type_ is dict or _is_a(type_, dict):
        return "a JSON object"
    if _is_a(type_, Mapping):
        return "a mapping of strings to strings"
    if _is_a(type_, tuple):
        return "a list of non-empty strings"
    unit = next((mark.name for mark in marks if isinstance(mark, Unit)), None)
    noun = "an integer" if type_ is int or unit == "ms" else "a number"
    return noun + (f" of {UNITS[unit]}" if unit else "") + _bounds(marks)


def _bounds(marks: list[Any]) -> str:
    low = next((mark.ge for mark in marks if isinstance(mark, Ge)), None)
    above = next((mark.gt for mark in marks if isinstance(mark, Gt)), None)
    high = next((mark.le for mark in marks if isinstance(mark, Le)), None)
    if above is not None:
        return f" over {above}, at most {high}"
    if high == MAX_INTEGER and low in (0, 1):
        return f" of at least {low}" if low == 0 else " of at least 1"
    return f" in {low}..{high}"


def _default(info: FieldInfo) -> str | None:
    if info.default_factory is not None:
        return "{}"
    if info.is_required() or info.default is None:
        return None
    marks = _bare(info.annotation)[1] + info.metadata
    value = info.default
    if Unit("ms") in marks:
        value = value * 1000
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


SETTINGS: tuple[Setting, ...] = tuple(_settings(Settings))
