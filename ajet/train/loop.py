"""The loop: take tasks, play them, give credit, update, record. This is the recipe and the real thing at once.

Invariants: a task counts as trained in the same commit as the checkpoint that contains it (DESIGN decision 9), so a
killed run continues from its last checkpoint with the same tasks in the same order; the first Ctrl-C ends the run
between two steps and leaves a checkpoint of all that was learned, and a second one saves no step that is not whole; so
does SIGTERM, once the present step has ended or `trainer_common.grace` is over. What samplers of this launch play may
end within the same time, and is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger

from ajet.algorithm import Algorithm
from ajet.backbone.runner import Interrupts, OnStep
from ajet.rollout import GivenBack
from ajet.rollout.failure import refuse_if_all_failed
from ajet.schema.episode import episodes_of
from ajet.schema.errors import UserError
from ajet.store import CANNOT_NOW
from ajet.task_reader import TaskOrder
from ajet.task_reader.contamination import overlap
from ajet.task_reader.curriculum import Curriculum
from ajet.train.learn import FirstHalf, learn
from ajet.train.parts import Parts
from ajet.train.remarks import describe_remarks
from ajet.train.session import Training, open_store, resumed_state
from ajet.train.validation import evaluate

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.record import RunDirectory
    from ajet.schema.episode import Group
    from ajet.schema.task import Task
    from ajet.store import Lease, Store


class Source(Protocol):
    """Where the groups of a step come from, when they are not played here in turns with the updates."""

    ends: bool
    """Whether samplers are on this machine, and end with this process."""

    def open(self, parts: Parts, run: RunDirectory, tasks: TaskOrder, at: Mapping[str, Any] | None) -> Store:
        """The run's store, at what a checkpoint holds of it. Raises UserError."""
        ...

    def begun(self, training: Training) -> None:
        """The weights are those that the run goes on from."""
        ...

    def step(self, training: Training, tasks: TaskOrder, interrupts: Interrupts) -> None:
        """Make one step, which ends in `learn`."""
        ...

    def shown(self, training: Training) -> AbstractContextManager[None]:
        """Within the block it is shown how things are, whatever the loop is busy with."""
        ...

    def worth(self) -> bool:
        """Whether something may come of it that the present step waits. From any thread."""
        ...

    def interrupted(self, training: Training, interrupts: Interrupts) -> None:
        """End before its last step, and is saved. Raises KeyboardInterrupt where a further one cuts it short."""
        ...

    def learned(self, training: Training) -> None:
        """The step is over, and what is due after it: to be saved now."""
        ...

    def ended(self, training: Training) -> None:
        """End after the last step, which is saved."""
        ...


def train(
    parts: Parts, run: RunDirectory, interrupts: Interrupts, on_step: OnStep, source: Source | None = None
) -> Training:
    """Train until the last step, or until `stop_after_idle_steps` in a row had nothing to learn from; `on_step` shows
    each step and validation to the person. `source`: who plays; None: this process, in turns with the updates.

    Raises KeyboardInterrupt after saving, when interrupted; UserError, after saving too, when a whole step had nothing
    to learn from because every episode failed.
    """
    trainer = parts.experiment.ajet.trainer_common
    settings = parts.experiment.ajet
    tasks = task_order(parts.tasks("train"), settings)
    store = open_store(run, tasks) if source is None else source.open(parts, run, tasks, resumed_state(run, tasks))
    training = Training.begin(parts, run, store, tasks, on_step)
    total = training.total_steps
    _review(parts, training.algorithm, len(tasks), beside=source is None or source.ends)
    with source.shown(training) if source is not None else nullcontext():
        try:
            validates = parts.reader.has("validation")
            if validates and owes_validation(
                training, total
            ):  # before the first step, or what an interruption kept from happening
                validate(training, parts)
                training.saved_step = -1  # a checkpoint of this step there may be: it lacks what was just measured
            if source is not None:
                source.begun(training)
            while training.step < total and not training.exhausted:
                with interrupts.patient(trainer.grace, source.worth if source is not None else None):
                    if source is None:
                        train_step(training, parts, tasks, interrupts)
                    else:
                        source.step(training, tasks, interrupts)
                if validates and owes_validation(training, total):
                    validate(training, parts)
                with interrupts.held():
                    if source is not None:
                        source.learned(training)
                    elif due(training.step, trainer.save_freq) or training.step == total:
                        training.save()
        except KeyboardInterrupt:
            interrupts.heard()
            with interrupts.held():  # a second one does not cost the checkpoint
                training.save_interrupted()
            if source is not None and not training.torn:
                source.interrupted(training, interrupts)
            raise
        except UserError as problem:
            if source is None and not isinstance(problem, CANNOT_NOW):  # who samples elsewhere has each step saved
                with interrupts.held():
                    training.save_ended()
            raise
    training.save()
    if source is not None:
        source.ended(training)
    return training


def task_order(tasks: Sequence[Task], settings: AjetConfig) -> TaskOrder:
    """The order in which a run of these settings trains on them."""
    data = settings.data
    graded = data.curriculum.prefer is not None
    curriculum = Curriculum([task.task_id for task in tasks], data.curriculum, settings.seed) if graded else None
    return TaskOrder(tasks, seed=settings.seed, shuffle=data.shuffle, curriculum=curriculum)


def _review(parts: Parts, algorithm: Algorithm, tasks: int, *, beside: bool) -> None:
    validates = parts.reader.has("validation")
    said = describe_remarks(
        parts.experiment,
        algorithm,
        train=tasks,
        validates=validates,
        workflow=None if parts.judge.judges else parts.workflow,
        known=overlap(parts.tasks("train"), parts.tasks("validation")) if validates else None,
        beside=beside,
    )
    if said:
        logger.warning("{}", said)


def train_step(training: Training, parts: Parts, tasks: TaskOrder, interrupts: Interrupts) -> None:
    """One step: tasks -> episodes -> credit -> update -> record."""
    settings = parts.experiment.ajet
    step = training.step + 1
    began = time.monotonic()
    training.run.status.set(phase="rollout", step=step)
    leases = {lease.order: lease for lease in training.store.lease(_tasks_to_start(settings))}
    training.show_depths(closed=0)
    taken = [(order, tasks.task(order)) for order in leases]
    groups: list[Group] = []
    oversampled: list[Group] = []
    given_back: list[Lease] = []
    for ended in parts.rollout.stream(taken, step=step, split="train"):
        if isinstance(ended, GivenBack):
            given_back.append(leases[ended.order])
        else:
            (groups if ended.kept else oversampled).append(ended.group)
            training.show_depths(closed=len(groups) + len(oversampled))
    groups.sort(key=lambda group: group.order)
    refuse_if_all_failed(episodes_of(groups), step)
    played = FirstHalf(began, groups, unused={"oversampled": oversampled}, unfinished=given_back)
    learn(training, played, interrupts)


def due(step: int, every: int) -> bool:
    """Whether something that is done every so many steps is done after this one; 0 or less: never."""
    return every > 0 and step % every == 0


def owes_validation(training: Training, last: int | None) -> bool:
    """Whether a validation is due after the present step and has not been. `last`: the last step; None: there is
    none."""
    trainer = training.parts.experiment.ajet.trainer_common
    if training.validated == training.step:
        return False
    if training.step == 0:
        return trainer.val_before_train
    return due(training.step, trainer.test_freq) or (training.step == last and bool(training.last_validation))


def validate(training: Training, parts: Parts) -> None:
    """Play the held-out tasks after the present step."""
    training.last_validation, training.measured = evaluate(
        parts, training.run, step=training.step, on_step=training.on_step, total=training.total_steps
    )
    training.validated = training.step


def _tasks_to_start(settings: AjetConfig) -> int:
    """More than the batch needs where oversampling is on: the first groups with something to learn from are kept."""
    rollout = settings.rollout
    factor = rollout.submit_oversample_multiplier if rollout.enable_oversample else 1.0
    return math.ceil(settings.data.train_batch_size * factor)
