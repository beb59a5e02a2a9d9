"""Measures stale tokens (sampled by earlier weights than those being trained), and handles the mismatch alarm.

Invariant: a run with stale tokens logs their importance weights at its start and their age at each step. A synchronous
run has no stale tokens. The mismatch alarm (engine and trainer disagree on logprobs) tightens an update's bound by a
measurement of the update's initial weights (`ImportanceCorrection.tighten`), never by earlier steps, so a resumed run
gets the same bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from loguru import logger

from ajet.schema.episode import Episode

if TYPE_CHECKING:
    from ajet.config.schema.trainer_common import TrainerConfig


def describe_importance_weights(trainer: TrainerConfig) -> str:
    """Describe in words the factor on the loss of a stale token, for log lines."""
    cap, algorithm = trainer.importance_cap, trainer.algorithm
    if algorithm.old_policy == "behaviour":
        return "the ratio to the policy that sampled the tokens (algorithm.old_policy: behaviour)"
    if cap is not None and algorithm.is_mode != "token_truncate":
        return f"importance weights up to {cap:g}, {algorithm.is_mode} (algorithm.is_cap, is_mode)"
    if cap is None:
        return "importance weight 1 (algorithm.is_cap: null)"
    return f"importance weight min(trainer's probability / engine's, {cap:g}) (algorithm.is_cap)"


def log_staleness(trainer: TrainerConfig, oldest: int | None) -> None:
    """Log the treatment of stale tokens at the start of a run.

    Args:
        oldest: Maximum age of a token in training steps. None: unlimited.
    """
    age = "earlier weights" if oldest is None else f"weights up to {oldest} steps old"
    logger.info("training uses tokens sampled by {} with {}", age, describe_importance_weights(trainer))


def measure_staleness(episodes: Iterable[Episode], version: int) -> int:
    """Return the largest number of policy versions between sampled tokens and `version`."""
    return version - min(_list_sampled_versions(episodes), default=version)


def compute_staleness_metrics(episodes: Iterable[Episode], version: int) -> dict[str, float]:
    """Return the largest and the mean number of versions between sampled tokens and `version`."""
    versions = _list_sampled_versions(episodes)
    return (
        {"train/staleness_max": version - min(versions), "train/staleness_mean": version - fmean(versions)}
        if versions
        else {}
    )


def _list_sampled_versions(episodes: Iterable[Episode]) -> list[int]:
    """Return the policy version of each contiguous run of trained tokens."""
    calls = (call for episode in episodes if episode.scored for call in episode.calls if call.is_step)
    return [run.low for call in calls for run in call.versions]


GAP, CAP = "is_tightened_gap", "is_tightened_cap"


def build_tightened_metrics(gap: float, cap: float) -> dict[str, float]:
    """Return the metrics of an update with tightened importance weights.

    Args:
        gap: Distance between engine and trainer in nats per token.
        cap: The tightened bound.
    """
    return {GAP: gap, CAP: cap}


def warn_of_mismatch(metrics: Mapping[str, float], alarm: float | None) -> None:
    """Log a warning if an update bounded its importance weights more tightly, because engine and trainer disagree.

    Args:
        metrics: Metrics of the update, with those of `build_tightened_metrics` in this case.
        alarm: Gap in nats per token above which the bound is tightened. None: never.
    """
    if GAP in metrics and alarm is not None:
        logger.warning(
            "the log-probabilities of engine and trainer for the same weights differ by {:.3g} nats per token, "
            "more than {:g} (algorithm.mismatch_alarm): this update limits importance weights to {:.3g}",
            metrics[GAP],
            alarm,
            metrics[CAP],
        )
