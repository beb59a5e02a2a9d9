"""Groups played in this process, alternating with the updates.

Invariant: a position of the training order is leased before its rollout, and leased a second time if unfinished.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.rollout import ReturnedTask
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.episode import Group, list_episodes
from ajet.task_reader import TaskOrder
from ajet.task_reader.order import CurriculumSampler
from ajet.train.sources.source import TaskReaderSource
from ajet.train.step import StepGroups

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.schema.task import Task
    from ajet.store import Lease
    from ajet.train.session import TrainingSession


class RolloutSource(TaskReaderSource):
    """Play the tasks of each step in this process."""

    def next_groups(self, session: TrainingSession) -> StepGroups:
        """Play the tasks of the next step. Raises UserError if every episode failed."""
        step, started = session.step + 1, time.monotonic()
        session.run.status.set(phase="rollout", step=step)
        leases = {lease.order: lease for lease in session.store.lease(_count_tasks(self.parts.experiment.ajet))}
        session.show_depths(closed=0)
        tasks = [(order, session.task_order.task(order)) for order in leases]
        batch: list[Group] = []
        oversampled: list[Group] = []
        returned: list[Lease] = []
        for finished in self.parts.rollout.stream(tasks, step=step, split="train"):
            if isinstance(finished, ReturnedTask):
                returned.append(leases[finished.order])
            else:
                (batch if finished.is_selected else oversampled).append(finished.group)
                session.show_depths(closed=len(batch) + len(oversampled))
        batch.sort(key=lambda group: group.order)
        refuse_if_all_failed(list_episodes(batch), step)
        return session.add_given_up(
            StepGroups(started, batch, unused={"oversampled": oversampled}, unfinished=returned)
        )


def make_task_order(tasks: Sequence[Task], settings: AjetConfig) -> TaskOrder:
    """Return the training order of the tasks under the given settings."""
    data = settings.data
    has_curriculum = data.curriculum.prefer is not None
    curriculum = (
        CurriculumSampler([task.task_id for task in tasks], data.curriculum, settings.seed) if has_curriculum else None
    )
    return TaskOrder(tasks, seed=settings.seed, shuffle=data.shuffle, curriculum=curriculum)


def _count_tasks(settings: AjetConfig) -> int:
    """Return the number of tasks to start in a step.

    With oversampling these are more than a batch needs, and the batch takes the first groups to finish.
    """
    rollout = settings.rollout
    factor = rollout.submit_oversample_multiplier if rollout.enable_oversample else 1.0
    return math.ceil(settings.data.train_batch_size * factor)
