"""Stale tokens: those that earlier weights sampled than the ones that are trained on them.

Invariant: a run that can have them says at its start what importance weights they get, and at each step how old they
were; a run in turns has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from loguru import logger

from ajet.schema.episode import Episode


def importance_weights(cap: float | None) -> str:
    """What a stale token's loss is multiplied by, for people. `cap`: that of the settings, or of verl's own."""
    if cap is None:
        return "importance weight 1 (algorithm.is_cap: null)"
    return f"importance weight min(trainer's probability / engine's, {cap:g}) (algorithm.is_cap)"


def announce(cap: float | None, oldest: int | None) -> None:
    """Once, at the start. `oldest`: training steps that a token may be behind; None: any number."""
    age = "earlier weights" if oldest is None else f"weights up to {oldest} steps old"
    logger.info("tokens sampled by {} are trained on with {}", age, importance_weights(cap))


def staleness(episodes: Iterable[Episode], version: int) -> int:
    """How many policy versions lie at most between the weights that sampled what is trained on and the present ones."""
    return version - min(_sampled_by(episodes), default=version)


def staleness_metrics(episodes: Iterable[Episode], version: int) -> dict[str, float]:
    """That, and the mean."""
    found = _sampled_by(episodes)
    return (
        {"train/staleness_max": version - min(found), "train/staleness_mean": version - fmean(found)} if found else {}
    )


def _sampled_by(episodes: Iterable[Episode]) -> list[int]:
    """The policy version of each run of tokens that are trained on."""
    calls = (call for episode in episodes if episode.scored for call in episode.calls if call.trained)
    return [run.low for call in calls for run in call.versions]
