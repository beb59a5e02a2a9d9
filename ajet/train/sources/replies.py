"""Replies from a data set, not sampled: the lessons of `ajet sft`, in the order of the seed.

Invariant: a lesson counts as learned in the same commit as the checkpoint that contains it, and a resumed run takes the
lessons that an uninterrupted one would, in its order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.rollout.components import renderer_of
from ajet.task_reader import TaskOrder
from ajet.train.session import TrainingSession, open_store
from ajet.train.sft.lessons import Lesson
from ajet.train.sft.reading import held_out, lessons_of, tell
from ajet.train.sft.settings import settled
from ajet.train.sft.weighing import Weighing
from ajet.train.sources.source import Source

if TYPE_CHECKING:
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.train.interrupts import Interrupts
    from ajet.train.step import OnStep, StepGroups


class RepliesSource(Source):
    """Makes a group of each lesson; a validation measures the loss of held-out lessons."""

    def __init__(self, lessons: Sequence[Lesson], validation: Sequence[Lesson], weighing: Weighing) -> None:
        self._lessons = {lesson.task.task_id: lesson for lesson in lessons}
        self._validation, self._weighing = validation, weighing

    def next_groups(self, session: TrainingSession) -> StepGroups:
        """Take the lessons of the next step."""
        began, tasks = time.monotonic(), session.task_order
        settings, step = session.experiment.ajet, session.step + 1
        ignores = settings.context_tracker.timeline_merging_policy.ignore_tools
        groups = [
            self._lessons[tasks.task(lease.order).task_id].group(
                session.run.run_id, step, lease.order, ignore_tools=ignores
            )
            for lease in session.store.lease(settings.data.train_batch_size)
        ]
        groups.sort(key=lambda group: group.order)
        return session.own_groups(began, groups)

    def validate_if_due(self, session: TrainingSession) -> None:
        """Record the loss of the held-out lessons."""
        if not self._validation or not session.is_validation_due(session.total_steps, always_last=True):
            return
        began, run, step = time.monotonic(), session.run, session.step
        run.status.set(phase="validation", step=step)
        groups = [lesson.group(run.run_id, step, at, "validation") for at, lesson in enumerate(self._validation)]
        metrics = {f"validation/{name}": value for name, value in self._weighing.measured(groups).items()}
        metrics |= {"validation/rows": len(groups), "seconds/validation": time.monotonic() - began}
        session.on_step(step, session.total_steps, metrics)
        run.metrics.log(step, metrics)
        session.note_validation()


def train_on_replies(experiment: Experiment, run: RunDirectory, interrupts: Interrupts, on_step: OnStep) -> None:
    """Train on given replies. Raises KeyboardInterrupt after saving, when interrupted; UserError."""
    from ajet.backbone import open_backbone
    from ajet.engine.model_source import locate
    from ajet.engine.models import load_tokenizer
    from ajet.train.loop import train

    settings = experiment.ajet
    assert settings.model.path is not None, "a run does not begin without"
    model = locate(settings.model.path, base=experiment.base, weights=False)
    words = renderer_of(settings, load_tokenizer(model))
    lessons, validation = lessons_of(experiment, words), held_out(experiment, words)
    backbone = open_backbone(settled(experiment))
    try:
        weighing = Weighing(settings, backbone)
        tasks = TaskOrder([lesson.task for lesson in lessons], seed=settings.seed, shuffle=settings.data.shuffle)
        store = open_store(run, tasks)
        session = TrainingSession(experiment, backbone, run, store, tasks, interrupts, on_step, weighing.batch)
        tell(settings, lessons, validation, session.total_steps)
        train(session, RepliesSource(lessons, validation, weighing))
    finally:
        backbone.close()
