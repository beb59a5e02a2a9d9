"""The console as a tracker: a dim line under each training step's own, with the numbers that an expert looks at."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from ajet.record.console import console
from ajet.record.trackers.contract import Tracker

SHOWN = {
    "loss": "loss",
    "entropy": "entropy",
    "kl": "kl",
    "clip_fraction": "clipped",
    "mismatch_kl": "mismatch",
    "lr": "lr",
    "train/sampled_tokens": "tokens",
    "train/trained_tokens": "trained",
    "train/forks": "forks",
}
"""Metric name -> printed name, in this order; all numbers are in `metrics.jsonl`."""
INDENT = 12
"""Columns of indentation; a narrow terminal wraps the line, a file gets one line."""


class ConsoleTracker(Tracker):
    """Prints the loss and other update metrics below the step's own line, which has reward and times."""

    patience_s = None

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """Print one line of the metrics in `SHOWN`, or nothing if the event has none of them, as a validation."""
        pairs = [f"{word} {format_number(numbers[name])}" for name, word in SHOWN.items() if name in numbers]
        width = console.width - INDENT if console.is_terminal else None
        for line in _wrap_pairs(pairs, width):
            console.print(Text(" " * INDENT + line, style="dim"), soft_wrap=True)


def _wrap_pairs(pairs: list[str], room: int | None) -> list[str]:
    """Join pairs such as "loss 0.2" into lines of at most `room` columns (None: one line), without breaking a pair."""
    lines: list[str] = []
    for pair in pairs:
        if lines and (room is None or len(lines[-1]) + 2 + len(pair) <= room):
            lines[-1] += f"  {pair}"
        else:
            lines.append(pair)
    return lines


def format_number(value: float) -> str:
    """Format a number: integers without decimals, other numbers with three significant digits."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e9 else f"{value:.3g}"
