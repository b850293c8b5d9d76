"""Where store and index are: at the addresses of the environment, else in files of the workspace."""

from ditto_tasks.config import DittoConfig
from ditto_tasks.contracts.errors import ConfigError
from ditto_tasks.embedded.state import FOLDER

__all__ = ["index_url", "store_url"]


def store_url(config: DittoConfig) -> str:
    """Name the memory store.

    Raises:
        ConfigError: the workspace's folder cannot be made.
    """
    return config.memory_store_url or _file(config, "memory.sqlite")


def index_url(config: DittoConfig) -> str:
    """Name the vector index.

    Raises:
        ConfigError: the workspace's folder cannot be made.
    """
    return config.index_url or _file(config, "index.sqlite")


def _file(config: DittoConfig, name: str) -> str:
    folder = config.workspace / FOLDER
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made ({error.strerror}): set DITTO_RUNTIME_WORKSPACE"
        ) from None
    return f"sqlite:///{folder / name}"
