"""JSON values: what may cross the wire, its bytes, and when two values are the same.

Stricter than the `json` module, which lets NaN, tuples of anything and non-string keys pass.
"""

import json
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pydantic_core
from pydantic_core import PydanticCustomError, core_schema

__all__ = [
    "MAX_JSON_DEPTH",
    "JsonObject",
    "JsonValue",
    "NotJson",
    "canonical_json",
    "decode_json",
    "encode_json",
    "shown",
    "strict_json",
]

MAX_JSON_DEPTH = 100  # levels of lists and objects; pydantic's parser stops at 200, its validator at 254

_LARGEST_INTEGER = 10**4300 - 1  # more digits than these Python neither reads nor writes


class NotJson(ValueError):
    """A value that JSON cannot carry; the message says where it is and what it is."""


def _schema() -> core_schema.CoreSchema:
    inner = core_schema.definition_reference_schema("json")
    key = core_schema.str_schema(strict=True, min_length=0)  # with a length to check, surrogates are noticed
    value = core_schema.union_schema(
        [
            key,
            core_schema.dict_schema(key, inner, strict=True),
            core_schema.list_schema(inner, strict=True),
            core_schema.int_schema(strict=True, ge=-_LARGEST_INTEGER, le=_LARGEST_INTEGER),
            core_schema.float_schema(strict=True, allow_inf_nan=False),
            core_schema.bool_schema(strict=True),
            core_schema.none_schema(),
            core_schema.no_info_after_validator_function(
                list, core_schema.tuple_variable_schema(inner, strict=True)
            ),
        ],
        mode="left_to_right",
        ref="json",
    )
    return core_schema.definitions_schema(inner, [value])


_VALIDATOR = pydantic_core.SchemaValidator(_schema())
_REFUSED = object()
_CONTAINERS = (dict, list)
_CONTAINER_TYPES = frozenset(_CONTAINERS)


def strict_json(value: object) -> Any:
    """Copy a value of JSON, tuples as lists; later changes of the original do not show in the copy.

    Raises:
        NotJson: something in it has no JSON form: NaN, an infinity, bytes, a set, a key that is not a string,
            a lone surrogate, an integer of more than 4,300 digits, or nesting deeper than `MAX_JSON_DEPTH`
            (a value that contains itself).
    """
    try:
        copy = _VALIDATOR.validate_python(value)
    except pydantic_core.ValidationError:
        copy = _REFUSED
    if copy is not _REFUSED and (_is_flat(copy) or _is_shallow(copy)):
        return copy
    raise NotJson(next(_faults(value, "", 0), "the value has no JSON form"))


def encode_json(value: object) -> bytes:
    """Write a value as compact UTF-8 JSON; the value must have passed `strict_json`."""
    return pydantic_core.to_json(value)


def decode_json(data: bytes | str) -> Any:
    """Read JSON text.

    Raises:
        NotJson: the text is not JSON; NaN and Infinity are none. A number beyond the range of doubles, such
            as 1e999, is read as an infinity all the same: `strict_json` refuses it.
    """
    try:
        return pydantic_core.from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise NotJson(f"not JSON: {error}") from None


def canonical_json(value: object) -> str:
    """Write a value so that equal JSON values, and only those, give equal text.

    Keys are sorted, 1.0 is 1, and true is not 1.
    """
    return json.dumps(_integral(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def shown(value: object, width: int) -> str:
    """Write the start of a value for a message; of one that cannot be written, its type."""
    try:
        return repr(value)[:width]
    except Exception:  # a huge integer, or a `__repr__` of its own
        return f"a {type(value).__name__}"


def _is_flat(value: Any) -> bool:
    """Tell whether a copy holds no container within another: most do not, and need no walk."""
    if not isinstance(value, _CONTAINERS):
        return True
    return _CONTAINER_TYPES.isdisjoint(map(type, value.values() if isinstance(value, dict) else value))


def _is_shallow(value: object) -> bool:
    """Tell whether the nesting keeps to `MAX_JSON_DEPTH`; walks a level at a time, containers only."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_JSON_DEPTH):
        if not level:
            return True
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
    return not level


def _integral(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_integral(item) for item in value]
    return value


def _faults(value: object, path: str, depth: int) -> Iterator[str]:
    """Name what is wrong, first fault first; walks only values that were refused already."""
    place = path or "the value"
    if depth == MAX_JSON_DEPTH and isinstance(value, dict | list | tuple):
        yield f"{place[:80]}... is nested deeper than {MAX_JSON_DEPTH} levels, or contains itself"
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{place} has the key {shown(key, 60)}: keys must be strings"
            yield from _faults(key, f"{place} (a key)", depth)
            yield from _faults(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _faults(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, str):
        if any("\ud800" <= character <= "\udfff" for character in value):
            yield f"{place} holds a lone surrogate: it has no UTF-8 form"
    elif isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            yield f"{place} is {value}: JSON numbers are finite; use null or a string"
    elif isinstance(value, int):
        if abs(value) > _LARGEST_INTEGER:
            yield f"{place} is an integer of more than 4,300 digits: use a string"
    elif value is not None:
        yield f"{place} is a {type(value).__name__}: JSON has no such value"


def _validate(value: object) -> Any:
    try:
        return strict_json(value)
    except NotJson as error:
        raise PydanticCustomError("not_json", "{reason}", {"reason": str(error)}) from None


def _validate_object(value: object) -> Any:
    if not isinstance(value, dict):
        raise PydanticCustomError("not_an_object", "must be a JSON object")
    return _validate(value)


class _CheckedBy:
    """Annotates a type with a function that checks it; it is written as any JSON, by pydantic's core alone.

    What `PlainValidator` does, without the serializer of Python's that it adds.
    """

    def __init__(self, function: Callable[[object], Any]) -> None:
        self._function = function

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._function)


JsonValue = Annotated[Any, _CheckedBy(_validate)]
"""Any JSON value, null included; validated strictly and copied."""

JsonObject = Annotated[dict[str, Any], _CheckedBy(_validate_object)]
"""A JSON object; validated strictly and copied."""
