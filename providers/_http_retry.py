"""When a request that failed is sent again, and after how long; values in, values out."""

import random
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["RETRIED", "backoff", "retry_after", "wait_before"]

RETRIED = frozenset({429, 500, 502, 503, 504})  # what may be another answer the next time

FIRST_WAIT = 0.5  # seconds before the second attempt, at most; doubled with each further one
LONGEST_WAIT = 8.0  # seconds

_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)  # a fraction is no HTTP, but some servers give one


def wait_before(attempt: int, headers: Mapping[str, str]) -> float:
    """Return the seconds to wait before an attempt, numbered from 2: what the server asks, else `backoff`."""
    asked = retry_after(headers.get("retry-after", ""), headers.get("date", ""))
    return backoff(attempt) if asked is None else asked


def backoff(attempt: int) -> float:
    """Return seconds that double with each attempt, of which chance takes up to a half: clients part ways."""
    return random.uniform(0.5, 1.0) * min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt - 2, 16))


def retry_after(value: str, date: str = "") -> float | None:
    """Read a Retry-After header: seconds, or an HTTP date.

    Args:
        date: the answer's Date header: a moment is meant by the server's clock; without it, by ours.

    Returns:
        Seconds, 0 for a moment that has passed; None when it is neither.

    Source: RFC 9110, section 10.2.3.
    """
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    moment = _moment(value)
    if moment is None:
        return None
    now = _moment(date) or datetime.now(UTC)
    return max(0.0, (moment - now).total_seconds())


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):  # what the parser lets through of its own
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
