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
"""Name -> what it is called here, in this order; every number is in `metrics.jsonl`."""
INDENT = 12
"""Columns; a terminal that is too narrow for the line gets it in several, a file in one."""


class ConsoleTracker(Tracker):
    """Prints what the line of a step leaves out: reward and times are there already."""

    patience_s = None

    def metrics(self, step: int, numbers: Mapping[str, float]) -> None:
        """One line; nothing when the event has none of these numbers (a validation)."""
        shown = [f"{word} {format_number(numbers[name])}" for name, word in SHOWN.items() if name in numbers]
        room = console.width - INDENT if console.is_terminal else None
        for line in _wrap_pairs(shown, room):
            console.print(Text(" " * INDENT + line, style="dim"), soft_wrap=True)


def _wrap_pairs(pairs: list[str], room: int | None) -> list[str]:
    """Return the pairs in as few lines of `room` columns as they need, none of them broken; None: in one line."""
    lines: list[str] = []
    for pair in pairs:
        if lines and (room is None or len(lines[-1]) + 2 + len(pair) <= room):
            lines[-1] += f"  {pair}"
        else:
            lines.append(pair)
    return lines


def format_number(value: float) -> str:
    """A number in few characters: counts whole, the rest with three significant digits."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e9 else f"{value:.3g}"
