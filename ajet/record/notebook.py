"""The curve of a run while it runs, in the notebook that runs it: one picture that is drawn anew, below it the last
line. Outside of a notebook there is none.

Invariant: it shows rows that are recorded anyway, as `metrics.png` does, and is left as it was when the run ended.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ajet.record.curve import Course, held_out_course, smoothed, training_course

WIDTH, HEIGHT, EDGE = 640, 220, 40
"""Of the picture, and of the room for its labels, in pixels."""
Show = Callable[[str], None]


def notebook_cell() -> Show | None:
    """Shows HTML in one place of the running cell, each time instead of what was there; None outside of a notebook."""
    import sys

    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or any(each.__name__ == "TerminalInteractiveShell" for each in type(shell).__mro__):
        return None  # that of IPython.embed() is one of these, too
    from IPython.display import HTML, display

    place = display(HTML(""), display_id=True)
    return lambda shown: place.update(HTML(shown))


class NotebookCurve:
    """`rows` are the run's so far; `show` is what `notebook_cell` answers."""

    def __init__(self, title: str, steps: int | None, rows: Sequence[Mapping[str, Any]], show: Show) -> None:
        self._title, self._steps, self._show = title, steps, show
        self._rows: list[Mapping[str, Any]] = list(rows)
        self._line = ""
        self.draw()

    def add(self, row: Mapping[str, float], line: str) -> None:
        """A step or a validation ended; `line` tells of it."""
        self._rows.append({name: value for name, value in row.items() if math.isfinite(value)})  # as recorded
        self._line = line
        self.draw()

    def draw(self, under_way: str = "") -> None:
        """Show it; `under_way`: what goes on now."""
        last = max((int(row["step"]) for row in self._rows), default=0)
        of = f"step {last}" + (f" of {self._steps}" if self._steps else "")
        words = " · ".join(html.escape(text) for text in (self._title, of, under_way) if text)
        picture = svg(training_course(self._rows), held_out_course(self._rows))
        self._show(f"<b>{words}</b><br>{picture}<pre>{html.escape(self._line)}</pre>")


def svg(training: Course, held_out: Course) -> str:
    """The smoothed course of training as a line and each validation as a dot with its interval; empty without a
    point."""
    line, dots = smoothed(training.points), held_out.points
    everything = line + dots
    if not everything:
        return ""
    left, right = min(x for x, _ in everything), max(x for x, _ in everything)
    low, high = min(y for _, y in everything), max(y for _, y in everything)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / max(right - left, 1e-9) * (WIDTH - 2 * EDGE) + EDGE
        return round(across, 1), round((high - y) / (high - low) * (HEIGHT - 2 * EDGE) + EDGE, 1)

    def text(x: float, y: float, words: str, anchor: str = "start") -> str:
        return f'<text x="{x}" y="{y}" font-size="12" text-anchor="{anchor}">{html.escape(words)}</text>'

    parts = [
        f'<line x1="{EDGE}" y1="{HEIGHT - EDGE}" x2="{WIDTH - EDGE}" y2="{HEIGHT - EDGE}" stroke="#888"/>',
        text(EDGE - 4, EDGE + 4, f"{high:.2f}", "end"),
        text(EDGE - 4, HEIGHT - EDGE + 4, f"{low:.2f}", "end"),
        text(EDGE, HEIGHT - EDGE + 16, f"{left:g}"),
        text(WIDTH - EDGE, HEIGHT - EDGE + 16, f"{right:g}", "end"),
    ]
    if line:
        course = " ".join(f"{x},{y}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline points="{course}" fill="none" stroke="#1f77b4" stroke-width="2"/>')
        parts.append(text(EDGE, 14, f"line: {training.label} (smoothed)"))
    for index, (x, y) in enumerate(dots):
        across, down = place(x, y)
        if held_out.errors is not None:
            below, above = (side[index] for side in held_out.errors)
            ends = place(x, max(low, y - below))[1], place(x, min(high, y + above))[1]
            parts.append(f'<line x1="{across}" y1="{ends[0]}" x2="{across}" y2="{ends[1]}" stroke="#d62728"/>')
        parts.append(f'<circle cx="{across}" cy="{down}" r="4" fill="#d62728"/>')
    if dots:
        parts.append(text(EDGE, 28, f"dots: {held_out.label}"))
    return f'<svg width="{WIDTH}" height="{HEIGHT}" style="background:#fff">{"".join(parts)}</svg>'
