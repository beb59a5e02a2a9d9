"""RunSink: where the steps and validations of a run end that is trained in other processes.

Invariant: they end as those of the local loop do, in `conclude` and `conclude_validation`, in the process that the
person started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from loguru import logger

from ajet.train.gaming import GamingWatch
from ajet.train.remarks import describe_remarks
from ajet.train.step import conclude
from ajet.train.step_observers import StepObservers
from ajet.train.validation import conclude_validation

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.backbone.runner import OnStep, Trained
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.record.held_out import Measurement
    from ajet.schema.episode import Episode, Group
    from ajet.task_reader.contamination import Overlap
    from ajet.tokens import Renderer


class Shown(Protocol):
    """The view that a person has of a training (`TrainingProgress`)."""

    def on_episode(self, episode: Episode) -> None: ...

    def on_step(self, step: int, total: int, metrics: dict[str, float]) -> None: ...


class RunSink:
    """See `ajet.backbone.runner.Sink`."""

    def __init__(self, experiment: Experiment, run: RunDirectory, shown: Shown) -> None:
        self._experiment, self._run, self._shown = experiment, run, shown
        self._total = 0
        self._observers: StepObservers | None = None
        self._gaming: GamingWatch | None = None

    @property
    def on_step(self) -> OnStep:
        return self._shown.on_step

    def review(self, algorithm: Algorithm, *, train: int, validates: bool, known: Overlap | None) -> None:
        if said := describe_remarks(self._experiment, algorithm, train=train, validates=validates, known=known):
            logger.warning("{}", said)

    def begin(self, words: Renderer | None, *, total: int) -> None:
        self._total = total
        self._observers = StepObservers(self._experiment.ajet, words)
        self._gaming = GamingWatch(self._run, upto=self._run.resumed.step if self._run.resumed else 0)

    def on_episode(self, episode: Episode) -> None:
        self._shown.on_episode(episode)

    def conclude(self, trained: Trained) -> dict[str, float]:
        assert self._observers is not None and self._gaming is not None, "`begin` comes first"
        return conclude(
            trained,
            self._experiment.ajet,
            self._run,
            observers=self._observers,
            gaming=self._gaming,
            on_step=self.on_step,
            total=self._total,
        )

    def conclude_validation(
        self, groups: Sequence[Group], *, step: int, seconds: float
    ) -> tuple[dict[str, float], Measurement]:
        return conclude_validation(
            groups, self._run, step=step, seconds=seconds, on_step=self.on_step, total=self._total
        )
