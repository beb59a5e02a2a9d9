"""The curve of a run: in the terminal as text, beside the record as `metrics.png`.

Invariant: both show the same rows of `metrics.jsonl`, and say what they show; a curve is drawn from what was recorded,
never from memory. Where success was judged, what is held out is the success rate over all tasks, in which failed
attempts are no success; else it is the reward of those that were scored, with how many of how many that were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.record.console import console
from ajet.record.held_out import rows_of_last_judge
from ajet.schema.commands import installs_extra

HALF_LIFE_STEPS = 2.0
"""Of the exponential mean that smooths what is trained on."""
FEWEST_DRAWN = 5
"""Points below which a chart shows nothing that a line does not."""
WIDTH = 60
"""Columns of a text curve where there is room."""
BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Dot bits of a braille cell, by row and column."""

Points = list[tuple[float, float]]


def points(rows: Iterable[Mapping[str, Any]], name: str) -> Points:
    """(step, value) of one number, where it was recorded and finite."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def smoothed(series: Points) -> Points:
    """Exponential mean over the steps, corrected for its start (Kingma & Ba 2015, section 3)."""
    kept: Points = []
    weight = total = 0.0
    for index, (step, value) in enumerate(series):
        gap = step - series[index - 1][0] if index else 1
        keep = 0.5 ** (gap / HALF_LIFE_STEPS)
        total = keep * total + (1 - keep) * value
        weight = keep * weight + (1 - keep)
        kept.append((step, total / weight))
    return kept


@dataclass(frozen=True, slots=True)
class Course:
    """One number over the steps."""

    points: Points
    label: str
    """What it is, in words."""
    errors: tuple[list[float], list[float]] | None = None
    """How far its 95 % interval goes below and above each point; None where no interval was recorded."""


def training_course(rows: Sequence[Mapping[str, Any]]) -> Course:
    """What was trained on: success over all attempts where the reward is nothing else, so that failing does not look
    like getting better; otherwise the reward of the scored ones. Where replies were given: the loss. Since the judge
    changed last."""
    if any("train/rows" in row for row in rows):
        return Course(points(rows, "loss"), "training loss")
    rows, since = _of_last_judge(rows)
    played = [row for row in rows if "train/reward" in row or "train/success_rate" in row]
    if played and all(_reward_is_success(row) for row in played):
        return Course(points(rows, "train/success_rate"), f"training success, of all attempts{since}")
    some_failed = any(row.get("train/scored", 0) < row.get("train/episodes", 0) for row in played)
    of = ", of scored attempts" if some_failed else ""
    return Course(points(rows, "train/reward"), f"training reward{of}{since}")


def held_out_course(rows: Sequence[Mapping[str, Any]]) -> Course:
    """The values of validations since the judge changed last, with their intervals."""
    if any("validation/rows" in row for row in rows):
        return Course(points(rows, "validation/loss"), "held-out loss")
    rows, since = _of_last_judge(rows)
    measured = [row for row in rows if row.get("validation/tasks") or row.get("validation/reward") is not None]
    if measured and all(row.get("validation/success_rate") is not None for row in measured):
        name, kind = "validation/success_rate", "success, of all tasks"
    else:
        name, kind = "validation/reward", "reward"
        measured = [row for row in measured if row.get(name) is not None]
    reaches = [reach for row in measured if (reach := _reach(row, name)) is not None]
    errors = ([low for low, _ in reaches], [high for _, high in reaches]) if len(reaches) == len(measured) else None
    return Course(points(measured, name), f"held-out {kind}{_scored(measured)}{since}", errors)


def _of_last_judge(rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], str]:
    """The rows since the judge changed last, and words that say so; "" where it never did."""
    found = rows_of_last_judge(rows)
    left_out = rows[: len(rows) - len(found)]
    return found, f", since the judge changed after step {left_out[-1].get('step')}" if left_out else ""


def draw_curve(rows: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Print the curve where it has enough points, and write `metrics.png`; False for fewer than two points."""
    training, held_out = training_course(rows), held_out_course(rows)
    if max(len(training.points), len(held_out.points)) < 2:
        return False
    width = max(20, min(WIDTH, console.width - 12)) if console.is_terminal else WIDTH
    if len(training.points) + len(held_out.points) >= FEWEST_DRAWN:
        console.print(text_curve(training, held_out, width=width), markup=False, soft_wrap=True)
    draw_png(rows, path, title=path.parent.name)
    return True


def _reward_is_success(row: Mapping[str, Any]) -> bool:
    """Whether the rewards of a step add up to its successes."""
    rate, counted = row.get("train/success_rate"), row.get("train/episodes", 0) - row.get("train/left_out", 0)
    rewards = (row.get("train/reward") or 0.0) * row.get("train/scored", 0)
    return rate is not None and abs(rewards - rate * counted) < 1e-6 * max(1, counted)


def _reach(row: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The distance of a validation's 95 % interval below and above its value."""
    if name == "validation/success_rate":
        low, high = row.get("validation/success_low"), row.get("validation/success_high")
        return None if low is None or high is None else (row[name] - low, high - row[name])
    error = row.get("validation/reward_error")
    return None if error is None else (error, error)


def _scored(measured: Sequence[Mapping[str, Any]]) -> str:
    """The number of scored attempts and of all, where that is known; the fewest and the most."""
    known = [row for row in measured if row.get("validation/scored") is not None and row.get("validation/episodes")]
    if not known:
        return ""
    counts = sorted({int(row["validation/scored"]) for row in known})
    least, most = counts[0], counts[-1]
    of = max(int(row["validation/episodes"]) for row in known)
    return f" ({least if least == most else f'{least} to {most}'} of {of} scored)"


def text_curve(training: Course, held_out: Course, *, width: int = WIDTH, height: int = 10) -> str:
    """The smoothed course of training as a line of braille dots and each validation as `o`; [height] lines and an axis
    below a line that says what is what."""
    validation = held_out.points
    line = smoothed(training.points)
    everything = line + validation
    left, right = min(x for x, _ in everything), max(x for x, _ in everything)
    low, high = min(y for _, y in everything), max(y for _, y in everything)
    if high - low < 1e-9:  # one value: from 0 to it, so that no axis of a rate goes below 0
        low, high = (0.0, 1.0) if abs(high) < 1e-9 else (min(low, 0.0), max(high, 0.0))
    cells = [[0] * width for _ in range(height)]

    def place(x: float, y: float) -> tuple[int, int]:
        column = (x - left) / max(right - left, 1e-9) * (2 * width - 1)
        row = (high - y) / (high - low) * (4 * height - 1)
        return round(row), round(column)

    for (x0, y0), (x1, y1) in zip(line, line[1:] or line, strict=False):
        (r0, c0), (r1, c1) = place(x0, y0), place(x1, y1)
        dots = max(abs(r1 - r0), abs(c1 - c0), 1)
        for dot in range(dots + 1):
            row, column = round(r0 + (r1 - r0) * dot / dots), round(c0 + (c1 - c0) * dot / dots)
            cells[row // 4][column // 2] |= BRAILLE[row % 4][column % 2]
    canvas = [[chr(0x2800 + cell) if cell else " " for cell in row] for row in cells]
    for x, y in validation:
        row, column = place(x, y)
        canvas[row // 4][column // 2] = "o"

    places = max(2, 1 - math.floor(math.log10(high - low)))
    labels = [f"{high:.{places}f}", *[""] * (height - 2), f"{low:.{places}f}"]
    pad = max(map(len, labels))
    drawn = [f"{label:>{pad}} │{''.join(row).rstrip()}" for label, row in zip(labels, canvas, strict=True)]
    first, last = f"{left:g}", f"{right:g}"
    named = [f"{training.label} (smoothed)"] if line else []
    legend = "; ".join(named + ([f"o: {held_out.label}"] if validation else []))
    axis = f"{' ' * pad} └{'─' * width}"
    return "\n".join([legend, *drawn, axis, f"{' ' * pad}  {first}{last:>{width - len(first)}}"])


def draw_png(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Write the picture: training at each step, its smoothed course, and what was held out with its intervals."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        console.print(f"metrics.png was not drawn: {installs_extra('local')} brings matplotlib.", markup=False)
        return
    training, held_out = training_course(rows), held_out_course(rows)
    figure = Figure(figsize=(7.2, 4.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if training.points:
        axes.plot(*zip(*training.points, strict=True), ".", color="#9db8d9", markersize=5, label=training.label)
        axes.plot(*zip(*smoothed(training.points), strict=True), color="#2a5f9e", linewidth=2, label="smoothed")
    if held_out.points:
        label = held_out.label + (", 95 % interval" if held_out.errors else "")
        steps, values = zip(*held_out.points, strict=True)
        axes.errorbar(
            steps, values, yerr=held_out.errors, fmt="o--", color="#c8553d", markersize=6,
            linewidth=1.2, elinewidth=0.9, capsize=2.5, label=label,
        )  # fmt: skip
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("training step")
    axes.set_ylabel(_quantity(training, held_out))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower left")  # an interval would lie behind it
    figure.savefig(path)


def _quantity(*drawn: Course) -> str:
    """The name of what the axis of values counts."""
    if any("loss" in each.label for each in drawn if each.points):
        return "loss"
    rates = {"success" in each.label for each in drawn if each.points}
    return "success rate" if rates == {True} else "mean reward" if rates == {False} else "mean reward, success rate"
