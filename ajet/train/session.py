"""Training: what a loop of updates is in the middle of, and its checkpoints.

Invariant: a checkpoint holds all of it that a resumed run cannot find again, and is made at the end of a step: never
while weights, store and record are not all at the same one (`torn`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger

from ajet.algorithm import Algorithm, credit, opened
from ajet.backbone.runner import OnStep
from ajet.backbone.scoring import scored
from ajet.record.held_out import Measurement
from ajet.rollout.wiring import renderer_of
from ajet.store import open_store as open_ledger
from ajet.store.given_up import GivenUp, dead_of
from ajet.task_reader import TaskOrder
from ajet.train.gaming import GamingWatch
from ajet.train.step_observers import StepObservers

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone, Update
    from ajet.config import AjetConfig, Experiment
    from ajet.record import RunDirectory
    from ajet.schema.batch import Sample, TrainingBatch
    from ajet.schema.call import Floats
    from ajet.schema.episode import Group
    from ajet.store import Store

Assign = Callable[["Sequence[Group]", int], "TrainingBatch"]
"""The groups of a step, and its number."""


class Learning(Protocol):
    """The parts that an update needs, wherever its episodes come from."""

    experiment: Experiment
    backbone: Backbone


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
    torn: bool = False
    """Whether weights, store or record may have gone beyond `step`, and not all of them: nothing is saved then."""
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
    observers: StepObservers = field(init=False)
    gaming: GamingWatch = field(init=False)
    algorithm: Algorithm = field(init=False)
    given_up: GivenUp = field(init=False)

    def __post_init__(self) -> None:
        self.given_up = GivenUp(self.store)
        self.algorithm = opened(self.parts.experiment.ajet, base=self.parts.experiment.base)
        settings, tokenizer = self.parts.experiment.ajet, self.parts.backbone.tokenizer
        self.observers = StepObservers(settings, renderer_of(settings, tokenizer) if tokenizer is not None else None)

    @classmethod
    def begin(
        cls, parts: Learning, run: RunDirectory, store: Store, tasks: TaskOrder | None, on_step: OnStep
    ) -> Training:
        """Begin from the checkpoint that the run resumes, at which `store` was opened, or from nothing."""
        training = cls(parts, run, store, tasks, on_step)
        if run.resumed is not None:
            parts.backbone.load(run.resumed.path)
            training.step = training.saved_step = run.resumed.step
            training.last_validation = dict(run.resumed.state.get("validation", {}))
            training.validated = run.resumed.state.get("validated", training.step)
            training.left = [int(order) for order in run.resumed.state.get("left", ())]
            counted = run.recovery(store.begun(), training.left, dead=[each.order for each in dead_of(store)])
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
        """The batch of a step's groups, with the outcome of each of their episodes."""
        if self.assign is not None:
            return self.assign(groups, step)
        settings = self.parts.experiment.ajet
        reference = _reference(self) if _needs_reference(settings) else None
        critic = self.parts.backbone.values if "critic" in self.algorithm.needs else None
        return credit(groups, settings, self.algorithm, step=step, reference=reference, critic=critic)

    def update(self, batch: TrainingBatch) -> Update:
        """The backbone's, with which a step begins to be more than played. After an interrupt that it undid, nothing
        has."""
        backbone = self.parts.backbone
        version, self.torn = backbone.version, True
        try:
            return backbone.update(batch)
        except BaseException:
            self.torn = backbone.whole_version != version
            raise

    def show_depths(self, **more: int) -> None:
        """For `ajet status`: what is begun and not over, and `more`."""
        self.run.status.set(depths={"leased": len(self.store.begun()), **more})

    def save(self) -> None:
        """A checkpoint of the present step, atomically; a no-op if it exists."""
        assert not self.torn, "what is there is of no step"
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
        """Save a checkpoint at a Ctrl-C; of a step that it cut apart nothing, as at a kill."""
        if self.torn:
            self.warn_torn()
        elif self.step == 0:
            logger.warning("interrupted before the first step ended: nothing to save")
        elif self.step == self.saved_step:
            logger.warning("interrupted: step {} is saved; the same command goes on from it", self.step)
        else:
            logger.warning("interrupted: saving a checkpoint after step {}", self.step)
            try:
                self.save()
            except KeyboardInterrupt:
                logger.warning("step {} is not saved: the run goes on {}", self.step, self._describe_latest())
                raise
            logger.warning("step {} is saved; the same command goes on from it", self.step)

    def save_ended(self) -> None:
        """Save a checkpoint where something outside of the training ends the run; of a step that it cut apart
        nothing."""
        if not self.torn and self.step > max(self.saved_step, 0):
            logger.warning("the run ends: saving a checkpoint after step {}", self.step)
            self.save()

    def warn_torn(self) -> None:
        """Say that nothing can be saved, and what the run goes on from."""
        logger.warning(
            "interrupted in the middle of a step's update: nothing is saved of it; the run goes on {}",
            self._describe_latest(),
        )

    def _describe_latest(self) -> str:
        """Return from where the run goes on."""
        latest = self.run.checkpoints.latest() or self.run.resumed
        if latest is None:
            return "from its beginning: it has no checkpoint"
        return f"from {latest.path}, after step {latest.step}"


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
    state = dict(run.resumed.state["frontier"]) if run.resumed is not None else None
    if state is not None and tasks is not None:
        tasks.restore(state)
    return state


def _needs_reference(settings: AjetConfig) -> bool:
    return bool(settings.trainer_common.algorithm.use_kl_in_reward)


def _reference(training: Training) -> Callable[[list[Sample]], tuple[list[Any], list[Any]]]:
    settings, backbone = training.parts.experiment.ajet, training.parts.backbone

    def under(samples: list[Sample], *, reference: bool) -> list[Floats]:
        with backbone.scorer(reference=reference) as scorer:
            tokens, temperature = settings.trainer_common.micro_batch_tokens, settings.rollout.temperature
            return scored(scorer, samples, tokens=tokens, temperature=temperature)

    return lambda samples: (under(samples, reference=False), under(samples, reference=True))
