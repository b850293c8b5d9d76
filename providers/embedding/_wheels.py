"""Files of models that come in wheels: found where they are installed, and known by their digests."""

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ditto_tasks.contracts.errors import InvalidDefinition

__all__ = ["WheelFile", "require"]

REMEDY = "pip install 'ditto-tasks[embedded]'"


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file of an installed package, which is not imported for it.

    Attributes:
        path: below the package's directory.
        sha256: of its content; with another one, vectors would not be those that the identity promises.
    """

    package: str
    path: str
    sha256: str

    @property
    def name(self) -> str:
        """Enough of the digest to tell two files apart."""
        return self.sha256[:8]

    def verified(self) -> Path:
        """Return where the file is.

        Raises:
            InvalidDefinition: it is not installed, or has another content.
        """
        spec = find_spec(self.package)
        places = (spec and spec.submodule_search_locations) or []
        for place in places:
            path = Path(place, self.path)
            if path.is_file():
                return self._checked(path)
        raise InvalidDefinition(f"the package {self.package} with {self.path} is not installed: {REMEDY}")

    def _checked(self, path: Path) -> Path:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != self.sha256:
            raise InvalidDefinition(
                f"{self.path} of the package {self.package} is not the file that this release knows "
                f"(sha256 {digest[:8]}, expected {self.name}): {REMEDY}"
            )
        return path


def require(*packages: str) -> None:
    """Make sure that packages are installed, without importing them.

    Raises:
        InvalidDefinition: one is missing; the message says how to install it.
    """
    for package in packages:
        if find_spec(package) is None:
            raise InvalidDefinition(f"the embedding needs the package {package}: {REMEDY}")
