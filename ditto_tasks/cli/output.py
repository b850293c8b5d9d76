"""What commands print: results on standard output, everything else on standard error."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from ditto_tasks.contracts.node import NodeResult

__all__ = ["print_json", "print_result", "print_table", "say"]


def print_json(value: Any) -> None:
    """Print JSON: for people in a terminal, on one line into a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(value, ensure_ascii=False, indent=indent))


def print_result(result: NodeResult) -> None:
    """Print a NodeResult in wire form."""
    print_json(result.to_wire())


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, as wide as the terminal; cells are taken literally."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)


def say(message: str) -> None:
    """Tell the user how things go."""
    click.echo(message, err=True)
