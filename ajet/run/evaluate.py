"""Validation: the validation tasks played on the same path as training, without credit or update.

Invariant (DESIGN decision 14): gateway, judges and records are those of training; only the sampling differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.record.held_out import Measurement
from ajet.run.accounting import episode_metrics, interval_metrics, measurement_of, pass_metrics
from ajet.run.assembly import Parts
from ajet.schema.episode import episodes_of

if TYPE_CHECKING:
    from ajet.record import RunDirectory
    from ajet.schema.episode import Group


def evaluate(parts: Parts, run: RunDirectory, *, step: int) -> tuple[dict[str, float], Measurement]:
    """Play every validation task after `step` steps; record the episodes; answer the metrics (validation/…), and what
    the checkpoint is compared by.

    Greedy validation plays each task `val_kwargs.num_repeat` times; with `val_kwargs.do_sample` each is played
    `val_pass_n` times and pass@n and all@n are added.
    """
    tasks = list(enumerate(parts.tasks("validation")))
    groups = list(parts.rollout.play(tasks, step=step, split="validation"))
    run.episodes.write(step, "validation", episodes_of(groups))
    return validation_metrics(groups), measurement_of(groups)


def validation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The numbers of a validation, one group a task."""
    metrics = episode_metrics(episodes_of(groups), "validation") | pass_metrics(groups, "validation")
    metrics |= interval_metrics(groups, "validation")
    metrics["validation/tasks"] = len(groups)
    return metrics
