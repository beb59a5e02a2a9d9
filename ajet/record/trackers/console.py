"""The console as a tracker: one line an event, the numbers that people look at first."""

from __future__ import annotations

from collections.abc import Mapping

from ajet.record.console import console

HEADLINE = (
    "train/reward",
    "train/success_rate",
    "validation/reward",
    "validation/success_rate",
    "loss",
    "kl",
    "entropy",
    "grad_norm",
    "train/failed",
    "train/sampled_tokens",
    "seconds/rollout",
    "seconds/update",
    "seconds/step",
    "seconds/validation",
)
"""In this order; every other number is in `metrics.jsonl`."""


class ConsoleTracker:
    """Prints the headline numbers."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One line; nothing when the event has none of the headline numbers."""
        shown = [f"{name} {short(values[name])}" for name in HEADLINE if name in values]
        if shown:
            console.print(f"step {step}: " + ", ".join(shown), markup=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to let go."""


def short(value: float) -> str:
    """A number in few characters: counts whole, the rest with three significant digits."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e9 else f"{value:.3g}"
