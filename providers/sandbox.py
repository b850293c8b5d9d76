"""Which origins providers may reach: a guard for code of good will, no wall of the operating system."""

from collections.abc import Iterable
from typing import Protocol

from ditto_tasks.contracts.errors import DittoError, InvalidDefinition
from ditto_tasks.contracts.origin import exact_origin

__all__ = ["ANY", "OriginCheck", "PermissionDenied", "Sandbox"]

ANY = "*"  # in a list of permissions: all of them


class PermissionDenied(DittoError):
    """The sandbox does not permit this; the message names what was asked for."""

    code = "PERMISSION_DENIED"


class OriginCheck(Protocol):
    """What a provider that goes to the network asks first."""

    def assert_allowed(self, kind: str, name: str) -> None:
        """Go on only if this is permitted; of the kind `network` the names are origins.

        Raises:
            PermissionDenied: it is not.
        """
        ...


class Sandbox:
    """Permits what is listed and nothing else.

    Args:
        network: origins such as `https://api.example.com` or `http://127.0.0.1:8080`; `*` permits all.

    Raises:
        InvalidDefinition: the list is none of strings, or an entry is no origin; entries are not shown.
    """

    def __init__(self, *, network: Iterable[str] = ()) -> None:
        self._permitted = {"network": frozenset(map(_permission, _listed(network)))}

    def allows(self, kind: str, name: str) -> bool:
        """Tell whether this is permitted; a kind that nobody listed never is."""
        permitted = self._permitted.get(kind, frozenset())
        return ANY in permitted or _spelling(name) in permitted

    def assert_allowed(self, kind: str, name: str) -> None:
        """Go on only if this is permitted.

        Raises:
            PermissionDenied: it is not.
        """
        if not self.allows(kind, name):
            raise PermissionDenied(f"Permission denied: {kind}:{name}")


def _listed(network: Iterable[str]) -> Iterable[str]:
    if isinstance(network, str | bytes) or not isinstance(network, Iterable):
        raise InvalidDefinition("Invalid sandbox network permissions: must be a list of origins")
    return network


def _permission(entry: str) -> str:
    if entry == ANY:
        return entry
    try:
        return exact_origin(entry)
    except (ValueError, TypeError, AttributeError):  # of what is no string, too
        raise InvalidDefinition(
            "Invalid sandbox network permissions: each must be '*' or an origin such as https://HOST:PORT"
        ) from None


def _spelling(name: str) -> str | None:
    try:
        return exact_origin(name)
    except ValueError:
        return None
