"""`ditto-tasks worker`: one Celery worker process for the nodes of some capabilities."""

import importlib.util
import sys
import uuid
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import click

import ditto_tasks
from ditto_tasks.cli.options import config_file, read_config

__all__ = ["worker", "worker_command"]


@click.command()
@click.argument("capabilities", metavar="CAPABILITY[,CAPABILITY...]")
@click.argument("celery_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- CELERY OPTIONS]")
@click.option("--quiet", is_flag=True, help="Warnings and errors only.")
@config_file
def worker(capabilities: str, celery_options: tuple[str, ...], quiet: bool, config_path: Path | None) -> None:
    """Run a worker for the nodes of a capability until SIGTERM or Ctrl-C.

    What stands after -- goes to Celery's worker; see `celery worker --help`.

    \b
    Examples:
      ditto-tasks worker memory
      ditto-tasks worker memory -- --loglevel DEBUG --concurrency 2
    """
    config = read_config(config_path)
    _bind_own_packages()
    from celery.bin.celery import celery

    factory: Any = importlib.import_module("workers.factory")
    names = [name.strip().lower() for name in capabilities.split(",")]
    app = factory.create_worker_app(config, workers=factory.configured_workers(config, names))
    celery.params[0].default = app  # as `app.worker_main` does, which would drop the exit status
    sys.exit(celery.main(args=_arguments(names, quiet, celery_options), standalone_mode=False))


def worker_command(capability: str, config_path: Path | None) -> list[str]:
    """Give the command line that runs one capability in a process of its own.

    `-P`: the present folder may hold modules of the application that are called like some of ours.
    """
    file = ["--config", str(config_path)] if config_path else []
    return [sys.executable, "-P", "-m", "ditto_tasks", "worker", capability, "--quiet", *file]


def _arguments(names: Sequence[str], quiet: bool, celery_options: Sequence[str]) -> list[str]:
    node_name = f"{'-'.join(names)}-{uuid.uuid4().hex[:8]}@%h"  # two of one name would hide each other
    level = "WARNING" if quiet else "INFO"
    return [
        *(["--quiet"] if quiet else []),
        "worker",
        "--hostname",
        node_name,
        "--loglevel",
        level,
        *celery_options,
    ]


def _bind_own_packages() -> None:
    """Import `workers` and `providers` from where we lie, whatever else of that name the path holds."""
    root = Path(ditto_tasks.__file__).parent.parent
    for name in ("providers", "workers"):
        spec = PathFinder.find_spec(name, [str(root)])
        if spec is None or spec.loader is None:
            raise click.ClickException(f"{root} holds no package {name}: install ditto-tasks again")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
