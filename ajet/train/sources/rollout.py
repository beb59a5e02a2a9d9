"""Episodes that this process plays itself, in turns with the updates."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.rollout import ReturnedTask
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.episode import Group, episodes_of
from ajet.task_reader import TaskOrder
from ajet.task_reader.curriculum import Curriculum
from ajet.train.sources.source import Source
from ajet.train.step import StepGroups
from ajet.train.validation import play_validation

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.schema.task import Task
    from ajet.store import Lease
    from ajet.train.parts import Parts
    from ajet.train.session import TrainingSession


class LaunchedSource(Source):
    """A source of a launched run, which plays the task reader's held-out tasks itself."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def validate_if_due(self, session: TrainingSession) -> None:
        if self.parts.reader.has("validation") and session.is_validation_due(session.total_steps):
            validate(session, self.parts)


class RolloutSource(LaunchedSource):
    """Plays the tasks of each step."""

    def next_groups(self, session: TrainingSession) -> StepGroups:
        assert session.tasks is not None, "a launched run has a task reader"
        step, began = session.step + 1, time.monotonic()
        session.run.status.set(phase="rollout", step=step)
        leases = {lease.order: lease for lease in session.store.lease(_count_tasks(self.parts.experiment.ajet))}
        session.show_depths(closed=0)
        tasks = [(order, session.tasks.task(order)) for order in leases]
        kept: list[Group] = []
        oversampled: list[Group] = []
        returned: list[Lease] = []
        for ended in self.parts.rollout.stream(tasks, step=step, split="train"):
            if isinstance(ended, ReturnedTask):
                returned.append(leases[ended.order])
            else:
                (kept if ended.kept else oversampled).append(ended.group)
                session.show_depths(closed=len(kept) + len(oversampled))
        kept.sort(key=lambda group: group.order)
        refuse_if_all_failed(episodes_of(kept), step)
        return session.own_groups(began, kept, unused={"oversampled": oversampled}, unfinished=returned)


def validate(session: TrainingSession, parts: Parts) -> None:
    """Play the held-out tasks after the present step."""
    metrics, measured = play_validation(
        parts, session.run, step=session.step, on_step=session.on_step, total=session.total_steps
    )
    session.note_validation(metrics, measured)


def make_task_order(tasks: Sequence[Task], settings: AjetConfig) -> TaskOrder:
    """Return the order in which a run of these settings trains on the tasks."""
    data = settings.data
    graded = data.curriculum.prefer is not None
    curriculum = Curriculum([task.task_id for task in tasks], data.curriculum, settings.seed) if graded else None
    return TaskOrder(tasks, seed=settings.seed, shuffle=data.shuffle, curriculum=curriculum)


def _count_tasks(settings: AjetConfig) -> int:
    """Return how many tasks a step starts; with oversampling more than its batch takes, and the first are kept."""
    rollout = settings.rollout
    factor = rollout.submit_oversample_multiplier if rollout.enable_oversample else 1.0
    return math.ceil(settings.data.train_batch_size * factor)
