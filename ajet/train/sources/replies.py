"""The loop of `ajet sft`: take lessons, weigh their tokens, update, record. A step is a training step without play.

Invariant: whatever is said of a training holds: a lesson counts as learned in the same commit as the checkpoint that
contains it, the order is the seed's, and a resumed run takes the lessons that an uninterrupted one would, in its order.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ajet.rollout.wiring import renderer_of
from ajet.task_reader import TaskOrder
from ajet.train.learn import FirstHalf, learn
from ajet.train.loop import due
from ajet.train.session import Training, open_store
from ajet.train.sft.lessons import Lesson
from ajet.train.sft.reading import held_out, lessons_of, tell
from ajet.train.sft.settings import settled
from ajet.train.sft.weighing import Weighing

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.backbone.runner import Interrupts, OnStep
    from ajet.config import Experiment
    from ajet.record import RunDirectory


@dataclass(slots=True)
class Parts:
    """The parts that a step needs (`ajet.train.loop.Learning`)."""

    experiment: Experiment
    backbone: Backbone


def teach(experiment: Experiment, run: RunDirectory, interrupts: Interrupts, on_step: OnStep) -> Training:
    """Train until the last step. Raises KeyboardInterrupt after saving, when interrupted; UserError."""
    from ajet.backbone import open_backbone
    from ajet.engine.model_source import locate
    from ajet.engine.models import load_tokenizer

    settings = experiment.ajet
    assert settings.model.path is not None, "a run does not begin without"
    source = locate(settings.model.path, base=experiment.base, weights=False)
    words = renderer_of(settings, load_tokenizer(source))
    lessons, apart = lessons_of(experiment, words), held_out(experiment, words)
    backbone = open_backbone(settled(experiment))
    try:
        return _teach(Parts(experiment, backbone), run, interrupts, on_step, lessons, apart)
    finally:
        backbone.close()


def _teach(
    parts: Parts,
    run: RunDirectory,
    interrupts: Interrupts,
    on_step: OnStep,
    lessons: Sequence[Lesson],
    apart: Sequence[Lesson],
) -> Training:
    settings = parts.experiment.ajet
    trainer = settings.trainer_common
    weighing = Weighing(settings, parts.backbone)
    tasks = TaskOrder([lesson.task for lesson in lessons], seed=settings.seed, shuffle=settings.data.shuffle)
    training = Training.begin(parts, run, open_store(run, tasks), tasks, on_step)
    training.assign = weighing.batch
    total = training.total_steps
    tell(settings, lessons, apart, total)
    step = partial(_step, training, tasks, {lesson.task.task_id: lesson for lesson in lessons}, interrupts)
    try:
        if apart and _owes_measurement(training):
            _measure(training, weighing, apart)
        while training.step < total and not training.exhausted:
            with interrupts.patient(trainer.grace):
                step()
            if apart and _owes_measurement(training):
                _measure(training, weighing, apart)
            with interrupts.held():
                if due(training.step, trainer.save_freq) or training.step == total:
                    training.save()
    except KeyboardInterrupt:
        interrupts.heard()
        with interrupts.held():  # a second one does not cost the checkpoint
            training.save_interrupted()
        raise
    training.save()
    return training


def _step(training: Training, tasks: TaskOrder, lessons: Mapping[str, Lesson], interrupts: Interrupts) -> None:
    began = time.monotonic()
    settings, step = training.parts.experiment.ajet, training.step + 1
    ignores = settings.context_tracker.timeline_merging_policy.ignore_tools
    groups = [
        lessons[tasks.task(lease.order).task_id].group(training.run.run_id, step, lease.order, ignore_tools=ignores)
        for lease in training.store.lease(settings.data.train_batch_size)
    ]
    groups.sort(key=lambda group: group.order)
    learn(training, FirstHalf(began, groups), interrupts)


def _owes_measurement(training: Training) -> bool:
    trainer = training.parts.experiment.ajet.trainer_common
    if training.validated == training.step:
        return False
    if training.step == 0:
        return trainer.val_before_train
    return due(training.step, trainer.test_freq) or training.step == training.total_steps


def _measure(training: Training, weighing: Weighing, apart: Sequence[Lesson]) -> None:
    """The loss of the held-out lessons, recorded."""
    began, run = time.monotonic(), training.run
    run.status.set(phase="validation", step=training.step)
    groups = [lesson.group(run.run_id, training.step, at, "validation") for at, lesson in enumerate(apart)]
    metrics = {f"validation/{name}": value for name, value in weighing.measured(groups).items()}
    metrics |= {"validation/rows": len(groups), "seconds/validation": time.monotonic() - began}
    training.on_step(training.step, training.total_steps, metrics)
    run.metrics.log(training.step, metrics)
    training.validated = training.step
    if training.step == training.saved_step:
        training.saved_step = -1  # it lacks that this was measured
