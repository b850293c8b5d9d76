"""What the benchmark scripts share: measuring in turns, rows with a goal, table, JSON, exit status."""

import json
import platform
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["Row", "finish", "medians", "turns"]


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison.

    Attributes:
        name: what was measured.
        ours: our figure, in `unit`.
        reference: the figure that it is held against, in `unit`; None: there is none.
        goal: the bound on what `measure` says; None: shown for information, holds always.
        unit: of both figures, for example `µs` or `records/s`.
        better: whether the goal is the most (`lower`) or the least (`higher`) that is allowed.
        measure: what the goal bounds: ours / reference, ours - reference, or ours alone.
    """

    name: str
    ours: float
    reference: float | None
    goal: float | None
    unit: str
    better: Literal["lower", "higher"] = "lower"
    measure: Literal["ratio", "difference", "value"] = "ratio"

    @property
    def ratio(self) -> float | None:
        """ours / reference; None without a reference."""
        return self.ours / self.reference if self.reference else None

    @property
    def holds(self) -> bool:
        """Whether the goal is held."""
        if self.goal is None:
            return True
        reached = self._reached()
        return reached <= self.goal if self.better == "lower" else reached >= self.goal

    @property
    def goal_text(self) -> str:
        """The goal as the table shows it."""
        if self.goal is None:
            return "-"
        sign = "≤" if self.better == "lower" else "≥"
        form = {
            "ratio": f"{self.goal:g}×",
            "difference": f"reference {self.goal:+g} {self.unit}",
            "value": f"{self.goal:g} {self.unit}",
        }
        return f"{sign} {form[self.measure]}"

    def _reached(self) -> float:
        if self.measure == "value":
            return self.ours
        if not self.reference:
            raise ValueError(f"{self.name}: a {self.measure} needs a reference")
        return self.ours / self.reference if self.measure == "ratio" else self.ours - self.reference


def turns(rounds: int, *acts: Callable[[int], Any]) -> list[list[float]]:
    """Run the acts in turn, round after round, and return the seconds that each took, a number a round.

    Taking turns spreads over all of them whatever else the machine does meanwhile; another one begins each
    time. Each is given the number of the round.
    """
    taken: list[list[float]] = [[] for _ in acts]
    for number in range(rounds):
        for place in range(len(acts)):
            which = (place + number) % len(acts)
            start = time.perf_counter()
            acts[which](number)
            taken[which].append(time.perf_counter() - start)
    return taken


def medians(rounds: int, *acts: Callable[[int], Any]) -> list[float]:
    """Return the median of the seconds that each took in `turns`."""
    return [statistics.median(times) for times in turns(rounds, *acts)]


def finish(rows: Sequence[Row], json_path: str | None = None) -> int:
    """Print the table, write JSON if asked to, and return the exit status: 1 when a goal is missed."""
    _print_table(rows)
    if json_path is not None:
        Path(json_path).write_text(json.dumps(_document(rows), indent=2, ensure_ascii=False) + "\n")
    missed = [row.name for row in rows if not row.holds]
    if missed:
        print(f"\nmissed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _print_table(rows: Sequence[Row]) -> None:
    head = ("", "ours", "reference", "unit", "ratio", "goal", "holds")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        print(
            "  ".join(
                _aligned(cell, width, place)
                for place, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
        )


def _aligned(cell: str, width: int, place: int) -> str:
    return cell.rjust(width) if place in (1, 2, 4) else cell.ljust(width)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        _figure(row.ours),
        "-" if row.reference is None else _figure(row.reference),
        row.unit,
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        row.goal_text,
        "-" if row.goal is None else "yes" if row.holds else "NO",
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _document(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "machine": platform.platform(),
        "rows": [
            {
                "name": row.name,
                "ours": row.ours,
                "reference": row.reference,
                "ratio": row.ratio,
                "unit": row.unit,
                "goal": row.goal_text,
                "holds": row.holds,
            }
            for row in rows
        ],
    }
