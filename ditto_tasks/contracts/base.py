"""What every contract shares: frozen models, camelCase on the wire, and the few types that JSON needs.

An optional field that is missing is *absent*; an explicit null is refused, never read as absent. Ask
`model_fields_set` for presence where null is a legal value.
"""

import sys
import threading
from functools import cache
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from ditto_tasks.contracts.json_value import shown

__all__ = [
    "MAX_LIMIT",
    "Contract",
    "CoreCheck",
    "Id",
    "Integer",
    "Limit",
    "ListOf",
    "Maybe",
    "Model",
    "Number",
    "Text",
    "changed",
    "describe",
    "expected",
    "integral",
    "is_number",
    "trusted",
]

MAX_LIMIT = 10_000  # records in one answer
_LARGEST = int(sys.float_info.max)
_SHOWN = 80  # characters of a refused value that a message repeats

T = TypeVar("T")

_new, _put = object.__new__, object.__setattr__  # past what freezes a contract
_put_fields_set, _put_extra, _put_private = (
    vars(BaseModel)[f"__pydantic_{slot}__"].__set__ for slot in ("fields_set", "extra", "private")
)

_building = threading.RLock()  # one for all: a model builds those that it holds


class Model(BaseModel):
    """A pydantic model that is built when it is first used: to import it, and to name it, costs little."""

    model_config = ConfigDict(defer_build=True)

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """Build the model, as its first use does; threads do so one at a time.

        Before 2.14 pydantic lets them build at once, and one may meet what another has half built.
        """
        with _building:
            return super().model_rebuild(**options)


class Contract(Model):
    """A frozen record: snake_case in Python, camelCase on the wire; unknown fields are dropped."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )

    @classmethod
    def from_wire(cls, value: object) -> Self:
        """Read the wire form: a dict with camelCase keys; an instance is returned as it is.

        Raises:
            pydantic.ValidationError: the value breaks the contract; `describe` puts it into a sentence.
        """
        read: Self = cls.__pydantic_validator__.validate_python(value, by_alias=True, by_name=False)
        return read

    def to_wire(self) -> dict[str, Any]:
        """Give the wire form: plain JSON, absent fields left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def to_wire_bytes(self) -> bytes:
        """Write the wire form as compact UTF-8 JSON."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_unset=True)


C = TypeVar("C", bound=Contract)


def trusted(contract: type[C], fields: dict[str, Any]) -> C:
    """Make a contract of fields that are known to be right, named as in Python; the rest are absent.

    What `model_construct` does, without its look at each field's aliases: a page is made in half the time.
    """
    made = _new(contract)
    _put(made, "__dict__", {**_defaults(contract), **fields})
    _put_fields_set(made, set(fields))
    _put_extra(made, None)
    _put_private(made, None)
    return made


def changed(contract: C, **fields: Any) -> C:
    """Copy a contract with some fields replaced by others that are known to be right; the copy is shallow.

    What `model_copy` does, with less around it.
    """
    values = contract.__dict__
    return trusted(type(contract), {name: values[name] for name in contract.model_fields_set} | fields)


def describe(error: ValidationError) -> str:
    """Say in one sentence what is wrong first: where, what was expected, what was given."""
    detail = _first(error)
    if detail["type"] in ("missing", "not_json"):
        return expected(error)
    return f"{expected(error)}, not {shown(detail['input'], _SHOWN)}"


def expected(error: ValidationError) -> str:
    """Say where the first fault is and what was expected there, for a log that must not hold content."""
    message = _first(error)["msg"]
    return f"{_path(_first(error))}: {message[:1].lower()}{message[1:]}"


@cache
def _defaults(contract: type[Contract]) -> dict[str, Any]:
    """Give all fields, those without a default too: their order is that of the wire form."""
    return {name: field.default for name, field in contract.model_fields.items()}


def _first(error: ValidationError) -> ErrorDetails:
    return error.errors(include_url=False, include_context=False)[0]


def _path(detail: ErrorDetails) -> str:
    path = ""
    for step in detail["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path or "input"


def _refuse_null(value: object) -> object:
    if value is None:
        raise PydanticCustomError("null", "must be left out or given a value; null is neither")
    return value


def _listed(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise PydanticCustomError("not_a_list", "must be a list")
    return tuple(value)


def is_number(value: object) -> bool:
    """Tell whether a value is a finite number; true is none, nor an integer beyond the range of doubles."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


class CoreCheck:
    """Annotates a type with a check of pydantic's core and a message of ours.

    A right value costs no call of Python's, which shows where a page of records has a thousand of them.
    """

    def __init__(self, schema: CoreSchema, type: str, message: str) -> None:
        self._schema = core_schema.custom_error_schema(schema, type, custom_error_message=message)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return self._schema


def _number_schema() -> CoreSchema:
    """Check as `is_number` does."""
    whole = core_schema.int_schema(strict=True, ge=-_LARGEST, le=_LARGEST)
    real = core_schema.float_schema(strict=True, allow_inf_nan=False)  # takes whatever has a `__float__`
    float_only = core_schema.chain_schema([core_schema.is_instance_schema(float), real])
    return core_schema.union_schema([whole, float_only], mode="left_to_right")


def integral(value: object) -> object:
    """Accept what JSON calls an integer: 10.0 is one, true is not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise PydanticCustomError("not_an_integer", "must be an integer")
    return value


Maybe = Annotated[T | None, BeforeValidator(_refuse_null)]
"""An optional field, to be given the default None for "absent": an explicit null is refused."""

ListOf = Annotated[tuple[T, ...], BeforeValidator(_listed)]
"""A JSON list; lists and tuples are taken, and kept as a tuple."""

Text = Annotated[str, Field(min_length=1)]
"""A string of at least one character; a single space is one."""

Id = Text
Number = Annotated[int | float, CoreCheck(_number_schema(), "not_a_number", "must be a finite number")]
Integer = Annotated[int, BeforeValidator(integral)]
Limit = Annotated[Integer, Field(ge=1, le=MAX_LIMIT)]
