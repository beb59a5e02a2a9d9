"""The state of a training: policy, store, task order and record, and checkpoints of them all.

Invariant: a checkpoint holds all state that a resumed run cannot recompute. A checkpoint is saved between two steps
only, never while weights, store and record are at different steps (`is_step_partial`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loguru import logger

from ajet.algorithm import Algorithm, assign_credit, build_discarded_outcomes, open_algorithm
from ajet.backbone.contract import score_samples
from ajet.record.held_out import Measurement
from ajet.record.learned import is_idle
from ajet.record.processors import used_processor_seconds
from ajet.rollout.components import make_renderer
from ajet.schema.episode import Group, Outcome, collect_advantages, list_episodes
from ajet.store import Store, is_shared
from ajet.store import open_store as open_ledger
from ajet.store.dead_letters import DeadLetterLog, list_dead_letters
from ajet.task_reader import TaskOrder
from ajet.train.interrupts import Interrupts
from ajet.train.privileged import make_privileged_scorer
from ajet.train.sink import RunSink
from ajet.train.step import StepGroups, StepUpdate, TrainedStep

if TYPE_CHECKING:
    from ajet.algorithm.credit_assignment import LogprobPairs
    from ajet.backbone.contract import Backbone
    from ajet.config import Experiment
    from ajet.config.schema.trainer_common import TrainerConfig
    from ajet.record import RunDirectory
    from ajet.schema.batch import Sample, TrainingBatch
    from ajet.schema.call import Floats

AssignCredit = Callable[["Sequence[Group]", int], "TrainingBatch"]
"""Build the batch of a step from its groups and its number."""


@dataclass(slots=True)
class TrainingSession:
    """A training of a run, from its begin or resume to its last step."""

    sink: RunSink
    """Records the steps of the run."""
    backbone: Backbone
    store: Store
    tasks: TaskOrder | None
    """None: clients bring all tasks."""
    interrupts: Interrupts
    credit_rule: AssignCredit | None = None
    """Converts groups into a batch. None: use the experiment's algorithm."""
    step: int = 0
    """The number of the last committed step."""
    is_step_partial: bool = False
    """True while weights, store and record may be at different steps. Saving is forbidden meanwhile."""
    saved_step: int | None = None
    """Step of the last checkpoint. None: no checkpoint."""
    is_checkpoint_outdated: bool = False
    """True if state has changed since the present step's checkpoint."""
    last_validation: dict[str, float] = field(default_factory=dict)
    validated_step: int = -1
    """Step of the last validation. -1, also in checkpoints: no validation yet."""
    measured: Measurement | None = None
    """Result of the last validation in this process."""
    idle_steps: int = 0
    """Consecutive steps of this process without a training signal, up to the present step."""
    leftover_orders: list[int] = field(default_factory=list)
    """Positions recorded as left over when a server ended, without a row of metrics."""
    experiment: Experiment = field(init=False)
    run: RunDirectory = field(init=False)
    algorithm: Algorithm = field(init=False)
    _given_up: DeadLetterLog = field(init=False)
    _processor_before: float = field(init=False)
    """Processor seconds used before the present step."""

    def __post_init__(self) -> None:
        """Start from scratch, or from the resumed checkpoint. `store` was opened at the same checkpoint."""
        self.experiment, self.run = self.sink.experiment, self.sink.run
        settings, run, tokenizer = self.experiment.ajet, self.run, self.backbone.tokenizer
        self._given_up = DeadLetterLog(self.store)
        self.algorithm = open_algorithm(settings, base=self.experiment.base)
        renderer = make_renderer(settings, tokenizer) if tokenizer is not None else None
        self.sink.begin(renderer, total=self.total_steps)
        if run.resumed is not None:
            self.backbone.load(run.resumed.path)
            self.step = self.saved_step = run.resumed.step
            self.last_validation = dict(run.resumed.state.get("validation", {}))
            self.validated_step = run.resumed.state.get("validated", self.step)
            self.leftover_orders = [int(order) for order in run.resumed.state.get("left", ())]
            recovery_text = run.recovery(
                self.store.begun(),
                self.leftover_orders,
                dead=[letter.order for letter in list_dead_letters(self.store)],
            )
            logger.info("resumed after step {} from {}{}", self.step, run.resumed.path, recovery_text)
        self._processor_before = used_processor_seconds()
        run.take_up()

    @property
    def trainer(self) -> TrainerConfig:
        """The settings of `trainer_common`."""
        return self.experiment.ajet.trainer_common

    @property
    def is_exhausted(self) -> bool:
        """True after `stop_after_idle_steps` consecutive steps without a training signal."""
        return 0 < self.trainer.stop_after_idle_steps <= self.idle_steps

    @property
    def task_order(self) -> TaskOrder:
        """The task order of a run with a complete list of tasks."""
        assert self.tasks is not None, "`ajet serve` has no tasks of its own"
        return self.tasks

    @property
    def total_steps(self) -> int:
        """`total_training_steps`, or `total_epochs` over the tasks."""
        return self.experiment.ajet.count_steps(len(self.tasks) if self.tasks is not None else 0)

    def is_validation_due(self, last: int | None, *, always_last: bool = False) -> bool:
        """Return True if the policy is to be validated after the present step and was not yet.

        Args:
            last: the last step. None: a run without end.
            always_last: validate after the last step even without an earlier validation.
        """
        if self.validated_step == self.step:
            return False
        if self.step == 0:
            return self.trainer.val_before_train
        is_last = self.step == last and (always_last or bool(self.last_validation))
        return is_due(self.step, self.trainer.test_freq) or is_last

    def note_validation(self, metrics: Mapping[str, float] | None = None, measured: Measurement | None = None) -> None:
        """Note that the present step was validated, so that it is not validated a second time.

        A checkpoint of the step that was saved before lacks the result and is saved again.

        Args:
            metrics: The validation's metrics. None: nothing was measured.
            measured: The rewards, which select the best checkpoint.
        """
        if metrics is not None:
            self.last_validation, self.measured = dict(metrics), measured
        self.validated_step, self.is_checkpoint_outdated = self.step, True

    def add_given_up(self, step_groups: StepGroups) -> StepGroups:
        """Add to a step's groups the positions that the store has given up since the last step.

        The store gives up a position of the training order after too many failed attempts.
        """
        given_up = self._given_up.log_new(self.tasks)
        return replace(step_groups, given_up=given_up, dead=self._given_up.count, ended=time.monotonic())

    def assign_credit(self, step_groups: StepGroups) -> TrainingBatch:
        """Return the batch of a step: samples with advantages, and what the batch does with each episode."""
        step, settings = self.step + 1, self.experiment.ajet
        if self.credit_rule is not None:
            return self.credit_rule(step_groups.groups, step)
        penalizes = settings.trainer_common.algorithm.use_kl_in_reward
        reference: LogprobPairs | None = self._score_twice if penalizes else None
        if "privileged" in self.algorithm.needs:
            reference = make_privileged_scorer(self.backbone, step_groups.groups, settings)
        critic = self.backbone.values if "critic" in self.algorithm.needs else None
        return assign_credit(
            step_groups.groups, settings, self.algorithm, step=step, reference=reference, critic=critic
        )

    def update(self, batch: TrainingBatch, step_groups: StepGroups) -> StepUpdate:
        """Update the weights with a batch and return the metrics. Without samples, only compute metrics.

        Afterwards the step is partial until `commit`: weights and record differ. If the update raises, the step is
        partial only if weights changed.
        """
        backbone, version = self.backbone, self.backbone.version
        metrics, fresh_gap = dict(batch.metrics), None
        if self.experiment.ajet.rollout.truncates_sampling or not batch.samples:
            metrics |= self.sink.observers.recomputed(list_episodes(step_groups.groups), self.step + 1, backbone)
        self.is_step_partial = True
        if batch.samples:
            try:
                updated = backbone.update(batch)
            except BaseException:
                self.is_step_partial = backbone.whole_version != version
                raise
            metrics, fresh_gap = updated.metrics | metrics, updated.fresh_gap
            if step_groups.by_samplers and fresh_gap is not None:
                metrics["sampler_gap"] = fresh_gap
        return StepUpdate(version, metrics | {"version": backbone.version}, fresh_gap)

    def commit(self, step_groups: StepGroups, batch: TrainingBatch, update: StepUpdate) -> None:
        """Record the step in the store, the task order and the run."""
        step, store = self.step + 1, self.store
        unused = [group for groups in step_groups.unused.values() for group in groups]
        outcomes = dict(batch.outcomes)
        for reason, groups in step_groups.unused.items():
            outcomes |= build_discarded_outcomes(groups, reason)
        self._mark_used(step_groups, step, outcomes)
        if step_groups.reuse.expired:
            store.discard(step_groups.reuse.expired, step, "stale")
        for reason, groups in step_groups.unused.items():
            store.discard([group.order for group in groups], step, reason)
        store.give_back(step_groups.unfinished)
        waiting = store.begun()
        if self.tasks is not None:
            self.tasks.record_results([*step_groups.groups, *unused], waiting)
        trained = TrainedStep(
            step,
            update.version,
            step_groups.groups,
            outcomes,
            batch.trained_by_episode,
            {**update.metrics, **step_groups.measure_seconds(), "seconds/processor": self._measure_processor()},
            tasks=[group.order for group in step_groups.groups if group.order not in step_groups.reuse.before],
            retrained=[group.order for group in step_groups.groups if group.order in step_groups.reuse.before],
            unused=unused,
            discarded=[group.order for group in unused],
            waiting=waiting,
            given_up=step_groups.given_up,
            dead=step_groups.dead,
            quarantined=step_groups.quarantined,
        )
        if step_groups.single:
            self.run.episodes.write(step, "debug", step_groups.single)
        metrics = self.sink.commit(trained)
        self.sink.commit_held_out(step_groups.held_out, step)
        self.idle_steps = self.idle_steps + 1 if is_idle(metrics) else 0
        self.step, self.is_step_partial = step, False

    def _measure_processor(self) -> float:
        """Return the processor seconds used since the last step was recorded."""
        seconds_before, self._processor_before = self._processor_before, used_processor_seconds()
        return self._processor_before - seconds_before

    def show_depths(self, **more: int) -> None:
        """Show the number of unfinished groups in `ajet status`.

        Args:
            more: Further counts to show, by name.
        """
        self.run.status.set(depths={"leased": len(self.store.begun()), **more})

    def save(self) -> None:
        """Save a checkpoint of the present step atomically, unless already saved."""
        assert not self.is_step_partial, "a checkpoint within a step could not be resumed"
        if self._is_saved:
            return
        state: dict[str, Any] = {
            "frontier": {**self.store.commit(), **(self.tasks.identity() if self.tasks is not None else {})},
            "validation": self.last_validation,
            "validated": self.validated_step,
            **({"left": self.leftover_orders} if self.leftover_orders else {}),
        }
        self.run.status.set(phase="checkpoint", step=self.step)
        measured = self.measured if self.validated_step == self.step else None
        self.run.checkpoints.save(self.step, self.backbone.save, state, measured=measured)
        self.saved_step, self.is_checkpoint_outdated = self.step, False
        self.store.forget(self.run.checkpoints.horizon)
        self.run.retain()

    def save_interrupted(self) -> None:
        """Save a checkpoint after an interrupt, unless the step is partial."""
        if self.is_step_partial:
            self.warn_partial_step()
        elif self.step == 0:
            logger.warning("interrupted before the first step ended: nothing to save")
        elif self._is_saved:
            logger.warning("interrupted: step {} is saved; the same command resumes the run after it", self.step)
        else:
            logger.warning("interrupted: saving a checkpoint after step {}", self.step)
            try:
                self.save()
            except KeyboardInterrupt:
                logger.warning("step {} could not be saved: the run resumes {}", self.step, self._describe_latest())
                raise
            logger.warning("step {} is saved; the same command resumes the run after it", self.step)

    def save_ended(self) -> None:
        """Save a checkpoint when an error ends the run, unless the step is partial."""
        if not self.is_step_partial and self.step > 0 and not self._is_saved:
            logger.warning("the run ends: saving a checkpoint after step {}", self.step)
            self.save()

    def warn_partial_step(self) -> None:
        """Warn that the partial step cannot be saved, and name the checkpoint for a resume."""
        logger.warning(
            "interrupted during a step's update: the step is not saved; the run resumes {}",
            self._describe_latest(),
        )

    @property
    def _is_saved(self) -> bool:
        """True if a checkpoint of the present step holds the present state."""
        return self.saved_step == self.step and not self.is_checkpoint_outdated

    def _describe_latest(self) -> str:
        """Describe the starting checkpoint of a resumed run."""
        latest = self.run.checkpoints.latest() or self.run.resumed
        if latest is None:
            return "from its beginning, because it has no checkpoint"
        return f"from {latest.path}, after step {latest.step}"

    def _score_twice(self, samples: list[Sample]) -> tuple[list[Floats], list[Floats]]:
        """Return the samples' log-probabilities under the policy and under the reference model."""
        return score_twice(
            self.backbone,
            samples,
            tokens=self.trainer.micro_batch_tokens,
            temperature=self.experiment.ajet.rollout.temperature,
        )

    def _mark_used(self, step_groups: StepGroups, step: int, outcomes: Mapping[str, Outcome]) -> None:
        """Record in the store that the step used its positions.

        In a shared store, groups that a later step may train on again stay available.
        """
        orders = [
            *(group.order for group in step_groups.groups),
            *(episode.order for episode in (*step_groups.single, *step_groups.held_out)),
        ]
        if is_shared(self.store):
            retrainable: Collection[int] = step_groups.reuse.find_retrainable(step_groups.groups, outcomes)
            self.store.use(orders, step, again=retrainable, advantages=collect_advantages(outcomes))
        else:
            self.store.use(orders, step)


def score_twice(
    backbone: Backbone, samples: list[Sample], *, tokens: int, temperature: float
) -> tuple[list[Floats], list[Floats]]:
    """Return the log-probabilities of samples under the policy and under the reference model.

    Args:
        tokens: tokens of a forward pass (`micro_batch_tokens`).
    """
    scores = []
    for reference in (False, True):
        with backbone.scorer(reference=reference) as scorer:
            scores.append(score_samples(scorer, samples, tokens=tokens, temperature=temperature))
    policy, reference_model = scores
    return policy, reference_model


def is_due(step: int, every: int) -> bool:
    """Return True every `every` steps, and never if `every` is 0 or less."""
    return every > 0 and step % every == 0


def open_store(run: RunDirectory, tasks: TaskOrder | None, folder: Path | None = None) -> Store:
    """Open the run's store at the resumed checkpoint.

    Args:
        folder: folder for finished episodes that must outlive the process.

    Raises:
        TaskError: the checkpoint was made with other tasks.
    """
    return open_ledger(
        run.experiment,
        run.path,
        pending=folder,
        ledger=run.run_id,
        at=read_resumed_frontier(run, tasks),
        redact=run.redact,
    )


def read_resumed_frontier(run: RunDirectory, tasks: TaskOrder | None) -> dict[str, Any] | None:
    """Return the store's state in the resumed checkpoint (the frontier), or None without a checkpoint.

    The task order is restored from it. Raises TaskError if the checkpoint was made with other tasks.
    """
    state = dict(run.resumed.state["frontier"]) if run.resumed is not None else None
    if state is not None and tasks is not None:
        tasks.restore(state)
    return state
