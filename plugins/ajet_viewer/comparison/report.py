"""Prints a comparison of groups of runs, and writes it as CSV and as a picture.

Invariant: each mean states over how many runs it is, and each interval whether it is over runs or over tasks.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.table import Table

from ajet.record.console import console, counted, make_table, print_line, printable
from ajet.record.curve import Points
from ajet.record.intervals import half_width, plus_minus
from ajet.schema.errors import MissingExtraError, UserError
from ajet_viewer.comparison.differences import compare_groups
from ajet_viewer.comparison.groups import ComparedRun, RunComparison, RunGroup, accumulate_costs

CELL = 7
"""Columns of a number in a table of curves, with the spaces around it."""
WIDEST_LABEL = 24
"""Columns of a label that is not wrapped, if there is room."""
NUMBERS = 64
"""Columns that the numbers of the first table need."""
COLUMNS = (
    "group", "run", "seed", "step", "minutes", "processor_seconds", "train_reward", "train_success",
    "held_out_reward", "held_out_success", "held_out_success_low", "held_out_success_high",
)  # fmt: skip
METRICS = {
    "train_reward": "train/reward", "train_success": "train/success_rate", "held_out_reward": "validation/reward",
    "held_out_success": "validation/success_rate", "held_out_success_low": "validation/success_low",
    "held_out_success_high": "validation/success_high",
}  # fmt: skip


def print_comparison(comparison: RunComparison, target: float | None = None) -> None:
    """Print results, costs, curves and differences.

    Args:
        target: Held-out value whose cost is shown too.
    """
    _print_results(comparison)
    if target is not None:
        _print_costs_to(comparison, target)
    _print_curves(comparison, "Training reward, smoothed", lambda run: run.reward_curve())
    _print_curves(comparison, f"Held-out {comparison.quantity}", lambda run: run.held_out_curve(comparison.quantity))
    console.print()
    for difference in compare_groups(comparison):
        change = difference.difference or 0.0
        style = None if not difference.is_real else "green" if change > 0 else "red"
        print_line(printable(difference.describe()), style=style)
    judges = {run.judge for group in comparison.groups for run in group.runs if run.judge}
    if len(judges) > 1:
        print_line("The runs were scored by different judges, or by changed code of one.", style="yellow")


def to_json(comparison: RunComparison, target: float | None = None) -> dict[str, Any]:
    """Return all numbers of a comparison as JSON values."""
    return {
        "quantity": comparison.quantity,
        "groups": [_group_to_json(comparison, group, target) for group in comparison.groups],
        "differences": [asdict(difference) | {"real": difference.is_real} for difference in compare_groups(comparison)],
    }


def list_rows(comparison: RunComparison) -> Iterator[dict[str, Any]]:
    """Yield a row for each training step and each validation of each run, with the cost so far."""
    for group in comparison.groups:
        for run in group.runs:
            for row, cost in zip(run.rows, accumulate_costs(run.rows), strict=True):
                values = {name: row.get(metric) for name, metric in METRICS.items()}
                if all(value is None for value in values.values()):
                    continue
                costs = {"minutes": round(cost.seconds / 60, 4), "processor_seconds": cost.processor}
                yield {"group": group.label, "run": run.name, "seed": run.seed, "step": row["step"], **costs, **values}


def write_csv(comparison: RunComparison, file: Path) -> None:
    """Write the rows as CSV. Raises UserError if the file cannot be written."""
    try:
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(list_rows(comparison))
    except OSError as error:
        raise UserError(f"The table cannot be written: {error.strerror}.", where=f"--csv {file}") from error


def draw_picture(comparison: RunComparison, file: Path) -> None:
    """Draw training and held-out curves: a line per group, its 95 % interval over runs as a band.

    Raises:
        MissingExtraError: matplotlib is missing.
        UserError: the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise MissingExtraError("matplotlib", "local", needed_for="--picture") from None
    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    training_axes, held_out_axes = figure.subplots(1, 2)
    for group_index, group in enumerate(comparison.groups):
        color = f"C{group_index}"
        for axes, curves, marker in (
            (training_axes, [run.reward_curve() for run in group.runs], ""),
            (held_out_axes, [run.held_out_curve(comparison.quantity) for run in group.runs], "o"),
        ):
            means = average_curves(curves)
            if not means:
                continue
            steps, values, errors = zip(*means, strict=True)
            axes.plot(steps, values, color=color, marker=marker, markersize=4, linewidth=1.8, label=group.label)
            low, high = (
                [value + sign * (error or 0.0) for value, error in zip(values, errors, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    for axes, title in (
        (training_axes, "training reward, smoothed"),
        (held_out_axes, f"held-out {comparison.quantity}"),
    ):
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    # One legend for both pictures: a group has the same color in each.
    line_by_label = {line.get_label(): line for axes in (training_axes, held_out_axes) for line in axes.get_lines()}
    legend_labels = [
        f"{group.label}, {counted(len(group.runs), 'run')}"
        for group in comparison.groups
        if group.label in line_by_label
    ]
    drawn_lines = [line_by_label[group.label] for group in comparison.groups if group.label in line_by_label]
    figure.legend(drawn_lines, legend_labels, frameon=False, fontsize=9, loc="outside lower left", ncols=4)
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:  # ValueError: matplotlib does not know the format
        raise UserError(f"The picture cannot be written: {error}.", where=f"--picture {file}") from error


def average_curves(curves: Sequence[Points]) -> list[tuple[float, float, float | None]]:
    """Return (step, mean, half of the 95 % interval over runs) of the steps that all curves have."""
    values = [dict(curve) for curve in curves if curve]
    if not values:
        return []
    steps = sorted(set(values[0]).intersection(*values))
    values_by_step = [(step, [curve[step] for curve in values]) for step in steps]
    return [(step, fmean(at_step), half_width(at_step)) for step, at_step in values_by_step]


def _print_results(comparison: RunComparison) -> None:
    """Print a table of the groups: runs, steps, training reward, held-out mean with its interval, and costs.

    The column "over" says what the interval is over: the group's runs, or the tasks of its only run.
    """
    table = _make_table(comparison)
    for name in ("runs", "steps", "training", f"held-out {comparison.quantity}", "over", "min", "CPU s"):
        table.add_column(name, justify="right")
    for group in comparison.groups:
        held_out, error, interval_over = _measure_group(comparison, group)
        last_rewards = [curve[-1][1] for run in group.runs if (curve := run.reward_curve())]
        cpu_seconds = [run.cost.processor for run in group.runs]
        known_seconds = [value for value in cpu_seconds if value is not None]
        table.add_row(
            printable(group.label),
            str(len(group.runs)),
            _format_range([run.cost.steps for run in group.runs]),
            f"{fmean(last_rewards):.3g}{plus_minus(half_width(last_rewards), '.2g')}" if last_rewards else "–",
            "–" if held_out is None else _format_value(comparison, held_out, error),
            interval_over,
            f"{fmean(run.cost.seconds for run in group.runs) / 60:.1f}",
            f"{fmean(known_seconds):.0f}" if len(known_seconds) == len(cpu_seconds) else "–",
        )
    console.print(table)
    console.print("Means over runs, 95 % intervals; training: smoothed reward of the last step.", style="dim")


def _measure_group(comparison: RunComparison, group: RunGroup) -> tuple[float | None, float | None, str]:
    """Return the held-out mean, half of its interval, and what the interval is over."""
    means = comparison.score_group(group)
    if not means:
        return None, None, "–"
    if len(means) > 1:
        return fmean(means), half_width(means), f"{len(means)} runs"
    by_task = next(scores for run in group.runs if (scores := comparison.score_run(run)))
    return means[0], half_width(list(by_task.values())), counted(len(by_task), "task")


def _print_costs_to(comparison: RunComparison, target: float) -> None:
    """Print the median cost up to the first validation at or above the target."""
    table = _make_table(comparison)
    for name in ("reached", "steps", "min", "CPU s"):
        table.add_column(name, justify="right")
    for group in comparison.groups:
        costs = [run.cost_to(comparison.quantity, target) for run in group.runs]
        known_costs = [cost for cost in costs if cost is not None]
        processor_seconds = [cost.processor for cost in known_costs if cost.processor is not None]
        table.add_row(
            printable(group.label),
            f"{len(known_costs)} of {len(costs)}",
            f"{median(cost.steps for cost in known_costs):g}" if known_costs else "–",
            f"{median(cost.seconds for cost in known_costs) / 60:.1f}" if known_costs else "–",
            f"{median(processor_seconds):.0f}" if known_costs and len(processor_seconds) == len(known_costs) else "–",
        )
    console.print(f"\nMedian cost to a held-out {comparison.quantity} of {target:g}", style="dim")
    console.print(table)


def _print_curves(comparison: RunComparison, title: str, curve_of: Callable[[ComparedRun], Points]) -> None:
    """Print the mean curve of each group at as many steps as the terminal has room for."""
    mean_curves = {group.label: average_curves([curve_of(run) for run in group.runs]) for group in comparison.groups}
    steps = sorted({step for curve in mean_curves.values() for step, _, _ in curve})
    if len(steps) < 2:
        return
    max_columns = max(2, (console.width - _measure_labels(comparison)) // CELL)
    # Too many steps: print some at equal distances, always the first and the last.
    shown_steps = (
        steps
        if len(steps) <= max_columns
        else [steps[round(column * (len(steps) - 1) / (max_columns - 1))] for column in range(max_columns)]
    )
    table = _make_table(comparison)
    for step in shown_steps:
        table.add_column(f"{step:g}", justify="right", min_width=CELL - 2)
    for label, curve in mean_curves.items():
        values = {step: value for step, value, _ in curve}
        table.add_row(printable(label), *(f"{values[step]:.3f}" if step in values else "–" for step in shown_steps))
    console.print(f"\n{title}, by step", style="dim")
    console.print(table)


def _make_table(comparison: RunComparison) -> Table:
    """Return a table whose first column has the labels."""
    table = make_table()
    width = _measure_labels(comparison)
    table.add_column("group", overflow="fold", min_width=width, max_width=width)
    return table


def _measure_labels(comparison: RunComparison) -> int:
    """Return the width in characters of the labels' column, which leaves room for the numbers."""
    max_width = max(len("group"), min(WIDEST_LABEL, console.width - NUMBERS))
    return min(max_width, max(len("group"), *(len(group.label) for group in comparison.groups)))


def _group_to_json(comparison: RunComparison, group: RunGroup, target: float | None) -> dict[str, Any]:
    """Return the numbers of a group and its runs as JSON values, with the cost up to the held-out value `target`."""
    held_out, error, interval_over = _measure_group(comparison, group)
    runs = [
        {
            "run": run.name, "seed": run.seed, "validated_at": run.validated, **asdict(run.cost),
            "held_out": fmean(scores.values()) if (scores := comparison.score_run(run)) else None,
            "to_target": None if target is None or (cost := run.cost_to(comparison.quantity, target)) is None
            else asdict(cost),
        }
        for run in group.runs
    ]  # fmt: skip
    return {"label": group.label, "held_out": held_out, "error": error, "interval_over": interval_over, "runs": runs}


def _format_value(comparison: RunComparison, value: float, error: float | None) -> str:
    """Format a held-out mean with half of its interval: a percentage for success, a plain number for a reward."""
    if comparison.quantity == "success":
        return f"{value:.1%}{plus_minus(error, '.1%')}"
    return f"{value:.3g}{plus_minus(error, '.2g')}"


def _format_range(values: Sequence[int]) -> str:
    """Format numbers as their smallest and largest value, or as one number if all are equal."""
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)}–{max(values)}"
