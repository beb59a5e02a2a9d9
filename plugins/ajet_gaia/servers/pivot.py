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
    head, data_rows = list(table[0]), table[1:]
    for name in (*rows, *values, *columns):
        if name not in head:
            raise ToolError(f"there is no column {name}; there are: {', '.join(map(str, head))}")

    def key(row: Sequence[Any], names: Sequence[str]) -> tuple[Any, ...]:
        return tuple(row[head.index(name)] for name in names)

    groups: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Sequence[Any]]]] = {}
    for row in data_rows:
        groups.setdefault(key(row, rows), {}).setdefault(key(row, columns), []).append(row)
    column_groups = sorted({column_group for group in groups.values() for column_group in group}, key=str)
    titles = [
        f"{value} {' '.join(map(str, column_group))}".strip() for column_group in column_groups for value in values
    ]
    result: list[list[Any]] = [[*rows, *titles]]
    for group in sorted(groups, key=str):
        result.append([*group])
        for column_group in column_groups:
            for value in values:
                group_values = [row[head.index(value)] for row in groups[group].get(column_group, [])]
                numbers = [number for number in group_values if isinstance(number, int | float)]
                summarized_values = group_values if summary == "count" else numbers
                result[-1].append(SUMMARIES[summary](summarized_values) if summarized_values else None)
    return result
