"""Joins ditto.yaml and the environment into one frozen `DittoConfig`."""

import os
from collections.abc import Mapping
from pathlib import Path

from ditto_tasks.config.environment import DEFAULT_PATH, read_environment
from ditto_tasks.config.model import DittoConfig, Settings

__all__ = ["load_config"]


def load_config(
    path: str | Path | None = DEFAULT_PATH, environ: Mapping[str, str] | None = None
) -> DittoConfig:
    """Read a file and the environment, once; nothing else reads either.

    Args:
        path: the file, which must be there; None: the defaults.
        environ: the variables; None: those of this process.

    Raises:
        ConfigError: something is wrong; each line of the message names file, line, key and remedy.
    """
    env = read_environment(os.environ if environ is None else environ)
    settings = Settings() if path is None else _of_file(Path(path))
    return DittoConfig(
        runtime=settings.runtime,
        workers=settings.workers,
        shared=settings.shared,
        transport=settings.transport,
        schedules=settings.schedules,
        broker_url=env.broker_url,
        result_url=env.result_url,
        memory_store_url=env.memory_store_url,
        index_url=env.index_url,
        embedding=env.embedding,
        allow_network=env.allow_network,
        capabilities=env.capabilities,
        environment=env.environment,
        workspace=env.workspace,
        path=None if path is None else Path(path),
    )


def _of_file(path: Path) -> Settings:
    """Read the settings of a file; what reads YAML is loaded only then, for an import must be light."""
    from ditto_tasks.config.file import read_settings

    return read_settings(path)
