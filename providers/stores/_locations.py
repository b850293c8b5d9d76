"""Where an engine is: what the URLs of engines have in common that are servers, or files of one process."""

from ditto_tasks.contracts.errors import InvalidDefinition

__all__ = ["is_server", "location_of"]


def location_of(scheme: str, rest: str) -> tuple[str, str]:
    """Read what a URL has after its scheme, `HOST:PORT[/NAME]` or `/PATH`; return location and name, or "".

    Raises:
        InvalidDefinition: it is neither; credentials are never part of it.
    """
    if rest.startswith("/"):
        return rest[1:], ""
    address, _, name = rest.partition("/")
    if not address or any(mark in rest for mark in "@?#"):
        raise InvalidDefinition(
            f"{scheme}:// takes HOST:PORT or a third slash and a path, and no credentials or options: "
            f"{scheme}://localhost:1234/memories, {scheme}:////var/lib/memories.db"
        )
    return f"http://{address}", name


def is_server(location: str) -> bool:
    """Tell whether this is the address of a server, and no path."""
    return location.startswith(("http://", "https://"))
