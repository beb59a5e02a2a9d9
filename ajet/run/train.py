"""The loop: take tasks, play them, give credit, update, record. This is the recipe and the real thing at once.

Invariants: a task counts as trained in the same commit as the checkpoint that contains it (DESIGN decision 9), so a
killed run continues from its last checkpoint with the same tasks in the same order; the first Ctrl-C ends the run
between two steps and leaves a checkpoint of all that was learned; so does SIGTERM, once the present step has ended or
`trainer_common.grace` is over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger

from ajet.algorithm import Algorithm, credit, discarded, opened
from ajet.backbone.decoupled.closed_groups import Reuse
from ajet.backbone.runner import Interrupts, OnStep, Trained
from ajet.backbone.scoring import scored
from ajet.record.held_out import Measurement
from ajet.record.learned import is_idle
from ajet.rollout import GivenBack
from ajet.rollout.failure import refuse_if_all_failed
from ajet.rollout.wiring import renderer_of
from ajet.run.gaming import GamingWatch
from ajet.run.parts import Parts
from ajet.run.review import review_run
from ajet.run.step import conclude
from ajet.run.step_proof import StepProof
from ajet.run.validation import conclude_held_out, evaluate
from ajet.schema.episode import episodes_of
from ajet.store import open_store as open_ledger
from ajet.store import todays_state
from ajet.task_reader import TaskOrder
from ajet.task_reader.contamination import overlap
from ajet.task_reader.curriculum import Curriculum

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.schema.batch import Sample, TrainingBatch
    from ajet.schema.call import Floats
    from ajet.schema.episode import Episode, Group, UntrainedReason
    from ajet.schema.task import Task
    from ajet.store import Lease, Store

Assign = Callable[["Sequence[Group]", int], "TrainingBatch"]
"""The groups of a step, and its number."""
Unused = Mapping["UntrainedReason", Sequence["Group"]]
"""Groups that no batch takes, by the reason."""


class Learning(Protocol):
    """The parts that an update needs, wherever its episodes come from."""

    experiment: Experiment
    backbone: Backbone


class Source(Protocol):
    """Where the groups of a step come from, when they are not played here in turns with the updates."""

    def open(self, parts: Parts, run: RunDirectory, tasks: TaskOrder, at: Mapping[str, Any] | None) -> Store:
        """The run's store, at what a checkpoint holds of it. Raises UserError."""
        ...

    def begun(self, training: Training) -> None:
        """The weights are those that the run goes on from."""
        ...

    def step(self, training: Training, tasks: TaskOrder, interrupts: Interrupts) -> None:
        """One step, which ends in `learn`."""
        ...

    def learned(self, training: Training) -> None:
        """The step is over, and what is due after it: to be saved now."""
        ...

    def ended(self, training: Training) -> None:
        """It was the last one, and is saved."""
        ...


@dataclass(slots=True)
class Training:
    """The loop's own state: everything a checkpoint must hold besides the backbone's."""

    parts: Learning
    run: RunDirectory
    store: Store
    tasks: TaskOrder | None
    """None: clients bring them all."""
    on_step: OnStep
    step: int = 0
    saved_step: int = -1
    last_validation: dict[str, float] = field(default_factory=dict)
    validated: int = -1
    """The step after which that was; -1: none yet."""
    measured: Measurement | None = None
    """What it measured, in this process."""
    assign: Assign | None = None
    """How groups become a batch; None: by the algorithm's credit."""
    idle: int = 0
    """Steps of this process in a row, up to the present one, that had nothing to learn from."""
    left: list[int] = field(default_factory=list)
    """Positions that were recorded as left over when a server ended, and are in no row of metrics."""
    proof: StepProof = field(init=False)
    gaming: GamingWatch = field(init=False)
    algorithm: Algorithm = field(init=False)

    def __post_init__(self) -> None:
        self.algorithm = opened(self.parts.experiment.ajet, base=self.parts.experiment.base)
        settings, tokenizer = self.parts.experiment.ajet, self.parts.backbone.tokenizer
        self.proof = StepProof(settings, renderer_of(settings, tokenizer) if tokenizer is not None else None)

    @classmethod
    def begin(
        cls, parts: Learning, run: RunDirectory, store: Store, tasks: TaskOrder | None, on_step: OnStep
    ) -> Training:
        """From the checkpoint that the run resumes, at which `store` was opened, or from nothing."""
        training = cls(parts, run, store, tasks, on_step)
        if run.resumed is not None:
            parts.backbone.load(run.resumed.path)
            training.step = training.saved_step = run.resumed.step
            training.last_validation = dict(run.resumed.state.get("validation", {}))
            training.validated = run.resumed.state.get("validated", training.step)
            training.left = [int(order) for order in run.resumed.state.get("left", ())]
            counted = run.recovery(store.begun(), training.left)
            logger.info("resumed after step {} from {}{}", training.step, run.resumed.path, counted)
        run.take_up()
        training.gaming = GamingWatch(run, upto=training.step)
        return training

    @property
    def exhausted(self) -> bool:
        """Whether so many steps in a row had nothing to learn from that the run is to end."""
        most = self.parts.experiment.ajet.trainer_common.stop_after_idle_steps
        return most > 0 and self.idle >= most

    @property
    def total_steps(self) -> int:
        """`total_training_steps`, or `total_epochs` over the tasks."""
        return self.parts.experiment.ajet.total_steps(len(self.tasks) if self.tasks is not None else 0)

    def batch(self, groups: Sequence[Group], step: int) -> TrainingBatch:
        """Of a step's groups, with the outcome of each of their episodes."""
        if self.assign is not None:
            return self.assign(groups, step)
        settings = self.parts.experiment.ajet
        reference = _reference(self) if _needs_reference(settings) else None
        critic = self.parts.backbone.values if "critic" in self.algorithm.needs else None
        return credit(groups, settings, self.algorithm, step=step, reference=reference, critic=critic)

    def show_depths(self, **more: int) -> None:
        """For `ajet status`: what is begun and not over, and `more`."""
        self.run.status.set(depths={"leased": len(self.store.begun()), **more})

    def save(self) -> None:
        """A checkpoint of the present step, atomically; a no-op if it exists."""
        if self.saved_step == self.step:
            return
        state: dict[str, Any] = {
            "frontier": {**self.store.commit(), **(self.tasks.identity() if self.tasks is not None else {})},
            "validation": self.last_validation,
            "validated": self.validated,
            **({"left": self.left} if self.left else {}),
        }
        self.run.status.set(phase="checkpoint", step=self.step)
        measured = self.measured if self.validated == self.step else None
        self.run.checkpoints.save(self.step, self.parts.backbone.save, state, measured=measured)
        self.saved_step = self.step
        self.store.forget(self.run.checkpoints.horizon)
        self.run.retain()

    def save_interrupted(self) -> None:
        """The same, at a Ctrl-C."""
        if self.step == 0:
            logger.warning("interrupted before the first step ended: nothing to save")
            return
        logger.warning("interrupted: saving a checkpoint after step {}", self.step)
        self.save()


def open_store(run: RunDirectory, tasks: TaskOrder | None, folder: Path | None = None) -> Store:
    """The run's, at the checkpoint that it resumes. `folder`: for ends that must outlive the process. Raises TaskError
    where the checkpoint was made over other tasks."""
    return open_ledger(
        run.experiment,
        run.path,
        pending=folder,
        ledger=run.run_id,
        at=resumed_state(run, tasks),
        redact=run.redact,
    )


def resumed_state(run: RunDirectory, tasks: TaskOrder | None) -> dict[str, Any] | None:
    """What the checkpoint that the run resumes holds of the store. Raises TaskError as `open_store` does."""
    state = todays_state(run.resumed.state["frontier"]) if run.resumed is not None else None
    if state is not None and tasks is not None:
        tasks.restore(state)
    return state


def train(
    parts: Parts, run: RunDirectory, interrupts: Interrupts, on_step: OnStep, source: Source | None = None
) -> Training:
    """Train until the last step, or until `stop_after_idle_steps` in a row had nothing to learn from; `on_step` shows
    each step and validation to the person. `source`: who plays; None: this process, in turns with the updates.

    Raises KeyboardInterrupt after saving, when interrupted; UserError when a whole step had nothing to learn from
    because every episode failed.
    """
    trainer = parts.experiment.ajet.trainer_common
    settings = parts.experiment.ajet
    tasks = task_order(parts.tasks("train"), settings)
    store = open_store(run, tasks) if source is None else source.open(parts, run, tasks, resumed_state(run, tasks))
    training = Training.begin(parts, run, store, tasks, on_step)
    total = training.total_steps
    _review(parts, training.algorithm, len(tasks))
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
            if source is None:
                with interrupts.patient(trainer.grace):
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


def _review(parts: Parts, algorithm: Algorithm, tasks: int) -> None:
    validates = parts.reader.has("validation")
    said = review_run(
        parts.experiment,
        algorithm,
        train=tasks,
        validates=validates,
        workflow=parts.workflow,
        judged=parts.judge.judges,
        known=overlap(parts.tasks("train"), parts.tasks("validation")) if validates else None,
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
    learn(training, groups, interrupts, began=began, unused={"oversampled": oversampled}, unfinished=given_back)


def learn(
    training: Training,
    groups: Sequence[Group],
    interrupts: Interrupts,
    *,
    began: float,
    unused: Unused | None = None,
    unfinished: Sequence[Lease] = (),
    alone: Sequence[Episode] = (),
    held_out: Sequence[Episode] = (),
    given_up: Mapping[int, Sequence[str]] | None = None,
    dead: int = 0,
    reuse: Reuse | None = None,
) -> None:
    """The second half of a step: episodes -> credit -> update -> record. `began`: the step's start, monotonic;
    `unused` groups, and episodes of no group, are recorded only; those `held_out` are a validation, recorded with the
    step; `unfinished` are to be leased again; `given_up`, `dead`: see `Trained`. `reuse`: which groups were trained on
    before, and which may be again; None: none."""
    parts, run, store = training.parts, training.run, training.store
    settings = parts.experiment.ajet
    step = training.step + 1
    played = time.monotonic()
    unused, reuse = unused or {}, reuse or Reuse()
    left = [group for each in unused.values() for group in each]
    episodes = episodes_of(groups)
    run.status.set(phase="update", step=step)
    with interrupts.held():
        batch = training.batch(groups, step)
        outcomes, version = dict(batch.outcomes), parts.backbone.version
        for reason, each in unused.items():
            outcomes |= discarded(each, reason)
        numbers = dict(batch.metrics)
        if settings.rollout.truncates or not batch.samples:
            numbers |= training.proof.recomputed(episodes, step, parts.backbone)
        if batch.samples:
            numbers = parts.backbone.update(batch).metrics | numbers
        numbers["version"] = parts.backbone.version
        used = [*(group.order for group in groups), *(each.order for each in (*alone, *held_out))]
        if staying := reuse.staying(groups, outcomes):
            store.use(used, step, again=staying)
        else:
            store.use(used, step)
        if reuse.worn:
            store.discard(reuse.worn, step, "stale")
        for reason, each in unused.items():
            store.discard([group.order for group in each], step, reason)
        store.give_back(unfinished)
        waiting = store.begun()
        if training.tasks is not None:
            training.tasks.learned([*groups, *left], waiting)
        trained = Trained(
            step,
            version,
            groups,
            outcomes,
            batch.trained_by_episode,
            numbers | _seconds(began, played),
            tasks=[group.order for group in groups if group.order not in reuse.before],
            again=[group.order for group in groups if group.order in reuse.before],
            aside=left,
            discarded=[group.order for group in left],
            waiting=waiting,
            given_up=given_up or {},
            dead=dead,
        )
        if alone:
            run.episodes.write(step, "debug", alone)
        metrics = conclude(
            trained,
            settings,
            run,
            proof=training.proof,
            gaming=training.gaming,
            on_step=training.on_step,
            total=training.total_steps,
        )
        conclude_held_out(held_out, run, step=step, on_step=training.on_step, total=training.total_steps)
        training.idle = training.idle + 1 if is_idle(metrics) else 0
        training.step = step


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


def _needs_reference(settings: AjetConfig) -> bool:
    return bool(settings.trainer_common.algorithm.use_kl_in_reward)


def _reference(training: Training) -> Callable[[list[Sample]], tuple[list[Any], list[Any]]]:
    settings, backbone = training.parts.experiment.ajet, training.parts.backbone

    def under(samples: list[Sample], *, reference: bool) -> list[Floats]:
        with backbone.scorer(reference=reference) as scorer:
            tokens, temperature = settings.trainer_common.micro_batch_tokens, settings.rollout.temperature
            return scored(scorer, samples, tokens=tokens, temperature=temperature)

    return lambda samples: (under(samples, reference=False), under(samples, reference=True))


def _seconds(began: float, played: float) -> dict[str, float]:
    now = time.monotonic()
    return {"seconds/rollout": played - began, "seconds/update": now - played, "seconds/step": now - began}
