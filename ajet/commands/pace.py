"""Measured speed of episodes and steps on this machine, and an estimate of a training step's time.

Invariant: seconds come from this machine's records with the same model, never from an assumption. If training runs more
episodes at once than were measured, the estimate is a range.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from ajet.record.console import counted, format_seconds
from ajet.record.files import read_rows
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment

STEPS = 5
"""Number of training steps for the median time of a step."""
MODEL = "model"
"""The key of the model in a debug run's row."""


class EpisodePace(NamedTuple):
    """The measured speed of a debug run's episodes."""

    episodes: int  # ended episodes
    seconds: float
    tokens: int  # sampled tokens, including unfinished episodes
    at_once: int  # maximum number of concurrent episodes
    longest: float  # seconds of the longest episode

    def to_metrics(self) -> dict[str, float]:
        """Return the numbers as metrics of the debug run, from which a later plan reads them."""
        return {
            "debug/seconds": self.seconds,
            "debug/at_once": self.at_once,
            "debug/longest": self.longest,
            "debug/all_tokens": self.tokens,
        }

    @classmethod
    def from_metrics(cls, row: Mapping[str, float]) -> EpisodePace | None:
        """Return the pace in a debug run's metrics row, or None without an ended episode."""
        if not row.get("debug/episodes") or "debug/seconds" not in row:
            return None
        tokens, at_once = int(row["debug/all_tokens"]), int(row["debug/at_once"])
        return cls(int(row["debug/episodes"]), row["debug/seconds"], tokens, at_once, row["debug/longest"])


def read_pace(experiment: Experiment) -> EpisodePace | None:
    """Return the pace of the newest debug run of the experiment with the same model, or None."""
    folder = experiment.root / experiment.name / "debug"
    for run in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():
        for row in _read_metrics(run):
            if row.get(MODEL) == experiment.ajet.model.path and (pace := EpisodePace.from_metrics(row)) is not None:
                return pace
    return None


def read_step_seconds(experiment: Experiment) -> float | None:
    """Return the median seconds of the last steps of the run that would be resumed, or None without a step."""
    step_seconds = [row.get("seconds/step") for row in _read_metrics(experiment.root / experiment.name)]
    last_seconds = [seconds for seconds in step_seconds if isinstance(seconds, int | float)][-STEPS:]
    return median(last_seconds) if last_seconds else None


def _read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the metrics rows of the run in the folder, or [] if they cannot be read."""
    try:
        return list(read_rows(run / "metrics.jsonl"))
    except (OSError, UserError):
        return []


def estimate_step_seconds(pace: EpisodePace, settings: AjetConfig) -> tuple[float, float]:
    """Return (lowest, highest) estimate of the seconds that one step's episodes take.

    The highest assumes as many episodes per second as in the debug run. The lowest assumes that this rate grows in
    proportion to the number of concurrent episodes, but a step takes at least as long as its longest episode.
    """
    episodes = settings.data.train_batch_size * settings.rollout.num_repeat
    highest = pace.seconds / pace.episodes * episodes
    # As many episodes run at once as the run's limits allow.
    at_once = min(settings.rollout.max_env_worker, settings.rollout.max_num_seqs, episodes)
    proportional = highest * min(1.0, pace.at_once / max(at_once, 1))
    return max(proportional, min(pace.longest, highest)), highest


def describe_step_time(pace: EpisodePace, settings: AjetConfig) -> str:
    """Return how long the episodes of a training step would take, as a phrase with the measured speed."""
    best, worst = estimate_step_seconds(pace, settings)
    seconds = format_seconds(worst) if worst < 1.5 * best else f"{format_seconds(best)} to {format_seconds(worst)}"
    episodes = settings.data.train_batch_size * settings.rollout.num_repeat
    rate = pace.tokens / pace.seconds if pace.seconds > 0 else 0.0
    return (
        f"about {seconds} to run {counted(episodes, 'episode')} (at {rate:.0f} tokens per second with "
        f"{pace.at_once} at the same time), and roughly the same time again for the update"
    )
