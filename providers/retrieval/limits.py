"""Numbers that providers are built with or find in a call's defaults, checked where they are used."""

from typing import Any

from ditto_tasks.contracts.base import MAX_LIMIT, is_number
from ditto_tasks.contracts.errors import RetrievalError
from ditto_tasks.contracts.json_value import shown
from ditto_tasks.contracts.retrieval import MAX_SAFE_INTEGER

__all__ = ["checked_integer", "checked_limit", "first_given"]


def checked_limit(name: str, value: Any) -> int:
    """Return a number of candidates.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT when it is no integer from 1 to 10,000.
    """
    return checked_integer(name, value, MAX_LIMIT)


def checked_integer(name: str, value: Any, most: int = MAX_SAFE_INTEGER) -> int:
    """Return a positive integer; 10.0 is one.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT when it is none, or over `most`.
    """
    if not is_number(value) or value != value // 1 or not 1 <= value <= most:
        raise RetrievalError(
            "RETRIEVAL_INVALID_INPUT",
            f"{name} is {shown(value, 80)}: it must be an integer from 1 to {most:,}",
        )
    return int(value)


def first_given(*values: Any) -> Any:
    """Return the first value that is not None: a wrong one, such as 0, is not passed over."""
    return next((value for value in values if value is not None), None)
