"""The record of steps and validations of a run that is trained in other processes.

Invariant: they end as those of the local loop do, in `conclude` and `conclude_validation`, in the process that the
person started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from loguru import logger

from ajet.train.gaming import GamingWatch
from ajet.train.remarks import describe_remarks
from ajet.train.step import conclude
from ajet.train.step_observers import StepObservers
from ajet.train.validation import conclude_validation

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm
    from ajet.config import Experiment
    from ajet.record import RunDirectory
    from ajet.record.held_out import Measurement
    from ajet.schema.episode import Episode, Group
    from ajet.task_reader.contamination import Overlap
    from ajet.tokens import Renderer
    from ajet.train.step import OnStep, Trained


class RunSink:
    """Takes the ended steps and validations of a training in other processes: accounting, record, screen."""

    def __init__(
        self, experiment: Experiment, run: RunDirectory, on_step: OnStep, on_episode: Callable[[Episode], None]
    ) -> None:
        """Record into `run`. `on_episode`: called when an episode has ended, from any thread."""
        self._experiment, self._run = experiment, run
        self.on_step, self.on_episode = on_step, on_episode
        self._total = 0
        self._observers: StepObservers | None = None
        self._gaming: GamingWatch | None = None

    def review(self, algorithm: Algorithm, *, train: int, validates: bool, known: Overlap | None) -> None:
        """Warn of what a training of `train` tasks cannot do well."""
        if said := describe_remarks(self._experiment, algorithm, train=train, validates=validates, known=known):
            logger.warning("{}", said)

    def begin(self, words: Renderer | None, *, total: int) -> None:
        """Prepare the first step.

        Args:
            words: the run's renderer; None for a model without tokens.
            total: the last step.
        """
        self._total = total
        self._observers = StepObservers(self._experiment.ajet, words)
        self._gaming = GamingWatch(self._run, upto=self._run.resumed.step if self._run.resumed else 0)

    def conclude(self, trained: Trained) -> dict[str, float]:
        """Record a step and return its metrics.

        Raises:
            AssertionError: a sampled token is neither trained nor counted.
            UserError: the record cannot be written.
        """
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
        """Record the held-out tasks' episodes after a step; return their metrics and what they measured."""
        return conclude_validation(
            groups, self._run, step=step, seconds=seconds, on_step=self.on_step, total=self._total
        )
