"""How fast episodes and steps were here, and how long a step of training would take.

Invariant: seconds come from what this machine recorded with the same model, never from an assumption; where a training
would play more episodes at once than were measured, they are a range.
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
"""Training steps whose median is the time of one."""
MODEL = "model"
"""The key of a debug run's row that holds its model."""


class EpisodePace(NamedTuple):
    """The pace of the episodes that a debug run played."""

    episodes: int  # that ended
    seconds: float
    tokens: int  # sampled, those of unfinished episodes too
    at_once: int  # episodes that ran at the same time, at most
    longest: float  # seconds of the longest episode

    def to_metrics(self) -> dict[str, float]:
        """Return the numbers for the run's record; a plan reads them back."""
        return {
            "debug/seconds": self.seconds,
            "debug/at_once": self.at_once,
            "debug/longest": self.longest,
            "debug/all_tokens": self.tokens,
        }

    @classmethod
    def from_metrics(cls, row: Mapping[str, float]) -> EpisodePace | None:
        """Return the pace that a debug run recorded; None where it did not, or no episode ended."""
        if not row.get("debug/episodes") or "debug/seconds" not in row:
            return None
        tokens, at_once = int(row["debug/all_tokens"]), int(row["debug/at_once"])
        return cls(int(row["debug/episodes"]), row["debug/seconds"], tokens, at_once, row["debug/longest"])


def read_pace(experiment: Experiment) -> EpisodePace | None:
    """Return the pace of the newest debug run with the same model."""
    folder = experiment.root / experiment.name / "debug"
    for run in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():
        for row in _read_metrics(run):
            if row.get(MODEL) == experiment.ajet.model.path and (pace := EpisodePace.from_metrics(row)) is not None:
                return pace
    return None


def read_step_seconds(experiment: Experiment) -> float | None:
    """Return the seconds of a step of the run that this one would continue; None if it made none."""
    found = [row.get("seconds/step") for row in _read_metrics(experiment.root / experiment.name)]
    last = [seconds for seconds in found if isinstance(seconds, int | float)][-STEPS:]
    return median(last) if last else None


def _read_metrics(run: Path) -> list[dict[str, Any]]:
    try:
        return list(read_rows(run / "metrics.jsonl"))
    except (OSError, UserError):
        return []


def estimate_step_seconds(pace: EpisodePace, settings: AjetConfig) -> tuple[float, float]:
    """Return the seconds in which the episodes of one step are played, at best and at worst.

    At best the engine gets as much faster as more episodes run at once; at worst it gets no faster at all.
    """
    episodes = settings.data.train_batch_size * settings.rollout.num_repeat
    worst = pace.seconds / pace.episodes * episodes
    at_once = min(settings.rollout.max_env_worker, settings.rollout.max_num_seqs, episodes)
    best = max(worst * min(1.0, pace.at_once / max(at_once, 1)), min(pace.longest, worst))
    return best, worst


def describe_step_time(pace: EpisodePace, settings: AjetConfig) -> str:
    """Return a line on how long a step would take."""
    best, worst = estimate_step_seconds(pace, settings)
    seconds = format_seconds(worst) if worst < 1.5 * best else f"{format_seconds(best)} to {format_seconds(worst)}"
    episodes = settings.data.train_batch_size * settings.rollout.num_repeat
    rate = pace.tokens / pace.seconds if pace.seconds > 0 else 0.0
    return (
        f"about {seconds} to play {counted(episodes, 'episode')} (at {rate:.0f} tokens a second with {pace.at_once} at "
        "once), and as long again, more or less, for the update"
    )
