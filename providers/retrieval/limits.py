"""Numbers that providers are built with or find in a call's defaults, checked where they are used."""

from typing import Any

from ditto_tasks.contracts.base import MAX_LIMIT
from ditto_tasks.contracts.errors import RetrievalError

__all__ = ["checked_integer", "checked_limit", "first_given"]


def checked_limit(name: str, value: Any) -> int:
    """Return a number of candidates.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT when it is no integer from 1 to 10,000.
    """
    return checked_integer(name, value, MAX_LIMIT)


def checked_integer(name: str, value: Any, most: int | None = None) -> int:
    """Return a positive integer; 10.0 is one.

    Raises:
        RetrievalError: RETRIEVAL_INVALID_INPUT when it is none, or over `most`.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value != value // 1 or value < 1 or (most is not None and value > most):
        bound = "at least 1" if most is None else f"from 1 to {most:,}"
        raise RetrievalError(
            "RETRIEVAL_INVALID_INPUT", f"{name} is {value!r:.80}: it must be an integer {bound}"
        )
    return int(value)


def first_given(*values: Any) -> Any:
    """Return the first value that is not None: a wrong one, such as 0, is not passed over."""
    return next((value for value in values if value is not None), None)
