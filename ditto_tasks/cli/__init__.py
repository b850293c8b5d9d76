"""The console command `ditto-tasks`."""

import click

__all__ = ["main"]


@click.group()
def main() -> None:
    """Agent nodes as Celery tasks."""
