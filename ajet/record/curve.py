"""The reward curve: in the terminal as text, beside the record as `metrics.png`.

Invariant: both show the same rows of `metrics.jsonl`; a curve is drawn from what was recorded, never from memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet.record.console import console

TRAINING = "train/reward"
VALIDATION = "validation/reward"
HALF_LIFE_STEPS = 2.0
"""Of the exponential mean that smooths the training reward."""
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


def draw_curve(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str = "") -> bool:
    """Print the curve and write `metrics.png`; False when there are fewer than two points to draw."""
    training, validation = points(rows, TRAINING), points(rows, VALIDATION)
    if max(len(training), len(validation)) < 2:
        return False
    console.print(text_curve(training, validation), markup=False, soft_wrap=True)
    draw_png(rows, path, title=title or path.parent.name)
    return True


def text_curve(training: Points, validation: Points, *, width: int = 60, height: int = 10) -> str:
    """The smoothed training reward as a line of braille dots and each validation as `o`; [height] lines and an axis."""
    line = smoothed(training)
    everything = line + validation
    left, right = min(x for x, _ in everything), max(x for x, _ in everything)
    low, high = min(y for _, y in everything), max(y for _, y in everything)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
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

    labels = [f"{high:.2f}", *[""] * (height - 2), f"{low:.2f}"]
    pad = max(map(len, labels))
    drawn = [f"{label:>{pad}} │{''.join(row).rstrip()}" for label, row in zip(labels, canvas, strict=True)]
    first, last = f"{left:g}", f"{right:g}"
    legend = "reward by step (smoothed)" + (", o: held out" if validation else "")
    axis = f"{' ' * pad} └{'─' * width}"
    return "\n".join([legend, *drawn, axis, f"{' ' * pad}  {first}{last:>{width - len(first)}}"])


def draw_png(rows: Sequence[Mapping[str, Any]], path: Path, *, title: str) -> None:
    """Write the picture: reward of each step, its smoothed course, and the held-out reward."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        console.print('metrics.png was not drawn: pip install "ajet[local]" brings matplotlib.', markup=False)
        return
    training, validation = points(rows, TRAINING), points(rows, VALIDATION)
    figure = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    if training:
        axes.plot(*zip(*training, strict=True), ".", color="#9db8d9", markersize=5, label="training, each step")
        axes.plot(*zip(*smoothed(training), strict=True), color="#2a5f9e", linewidth=2, label="training, smoothed")
    if validation:
        axes.plot(*zip(*validation, strict=True), "o--", color="#c8553d", markersize=6, linewidth=1.2, label="held out")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel("training step")
    axes.set_ylabel("mean reward per episode")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="best")
    figure.savefig(path)
