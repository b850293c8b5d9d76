"""Origins: scheme, host and port of a web address, in one spelling."""

import ipaddress
import re

__all__ = ["exact_origin", "origin_of"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_ORIGIN = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)"  # other hosts in punycode, so that all readers agree on them
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE | re.ASCII,
)


def origin_of(url: str) -> str:
    """Return the origin of an http or https URL: in lower case, with a port where it is not the scheme's own.

    Raises:
        ValueError: it is no such URL, or holds credentials; the message shows nothing of it.
    """
    found = _ORIGIN.match(url)
    if found is None or url[found.end() : found.end() + 1] not in ("", "/", "?", "#"):
        raise ValueError("must be a URL such as https://HOST:PORT/PATH, without credentials")
    scheme = found["scheme"].lower()
    port = int(found["port"] or _DEFAULT_PORTS[scheme])
    if not 1 <= port <= 65_535:
        raise ValueError("must have a port in 1..65535")
    written = "" if port == _DEFAULT_PORTS[scheme] else f":{port}"
    return f"{scheme}://{_host(found['host'].lower())}{written}"


def exact_origin(text: str) -> str:
    """Return an origin in its one spelling; a slash at its end is nothing, a path is refused.

    Raises:
        ValueError: it is no origin; the message shows nothing of it.
    """
    if not _ORIGIN.fullmatch(text.removesuffix("/")):
        raise ValueError("must be an origin such as https://HOST or http://HOST:PORT, and no more")
    return origin_of(text)


def _host(host: str) -> str:
    if not host.startswith("["):
        return host
    try:
        return f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]"
    except ValueError:
        raise ValueError("must have an IPv6 address between its brackets") from None
