"""`ditto-tasks config`: whether the settings are right."""

import os
from pathlib import Path

import click

from ditto_tasks.cli.options import as_json, config_file
from ditto_tasks.cli.output import print_json
from ditto_tasks.config import ENVIRONMENT, find_config, load_config

__all__ = ["config"]


@click.group()
def config() -> None:
    """Look after the settings."""


@config.command()
@as_json
@config_file
def check(is_json: bool, config_path: Path | None) -> None:
    """Check the configuration file and the environment; values of the environment are never shown.

    \b
    Example:
      ditto-tasks config check --config /etc/ditto/ditto.yaml
    """
    path = config_path or find_config(os.environ)
    load_config(path, os.environ)
    variables = [name for name in ENVIRONMENT if os.environ.get(name)]
    if is_json:
        print_json({"file": str(path) if path else None, "environment": variables})
        return
    click.echo(f"{path}: no mistakes" if path else "no file: the defaults hold")
    click.echo(f"from the environment: {', '.join(variables) or 'nothing'}")
