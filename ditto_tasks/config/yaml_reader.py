"""YAML as plain data, and the line of every key: the core schema of YAML 1.2, without its surprises.

What makes a file say other than it seems to (repeated keys, anchors, merge keys, tags) is an error; `on`
stays a string, `010` is ten, and `1:30` is no number.
"""

import re
from dataclasses import dataclass
from typing import Any

import yaml

from ditto_tasks.contracts.errors import ConfigError

__all__ = ["Document", "Step", "dotted", "read_yaml"]

Step = str | int

_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_MERGE = "<<"


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says.

    Attributes:
        data: mappings with string keys, lists and scalars.
        lines: path of each key and each item, to the line where it stands, counted from 1.
    """

    data: Any
    lines: dict[tuple[Step, ...], int]


class _Refused(Exception):
    def __init__(self, reason: str, mark: yaml.Mark) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = mark.line + 1


class _Loader(yaml.SafeLoader):
    """Composes nodes by the core schema of YAML 1.2; refuses anchors, aliases and tags."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # filled in below, for this class alone

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs give it no types
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _Refused("anchors and aliases are not read: write the value out", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise _Refused("tags are not read: write the plain value", event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


for _tag, _pattern, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        _FLOAT,
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)


def read_yaml(content: bytes, name: str) -> Document:
    """Read the one document of a file.

    Args:
        content: UTF-8.
        name: what messages call the file.

    Raises:
        ConfigError: it is not YAML, or uses what is not read here.
    """
    lines: dict[tuple[Step, ...], int] = {}
    try:
        loader = _Loader(content.decode("utf-8-sig"))
        try:
            root = loader.get_single_node()
            data = None if root is None else _value(root, (), lines)
        finally:
            loader.dispose()
    except _Refused as error:
        raise ConfigError(f"{name}:{error.line}: {error.reason}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: is not UTF-8 at byte {error.start}: save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}" if mark else name
        raise ConfigError(f"{place}: is not YAML: {error.problem}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{name}: is not YAML: it holds characters that YAML does not allow") from None
    except RecursionError:
        raise ConfigError(f"{name}: is nested too deeply: flatten it") from None
    return Document(data, lines)


def _value(node: yaml.Node, path: tuple[Step, ...], lines: dict[tuple[Step, ...], int]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines)
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            items.append(_value(item, (*path, index), lines))
        return items
    return _scalar(node)


def _mapping(
    node: yaml.MappingNode, path: tuple[Step, ...], lines: dict[tuple[Step, ...], int]
) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise _Refused("a key must be a string: put it in quotes", key_node.start_mark)
        if key == _MERGE and key_node.style is None:
            raise _Refused("merge keys are not read: write the settings out", key_node.start_mark)
        here = (*path, key)
        if key in data:
            raise _Refused(
                f"{dotted(here)} stands here a second time, after line {lines[here]}: keep one",
                key_node.start_mark,
            )
        lines[here] = key_node.start_mark.line + 1
        data[key] = _value(value_node, here, lines)
    return data


def _scalar(node: yaml.Node) -> Any:
    text: str = node.value
    if node.tag == _NULL:
        return None
    if node.tag == _BOOL:
        return text.lower() == "true"
    if node.tag == _INT:
        return _whole(text, node)
    if node.tag == _FLOAT:
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _whole(text: str, node: yaml.Node) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    try:
        return int(text, base)
    except ValueError:  # Python reads 4,300 digits at most
        raise _Refused("the number has too many digits: write a smaller one", node.start_mark) from None


def dotted(path: tuple[Step, ...]) -> str:
    """Write a path as people do: `schedules[0].cron`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
