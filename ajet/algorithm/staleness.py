"""Stale tokens: those that earlier weights sampled than the ones that are trained on them; and the mismatch alarm.

Invariant: a run that can have them says at its start what importance weights they get, and at each step how old they
were; a run in turns has none. The bound of an update that the alarm tightens follows from what was measured of the
weights that it begins with (`ImportanceCorrection.tighten`), never from earlier steps, so that a resumed run has the
same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from loguru import logger

from ajet.schema.episode import Episode

if TYPE_CHECKING:
    from ajet.config.schema.trainer_common import TrainerConfig


class Freshness(NamedTuple):
    """How old a group is, for whoever hands it on: a queue, and again the batch that it comes into."""

    age: int
    """Policy versions between the oldest weights that sampled what is trained on, and the present ones."""
    is_usable: bool
    """Whether it may be trained on: no older than `max_staleness`."""
    decay: float
    """What the bounds of its oldest tokens' ratios are narrowed by (`out_of_date_decay`): 1 of a fresh one, towards 0
    the older it is."""

    @property
    def is_stale(self) -> bool:
        """To be discarded, as `stale`."""
        return not self.is_usable


def measure_freshness(episodes: Iterable[Episode], version: int, trainer: TrainerConfig) -> Freshness:
    """The freshness of the episodes of one group, for an update of the policy's `version`. A group without a token to
    train is fresh. Nothing is kept between two calls: that a group is trained on once (`max_trained_count`) the ledger
    holds."""
    age, rate = max(0, measure_staleness(episodes, version)), trainer.algorithm.out_of_date_decay
    is_usable = trainer.max_staleness is None or age <= trainer.max_staleness
    return Freshness(age, is_usable, math.exp(-age * rate) if rate is not None else 1.0)


def describe_importance_weights(trainer: TrainerConfig) -> str:
    """The factor on a stale token's loss, in words for people."""
    cap, algorithm = trainer.importance_cap, trainer.algorithm
    if algorithm.old_policy == "behaviour":
        return "the ratio to the policy that sampled them (algorithm.old_policy: behaviour)"
    if cap is not None and algorithm.is_mode != "token_truncate":
        return f"importance weights up to {cap:g}, {algorithm.is_mode} (algorithm.is_cap, is_mode)"
    if cap is None:
        return "importance weight 1 (algorithm.is_cap: null)"
    return f"importance weight min(trainer's probability / engine's, {cap:g}) (algorithm.is_cap)"


def log_staleness(trainer: TrainerConfig, oldest: int | None) -> None:
    """Once, at the start. `oldest`: training steps that a token may be behind; None: any number."""
    age = "earlier weights" if oldest is None else f"weights up to {oldest} steps old"
    logger.info("tokens sampled by {} are trained on with {}", age, describe_importance_weights(trainer))


def measure_staleness(episodes: Iterable[Episode], version: int) -> int:
    """How many policy versions lie at most between the weights that sampled what is trained on and the present ones."""
    return version - min(_list_sampled_versions(episodes), default=version)


def compute_staleness_metrics(episodes: Iterable[Episode], version: int) -> dict[str, float]:
    """The largest and the mean number of versions that sampled tokens lie behind `version`."""
    versions = _list_sampled_versions(episodes)
    return (
        {"train/staleness_max": version - min(versions), "train/staleness_mean": version - fmean(versions)}
        if versions
        else {}
    )


def _list_sampled_versions(episodes: Iterable[Episode]) -> list[int]:
    """The policy version of each run of tokens that are trained on."""
    calls = (call for episode in episodes if episode.scored for call in episode.calls if call.is_step)
    return [run.low for call in calls for run in call.versions]


GAP, CAP = "is_tightened_gap", "is_tightened_cap"


def build_tightened_metrics(gap: float, cap: float) -> dict[str, float]:
    """The metrics of an update whose importance weights are bounded at `cap` because engine and trainer are `gap` nats
    a token apart."""
    return {GAP: gap, CAP: cap}


def warn_of_mismatch(metrics: Mapping[str, float], alarm: float | None) -> None:
    """Says what `build_tightened_metrics` hold, where they are among `metrics`."""
    if GAP in metrics and alarm is not None:
        logger.warning(
            "engine and trainer are {:.3g} nats a token apart with the same weights, more than {:g} "
            "(algorithm.mismatch_alarm): this update bounds importance weights at {:.3g}",
            metrics[GAP],
            alarm,
            metrics[CAP],
        )
