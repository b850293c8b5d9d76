"""`ditto-tasks search` and `targets`: candidates with their reasons, and what there is to search."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from ditto_tasks.cli.invoke import connected
from ditto_tasks.cli.options import as_json, config_file, timeout
from ditto_tasks.cli.output import print_json, print_table
from ditto_tasks.contracts.base import MAX_LIMIT
from ditto_tasks.contracts.reindex import RECORDS_TARGET

__all__ = ["print_candidates", "print_explanation", "print_targets", "search", "targets"]

_SHOWN = 160  # characters of a candidate in a table


@click.command()
@click.argument("query")
@click.option("--target", default=RECORDS_TARGET, show_default=True, help="What is searched.")
@click.option("--strategy", help="How: keyword, vector, hybrid; by default the target's own choice.")
@click.option("--limit", type=click.IntRange(1, MAX_LIMIT), help="Most candidates; by default the worker's.")
@click.option("--filter", "filters", multiple=True, metavar="KEY=VALUE", help="key, namespace or kind.")
@click.option("--explain", is_flag=True, help="Show where each rank comes from, and what was dropped.")
@timeout
@as_json
@config_file
def search(
    query: str,
    target: str,
    strategy: str | None,
    limit: int | None,
    filters: tuple[str, ...],
    explain: bool,
    timeout: float | None,
    is_json: bool,
    config_path: Path | None,
) -> None:
    """Find candidates by relevance.

    \b
    Examples:
      ditto-tasks search "how is a call cancelled" --limit 3
      ditto-tasks search "late acks" --strategy hybrid --filter kind=document --explain
    """
    input: dict[str, Any] = {"query": {"content": query}, "target": {"name": target}}
    if strategy is not None:
        input["strategy"] = strategy
    if limit is not None:
        input["limit"] = limit
    if filters:
        input["filter"] = dict(_pair(text) for text in filters)
    if explain:
        input["options"] = {"explain": True}
    with connected(config_path) as runtime:
        output = runtime.invoke("RETRIEVAL.SEARCH", input, timeout=timeout).unwrap()
    if is_json:
        print_json(output)
        return
    print_candidates(query, output)
    if explain:
        print_explanation(output)


@click.command()
@timeout
@as_json
@config_file
def targets(timeout: float | None, is_json: bool, config_path: Path | None) -> None:
    """Show what there is to search: strategies, sizes, the model, and whether the index is up to date.

    Drift counts the records that the index lacks, has in a former state, or has although they are gone; for
    that both are read whole.

    \b
    Example:
      ditto-tasks targets
    """
    with connected(config_path) as runtime:
        told = runtime.invoke("REINDEX.STATUS", {}, timeout=timeout).unwrap()["targets"]
    if is_json:
        print_json(told)
    else:
        print_targets(told)


def print_candidates(title: str, output: Mapping[str, Any]) -> None:
    """Print candidates as a table."""
    rows = [(rank, *_row(candidate)) for rank, candidate in enumerate(output["candidates"], 1)]
    print_table(f"{output.get('strategy', 'search')}: {title}", ("rank", "score", "where", "text"), rows)
    if not rows:
        click.echo("nothing found")


def print_explanation(output: Mapping[str, Any]) -> None:
    """Print where each rank comes from, and what was dropped; what branches add sums up to `fused`."""
    explanation = (output.get("metadata") or {}).get("explanation")
    if explanation is None:
        click.echo("this strategy has nothing to explain: its order is its backend's")
        return
    columns = ("rank", "score", "fused", "branch", "rank there", "score there", "weight", "adds")
    print_table("why", columns, (row for entry in explanation["candidates"] for row in _reasons(entry)))
    dropped = Counter(entry["reason"] for entry in explanation["dropped"])
    if dropped:
        click.echo("dropped: " + ", ".join(f"{count} {reason}" for reason, count in dropped.items()))


def print_targets(told: Iterable[Mapping[str, Any]]) -> None:
    """Print targets as a table."""
    print_table(
        "Targets",
        ("target", "strategies", "records", "indexed", "generation", "model", "drift"),
        [
            (
                target["name"],
                ", ".join(
                    f"{name} (default)" if name == target["defaultStrategy"] else name
                    for name in target["strategies"]
                ),
                target["records"],
                target["indexed"],
                _generation(target),
                f"{target['model']}, {target['dimensions']} dimensions",
                _drift(target),
            )
            for target in told
        ],
    )


def _generation(target: Mapping[str, Any]) -> str:
    others = [f"{role} {target[role]}" for role in ("building", "previous") if role in target]
    return "\n".join([str(target["generation"]), *others])


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE, such as kind=document", param_hint="--filter")
    return name, value


def _row(candidate: Mapping[str, Any]) -> tuple[str, str, str]:
    content = candidate["content"]
    record = content if isinstance(content, dict) and "content" in content else {"content": content}
    metadata = record.get("metadata") or {}
    where = metadata.get("path") or record.get("key") or candidate.get("id", "")
    if metadata.get("heading"):
        where += f"\n{metadata['heading']}"
    text = " ".join(str(record["content"]).split())
    score = f"{candidate['score']:.3g}" if "score" in candidate else ""
    return score, where, text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _reasons(entry: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    branches = entry.get("branches") or [{}]
    return [
        (
            entry["rank"] if place == 0 else "",
            _number(entry.get("score")) if place == 0 else "",
            _number(entry.get("before", entry).get("score")) if place == 0 else "",
            branch.get("strategy", ""),
            branch.get("rank", ""),
            _number(branch.get("score")),
            _number(branch.get("weight")),
            _number(branch.get("contribution")),
        )
        for place, branch in enumerate(branches)
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _drift(target: Mapping[str, Any]) -> str:
    drift = {**target["drift"], "of the wrong generation": target["wrongGeneration"]}
    told = [f"{count} {kind}" for kind, count in drift.items() if count]
    return ", ".join(told) or "none"
