"""The metric curve of a run: text in the terminal, `metrics.png` in the record, a live picture in a notebook.

Invariant: all three show the same rows of `metrics.jsonl`, never values from memory. If success was judged, the
held-out curve is the success rate over all tasks, counting failed attempts as unsolved; else the curve is the mean
reward of scored attempts, with their number. The notebook has one picture, redrawn until the run ends.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.record.console import console, print_line
from ajet.record.held_out import rows_of_last_judge
from ajet.schema.commands import format_extra_install

HALF_LIFE_STEPS = 2.0
"""Half-life of the exponential mean of training values, in steps."""
FEWEST_DRAWN = 5
"""Minimum number of points for a chart."""
WIDTH = 60
"""Columns of a text curve where there is room."""
BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Dot bits of a braille cell, by row and column."""

Points = list[tuple[float, float]]


def collect_points(rows: Iterable[Mapping[str, Any]], name: str) -> Points:
    """Return (step, value) of each metrics row that has a value for the metric `name`."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def smooth_points(series: Points) -> Points:
    """Return the exponential mean of a series over the steps.

    It is corrected for its start (Kingma & Ba 2015, section 3).
    """
    smoothed: Points = []
    weight = total = 0.0
    for index, (step, value) in enumerate(series):
        gap = step - series[index - 1][0] if index else 1
        decay = 0.5 ** (gap / HALF_LIFE_STEPS)
        total = decay * total + (1 - decay) * value
        weight = decay * weight + (1 - decay)
        smoothed.append((step, total / weight))
    return smoothed


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """One metric over training steps, with its name for the legend and optional 95 % intervals."""

    points: Points
    label: str
    """Name of the number, for a legend."""
    errors: tuple[list[float], list[float]] | None = None
    """Distances of the 95 % interval below and above each point; None without recorded intervals."""


def training_course(rows: Sequence[Mapping[str, Any]]) -> MetricCurve:
    """Return the training curve since the last change of the judge.

    The curve shows success over all attempts if rewards equal successes, so a rising failure rate cannot look like
    progress; else the reward of scored attempts; for supervised runs the loss.
    """
    if any("train/rows" in row for row in rows):
        return MetricCurve(collect_points(rows, "loss"), "training loss")
    rows, since = _of_last_judge(rows)
    rollout_rows = [row for row in rows if "train/reward" in row or "train/success_rate" in row]
    if rollout_rows and all(_reward_is_success(row) for row in rollout_rows):
        return MetricCurve(collect_points(rows, "train/success_rate"), f"training success, of all attempts{since}")
    some_failed = any(row.get("train/scored", 0) < row.get("train/episodes", 0) for row in rollout_rows)
    suffix = ", of scored attempts" if some_failed else ""
    return MetricCurve(collect_points(rows, "train/reward"), f"training reward{suffix}{since}")


def held_out_course(rows: Sequence[Mapping[str, Any]]) -> MetricCurve:
    """Return the curve of the validations since the last change of the judge, with their 95 % intervals.

    It is the success rate if every validation has one, else the mean reward; for supervised runs the loss.
    """
    if any("validation/rows" in row for row in rows):
        return MetricCurve(collect_points(rows, "validation/loss"), "held-out loss")
    rows, since = _of_last_judge(rows)
    measured = [row for row in rows if row.get("validation/tasks") or row.get("validation/reward") is not None]
    if measured and all(row.get("validation/success_rate") is not None for row in measured):
        name, kind = "validation/success_rate", "success, of all tasks"
    else:
        name, kind = "validation/reward", "reward"
        measured = [row for row in measured if row.get(name) is not None]
    interval_sides = [sides for row in measured if (sides := _interval_reach(row, name)) is not None]
    errors = (
        ([low for low, _ in interval_sides], [high for _, high in interval_sides])
        if len(interval_sides) == len(measured)
        else None
    )
    return MetricCurve(collect_points(measured, name), f"held-out {kind}{_describe_scored(measured)}{since}", errors)


def _of_last_judge(rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], str]:
    """Return the rows since the last change of the judge, and a note about the change ("" without one)."""
    last_rows = rows_of_last_judge(rows)
    earlier_rows = rows[: len(rows) - len(last_rows)]
    return last_rows, f", since the judge changed after step {earlier_rows[-1].get('step')}" if earlier_rows else ""


def draw_curve(rows: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Write the picture of the training curve, and print the curve as text if it has `FEWEST_DRAWN` points or more.

    Returns:
        False, with nothing written, if neither training nor validation has two points.
    """
    training, held_out = training_course(rows), held_out_course(rows)
    if max(len(training.points), len(held_out.points)) < 2:
        return False
    # 12 columns are for the axis and its labels.
    width = max(20, min(WIDTH, console.width - 12)) if console.is_terminal else WIDTH
    if len(training.points) + len(held_out.points) >= FEWEST_DRAWN:
        print_line(text_curve(training, held_out, width=width))
    draw_png(rows, path, title=path.parent.name)
    return True


def _reward_is_success(row: Mapping[str, Any]) -> bool:
    """True if the rewards of a step add up to its successes, so reward and success are the same number."""
    rate, attempts = row.get("train/success_rate"), row.get("train/episodes", 0) - row.get("train/left_out", 0)
    rewards = (row.get("train/reward") or 0.0) * row.get("train/scored", 0)
    return rate is not None and abs(rewards - rate * attempts) < 1e-6 * max(1, attempts)


def _interval_reach(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """Return how far a validation's 95 % interval extends below and above its value, or None without an interval."""
    if name == "validation/success_rate":
        low, high = row.get("validation/success_low"), row.get("validation/success_high")
        return None if low is None or high is None else (row[name] - low, high - row[name])
    error = row.get("validation/reward_error")
    return None if error is None else (error, error)


def _describe_scored(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return how many attempts of the validations were scored (" (30 to 32 of 32 scored)"), or "" if not recorded."""
    with_counts = [
        row for row in measured if row.get("validation/scored") is not None and row.get("validation/episodes")
    ]
    if not with_counts:
        return ""
    counts = sorted({int(row["validation/scored"]) for row in with_counts})
    least, most = counts[0], counts[-1]
    episodes = max(int(row["validation/episodes"]) for row in with_counts)
    return f" ({least if least == most else f'{least} to {most}'} of {episodes} scored)"


def text_curve(training: MetricCurve, held_out: MetricCurve, *, width: int = WIDTH, height: int = 10) -> str:
    """Draw the smoothed training curve in braille dots and each validation as `o`.

    Returns:
        Lines of text: a legend, `height` lines of `width` columns behind the axis labels, and an axis with the steps.
    """
    validation = held_out.points
    smoothed = smooth_points(training.points)
    all_points = smoothed + validation
    first_step, last_step = min(x for x, _ in all_points), max(x for x, _ in all_points)
    low, high = min(y for _, y in all_points), max(y for _, y in all_points)
    if high - low < 1e-9:  # one value: from 0 to it, so that no axis of a rate goes below 0
        low, high = (0.0, 1.0) if abs(high) < 1e-9 else (min(low, 0.0), max(high, 0.0))
    cells = [[0] * width for _ in range(height)]

    def find_dot(x: float, y: float) -> tuple[int, int]:
        """Return row and column of a point's dot; a cell has 4 rows and 2 columns of dots."""
        column = (x - first_step) / max(last_step - first_step, 1e-9) * (2 * width - 1)
        row = (high - y) / (high - low) * (4 * height - 1)
        return round(row), round(column)

    for (x0, y0), (x1, y1) in zip(smoothed, smoothed[1:] or smoothed, strict=False):
        (r0, c0), (r1, c1) = find_dot(x0, y0), find_dot(x1, y1)
        dots = max(abs(r1 - r0), abs(c1 - c0), 1)
        for dot in range(dots + 1):
            row, column = round(r0 + (r1 - r0) * dot / dots), round(c0 + (c1 - c0) * dot / dots)
            cells[row // 4][column // 2] |= BRAILLE[row % 4][column % 2]
    # The first braille character; its 8 low bits switch the dots of a cell, 2 wide and 4 high.
    canvas = [[chr(0x2800 + cell) if cell else " " for cell in row] for row in cells]
    for x, y in validation:
        row, column = find_dot(x, y)
        canvas[row // 4][column // 2] = "o"

    decimals = max(2, 1 - math.floor(math.log10(high - low)))
    labels = [f"{high:.{decimals}f}", *[""] * (height - 2), f"{low:.{decimals}f}"]
    pad = max(map(len, labels))
    plot_lines = [f"{label:>{pad}} │{''.join(row).rstrip()}" for label, row in zip(labels, canvas, strict=True)]
    first, last = f"{first_step:g}", f"{last_step:g}"
    legend_parts = [f"{training.label} (smoothed)"] if smoothed else []
    legend = "; ".join(legend_parts + ([f"o: {held_out.label}"] if validation else []))
    axis = f"{' ' * pad} └{'─' * width}"
    return "\n".join([legend, *plot_lines, axis, f"{' ' * pad}  {first}{last:>{width - len(first)}}"])


def draw_png(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Write a picture of the training values, their smoothed curve, and the validations with 95 % intervals.

    Without matplotlib, prints how to install it instead.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        console.print(
            f"metrics.png was not drawn, because matplotlib is not installed: {format_extra_install('local')}",
            markup=False,
        )
        return
    training, held_out = training_course(rows), held_out_course(rows)
    figure = Figure(figsize=(7.2, 4.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if training.points:
        axes.plot(*zip(*training.points, strict=True), ".", color="#9db8d9", markersize=5, label=training.label)
        axes.plot(*zip(*smooth_points(training.points), strict=True), color="#2a5f9e", linewidth=2, label="smoothed")
    if held_out.points:
        label = held_out.label + (", 95 % interval" if held_out.errors else "")
        steps, values = zip(*held_out.points, strict=True)
        axes.errorbar(
            steps, values, yerr=held_out.errors, fmt="o--", color="#c8553d", markersize=6,
            linewidth=1.2, elinewidth=0.9, capsize=2.5, label=label,
        )  # fmt: skip
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("training step")
    axes.set_ylabel(_axis_label(training, held_out))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower left")  # an interval would lie behind it
    figure.savefig(path)


def _axis_label(*drawn: MetricCurve) -> str:
    """Return the label of the value axis for the drawn curves: loss, success rate, mean reward, or the last two."""
    if any("loss" in curve.label for curve in drawn if curve.points):
        return "loss"
    are_rates = {"success" in curve.label for curve in drawn if curve.points}
    return (
        "success rate"
        if are_rates == {True}
        else "mean reward"
        if are_rates == {False}
        else "mean reward, success rate"
    )


FIGURE_WIDTH, HEIGHT, EDGE = 640, 220, 40
"""Of the picture, and of the room for its labels, in pixels."""
Show = Callable[[str], None]


def notebook_cell() -> Show | None:
    """Return a function that replaces the HTML of the running notebook cell, or None outside a notebook."""
    import sys

    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or any(base.__name__ == "TerminalInteractiveShell" for base in type(shell).__mro__):
        return None  # the class also covers the shell of IPython.embed()
    from IPython.display import HTML, display

    cell = display(HTML(""), display_id=True)
    return lambda shown: cell.update(HTML(shown))


class NotebookCurve:
    """The live curve of a run in a notebook cell, redrawn after each step."""

    def __init__(self, title: str, steps: int | None, rows: Sequence[Mapping[str, Any]], show: Show) -> None:
        """Args:
        title: Name of the run.
        steps: Number of planned steps, or None if unknown.
        rows: Metrics rows recorded so far.
        show: Replaces the cell's HTML, from `notebook_cell`.
        """
        self._title = title
        self._steps = steps
        self._show_html = show
        self._metric_rows: list[Mapping[str, Any]] = list(rows)
        self._last_line = ""
        self.draw()

    def add(self, row: Mapping[str, float], line: str) -> None:
        """Add the metrics row of a step or validation and redraw.

        Args:
            line: The printed summary of the row, shown below the curve.
        """
        self._metric_rows.append({name: value for name, value in row.items() if math.isfinite(value)})  # as recorded
        self._last_line = line
        self.draw()

    def draw(self, under_way: str = "") -> None:
        """Draw the curve into the notebook cell.

        Args:
            under_way: What the run does now, for the heading; "" for nothing.
        """
        last_step = max((int(row["step"]) for row in self._metric_rows), default=0)
        step_label = f"step {last_step}" + (f" of {self._steps}" if self._steps else "")
        heading = " · ".join(html.escape(text) for text in (self._title, step_label, under_way) if text)
        picture = render_svg(training_course(self._metric_rows), held_out_course(self._metric_rows))
        self._show_html(f"<b>{heading}</b><br>{picture}<pre>{html.escape(self._last_line)}</pre>")


def render_svg(training: MetricCurve, held_out: MetricCurve) -> str:
    """Return an SVG picture of the smoothed training curve as a line and of validations as dots with intervals.

    Returns:
        The SVG element as HTML, or "" without points.
    """
    smoothed, dots = smooth_points(training.points), held_out.points
    all_points = smoothed + dots
    if not all_points:
        return ""
    first_step, last_step = min(x for x, _ in all_points), max(x for x, _ in all_points)
    low, high = min(y for _, y in all_points), max(y for _, y in all_points)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5

    def find_pixel(x: float, y: float) -> tuple[float, float]:
        """Return the position of a point in the picture, with the origin at the top left."""
        across = (x - first_step) / max(last_step - first_step, 1e-9) * (FIGURE_WIDTH - 2 * EDGE) + EDGE
        return round(across, 1), round((high - y) / (high - low) * (HEIGHT - 2 * EDGE) + EDGE, 1)

    def text(x: float, y: float, words: str, anchor: str = "start") -> str:
        return f'<text x="{x}" y="{y}" font-size="12" text-anchor="{anchor}">{html.escape(words)}</text>'

    elements = [
        f'<line x1="{EDGE}" y1="{HEIGHT - EDGE}" x2="{FIGURE_WIDTH - EDGE}" y2="{HEIGHT - EDGE}" stroke="#888"/>',
        text(EDGE - 4, EDGE + 4, f"{high:.2f}", "end"),
        text(EDGE - 4, HEIGHT - EDGE + 4, f"{low:.2f}", "end"),
        text(EDGE, HEIGHT - EDGE + 16, f"{first_step:g}"),
        text(FIGURE_WIDTH - EDGE, HEIGHT - EDGE + 16, f"{last_step:g}", "end"),
    ]
    if smoothed:
        line_points = " ".join(f"{x},{y}" for x, y in (find_pixel(*point) for point in smoothed))
        elements.append(f'<polyline points="{line_points}" fill="none" stroke="#1f77b4" stroke-width="2"/>')
        elements.append(text(EDGE, 14, f"line: {training.label} (smoothed)"))
    for index, (x, y) in enumerate(dots):
        x_pixel, y_pixel = find_pixel(x, y)
        if held_out.errors is not None:
            below, above = (side[index] for side in held_out.errors)
            y_ends = find_pixel(x, max(low, y - below))[1], find_pixel(x, min(high, y + above))[1]
            elements.append(f'<line x1="{x_pixel}" y1="{y_ends[0]}" x2="{x_pixel}" y2="{y_ends[1]}" stroke="#d62728"/>')
        elements.append(f'<circle cx="{x_pixel}" cy="{y_pixel}" r="4" fill="#d62728"/>')
    if dots:
        elements.append(text(EDGE, 28, f"dots: {held_out.label}"))
    return f'<svg width="{FIGURE_WIDTH}" height="{HEIGHT}" style="background:#fff">{"".join(elements)}</svg>'
