"""The options that many commands share, and what they become."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ditto_tasks.config import DittoConfig, find_config, load_config
from ditto_tasks.embedded.state import with_embedded_broker

__all__ = ["as_json", "config_file", "read_config", "timeout"]

F = TypeVar("F", bound=Callable[..., Any])


def config_file(command: F) -> F:
    """Add `--config`."""
    return click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Configuration file; by default DITTO_CONFIG, else ditto.yaml if it is there.",
    )(command)


def as_json(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "is_json", is_flag=True, help="Print JSON, for a pipe.")(command)


def timeout(command: F) -> F:
    """Add `--timeout`."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="For the whole call, queue included; by default runtime.timeoutMs.",
    )(command)


def read_config(path: Path | None) -> DittoConfig:
    """Read file and environment; a broker that `up` runs in the workspace stands in for one not named.

    Raises:
        ConfigError: something is wrong with them.
    """
    return with_embedded_broker(load_config(path or find_config(os.environ), os.environ))
