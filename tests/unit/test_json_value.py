"""Strict JSON: what may cross the wire, and when two values are the same."""

import math
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ditto_tasks.contracts.json_value import (
    MAX_JSON_DEPTH,
    NotJson,
    canonical_json,
    decode_json,
    encode_json,
    strict_json,
)

LARGEST = 10**4300 - 1
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def same(first: Any, second: Any) -> bool:
    """Compare as JSON does: numbers by value, and true is not 1."""
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def nested(depth: int) -> Any:
    value: Any = "inmost"
    for _ in range(depth):
        value = [value]
    return value


@given(VALUES)
@example(LARGEST)
@example(-0.0)
@example("\u0000 \u2028 \U0001f600")
@example({"": {"": []}})
def test_a_value_comes_back_as_it_went(value: Any) -> None:
    there = encode_json(strict_json(value))
    assert same(decode_json(there), value)
    assert b"\n" not in there


@given(VALUES)
def test_a_copy_is_equal_and_of_its_own(value: Any) -> None:
    copy = strict_json(value)
    assert same(copy, value)
    if isinstance(value, dict | list):
        assert copy is not value


def test_a_later_change_does_not_show_in_the_copy() -> None:
    inner: list[int] = []
    copy = strict_json({"list": inner})
    inner.append(1)
    assert copy == {"list": []}


@given(VALUES, VALUES)
@example(1, 1.0)
@example(1, True)
@example(0, False)
@example(10**21, 1e21)
@example(10**22 + 1, 1e22)
@example(2**53, float(2**53))
@example(2**53 + 1, float(2**53))
@example(-0.0, 0)
@example(1e308, int(1e308))
@example({"a": 1, "b": [2.0]}, {"b": [2], "a": 1.0})
@example([1, 2], [2, 1])
@example(None, "null")
def test_equal_values_and_only_those_have_the_same_canonical_text(first: Any, second: Any) -> None:
    assert (canonical_json(first) == canonical_json(second)) == same(first, second)


@given(VALUES)
def test_canonical_text_is_json_of_the_same_value(value: Any) -> None:
    assert same(decode_json(canonical_json(value)), value)


def test_canonical_text_is_compact_sorted_and_not_escaped() -> None:
    assert canonical_json({"b": [1.0, 0.5, True, None], "a": "é你"}) == '{"a":"é你","b":[1,0.5,true,null]}'


def test_tuples_are_lists() -> None:
    assert strict_json((1, ("a", ()))) == [1, ["a", []]]


def test_dicts_of_a_kind_of_their_own_are_taken() -> None:
    copy = strict_json(OrderedDict(b=1, a=2))
    assert type(copy) is dict
    assert list(copy) == ["b", "a"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "the value is nan: JSON numbers are finite; use null or a string"),
        ({"scores": [1, math.inf]}, "scores[1] is inf: JSON numbers are finite; use null or a string"),
        ([-math.inf], "[0] is -inf: JSON numbers are finite; use null or a string"),
        ({"a": {"b": [0, b"x"]}}, "a.b[1] is a bytes: JSON has no such value"),
        ({"tags": {"x"}}, "tags is a set: JSON has no such value"),
        ({"when": object()}, "when is a object: JSON has no such value"),
        ({"z": 1j}, "z is a complex: JSON has no such value"),
        ({1: "one"}, "the value has the key 1: keys must be strings"),
        ({"a": {None: 1}}, "a has the key None: keys must be strings"),
        ({"a": "\ud800"}, "a holds a lone surrogate: it has no UTF-8 form"),
        ({"a": {"\udfff": 1}}, "a (a key) holds a lone surrogate: it has no UTF-8 form"),
        ({"n": [10**4300]}, "n[0] is an integer of more than 4,300 digits: use a string"),
        ({"n": -(10**5000)}, "n is an integer of more than 4,300 digits: use a string"),
        ({10**5000: 1}, "the value has the key a int: keys must be strings"),
    ],
)
def test_what_json_cannot_carry_is_refused_with_its_place(value: Any, reason: str) -> None:
    with pytest.raises(NotJson) as refused:
        strict_json(value)
    assert str(refused.value) == reason


def test_the_deepest_nesting_is_taken_and_one_more_is_not() -> None:
    assert strict_json(nested(MAX_JSON_DEPTH)) == nested(MAX_JSON_DEPTH)
    with pytest.raises(NotJson, match="nested deeper than 100 levels"):
        strict_json(nested(MAX_JSON_DEPTH + 1))
    with pytest.raises(NotJson, match="nested deeper than 100 levels"):
        strict_json(nested(5000))
    with pytest.raises(NotJson, match="nested deeper than 100 levels"):
        strict_json({"a": nested(MAX_JSON_DEPTH)})


@pytest.mark.parametrize("container", ["list", "dict", "tuple in list"])
def test_a_value_that_contains_itself_is_refused(container: str) -> None:
    loop: Any = {} if container == "dict" else []
    if container == "dict":
        loop["self"] = loop
    else:
        loop.append((loop,) if container.startswith("tuple") else loop)
    with pytest.raises(NotJson, match="contains itself"):
        strict_json(loop)


def test_the_same_value_at_two_places_is_no_cycle() -> None:
    shared = {"a": [1]}
    assert strict_json([shared, shared]) == [{"a": [1]}, {"a": [1]}]


@pytest.mark.parametrize(
    "text", ["NaN", "[Infinity]", "-Infinity", "", "{", "[1,]", "{'a':1}", "01", b"\xff"]
)
def test_text_that_is_not_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(NotJson, match="not JSON"):
        decode_json(text)
