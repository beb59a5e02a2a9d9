"""Validation: the validation tasks played on the same path as training, without credit or update.

Invariant (DESIGN decision 14): gateway, judges and records are those of training; only the sampling differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.run.accounting import episode_metrics, pass_metrics
from ajet.run.assembly import Parts

if TYPE_CHECKING:
    from ajet.record import RunDirectory


def evaluate(parts: Parts, run: RunDirectory, *, step: int) -> dict[str, float]:
    """Play every validation task after `step` steps; record the episodes; answer the metrics (validation/…).

    Greedy validation plays each task `val_kwargs.num_repeat` times; with `val_kwargs.do_sample` each is played
    `val_pass_n` times and pass@n and all@n are added.
    """
    settings = parts.experiment.ajet
    val = settings.rollout.val_kwargs
    tasks = list(enumerate(parts.tasks("validation")))
    repeats = max(settings.trainer_common.val_pass_n, val.num_repeat) if val.do_sample else val.num_repeat
    groups = list(parts.rollout.play(tasks, step=step, split="validation", repeats=repeats))
    episodes = [episode for group in groups for episode in group.episodes]
    run.episodes.write(step, "validation", episodes)
    metrics = episode_metrics(episodes, "validation") | pass_metrics(groups, "validation")
    metrics["validation/tasks"] = len(tasks)
    return metrics
