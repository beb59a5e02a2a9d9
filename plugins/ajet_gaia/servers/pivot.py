"""Summarizes a table by its columns, like a spreadsheet's pivot table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from .tool import ToolError

SUMMARIES: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "average": fmean,
    "sum": sum,
    "count": len,
    "min": min,
    "max": max,
}


def pivot(
    table: Sequence[Sequence[Any]], rows: Sequence[str], values: Sequence[str], columns: Sequence[str], summary: str
) -> list[list[Any]]:
    """Return a table with a row per group of `rows` and a column per value column and group of `columns`, with a head.

    Args:
        summary: one of SUMMARIES. Cells without a number count for `count` only.

    Raises:
        ToolError: a column name is unknown.
    """
    head, body = list(table[0]), table[1:]
    for name in (*rows, *values, *columns):
        if name not in head:
            raise ToolError(f"there is no column {name}; there are: {', '.join(map(str, head))}")

    def key(row: Sequence[Any], names: Sequence[str]) -> tuple[Any, ...]:
        return tuple(row[head.index(name)] for name in names)

    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Sequence[Any]]]] = {}
    for row in body:
        groups.setdefault(key(row, rows), {}).setdefault(key(row, columns), []).append(row)
    across = sorted({each for group in groups.values() for each in group}, key=str)
    titles = [f"{value} {' '.join(map(str, each))}".strip() for each in across for value in values]
    made: list[list[Any]] = [[*rows, *titles]]
    for group in sorted(groups, key=str):
        made.append([*group])
        for each in across:
            for value in values:
                group_values = [row[head.index(value)] for row in groups[group].get(each, [])]
                numbers = [number for number in group_values if isinstance(number, int | float)]
                counted = group_values if summary == "count" else numbers
                made[-1].append(SUMMARIES[summary](counted) if counted else None)
    return made
