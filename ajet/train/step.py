"""A training step: its groups, the result of its update, and the record of the step.

Every training uses these types, in any process with an optimizer. `RunSink.commit` records a `TrainedStep`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ajet.backbone.decoupled.closed_groups import GroupReuse
from ajet.config.plugins import load_references
from ajet.schema.episode import NO_OUTCOME

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig
    from ajet.schema.episode import Episode, Group, Outcome, UntrainedReason
    from ajet.store import Lease
    from ajet.tokens import Renderer

OnStep = Callable[[int, int, dict[str, float]], None]
"""Called with (step, total steps, metrics)."""
UnusedGroups = Mapping["UntrainedReason", Sequence["Group"]]
"""Groups excluded from every batch, by reason."""


@dataclass(frozen=True, slots=True)
class StepGroups:
    """The groups and episodes that a source provides for a step."""

    began: float
    """Start of the step, by the monotonic clock in seconds."""
    groups: Sequence[Group]
    """Groups to train on, sorted by order."""
    unused: UnusedGroups = field(default_factory=dict)
    """Groups to record without training."""
    unfinished: Sequence[Lease] = ()
    """Leases to return, so that the tasks are played a second time."""
    single: Sequence[Episode] = ()
    """Episodes without a group, recorded only."""
    held_out: Sequence[Episode] = ()
    """Clients' attempts at held-out tasks, recorded as a validation of the step."""
    by_samplers: bool = False
    """True if samplers in other processes played the groups."""
    reuse: GroupReuse = field(default_factory=GroupReuse)
    """Groups trained before, and groups allowed to be trained a second time."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Reasons of each failed attempt, by order, for positions given up since the last step."""
    dead: int = 0
    """Number of positions (tasks in the training order) that failed too often and are skipped."""
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """Number of groups unusable for training, by kind."""
    ended: float = field(default_factory=time.monotonic)
    """End of the rollout, by the monotonic clock in seconds."""

    def measure_seconds(self) -> dict[str, float]:
        """Return the seconds of rollout, update and step, at the end of the step."""
        now = time.monotonic()
        return {
            "seconds/rollout": self.ended - self.began,
            "seconds/update": now - self.ended,
            "seconds/step": now - self.began,
        }


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """The metrics of a step's update, and the policy version before it."""

    version: int
    """Policy version before the update."""
    metrics: Mapping[str, float]
    fresh_gap: float | None = None
    """Mean gap in nats per token between the trainer's and the samplers' log-probabilities. None: not measured."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A step with a finished update, to be recorded."""

    step: int
    version: int
    """Policy version before the update."""
    groups: Sequence[Group]
    """Groups covered by the metrics."""
    outcomes: Mapping[str, Outcome]
    """Outcomes of all episodes, by uuid."""
    tokens: Mapping[str, int]
    """Number of trained tokens, by uuid."""
    metrics: Mapping[str, float]
    """Metrics of credit, update and clock."""
    tasks: Sequence[int]
    """Orders of the batch's groups that are trained for the first time."""
    retrained: Sequence[int] = ()
    """Orders of the batch's groups already trained by an earlier step."""
    unused: Sequence[Group] = ()
    """Groups recorded without being trained on."""
    discarded: Sequence[int] = ()
    """Orders of groups excluded from every batch."""
    waiting: Sequence[int] = ()
    """Orders of started tasks without a step yet."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    dead: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """`given_up`, `dead` and `quarantined` are copied from `StepGroups`."""

    def newest_version(self, episode: Episode) -> int:
        """Return the latest policy version that can have sampled an episode of the step.

        An episode that the update did not use may have ended after the update.
        """
        is_trained = self.outcomes.get(episode.uuid, NO_OUTCOME).step is not None
        return self.version if is_trained else self.version + 1


class StepObserver(Protocol):
    """Observe each training step of a run. Plug-ins register observers (`Plugin.step_observers`).

    An observer never changes the run. Its returned numbers enter the step's row of metrics.
    """

    def __init__(self, settings: AjetConfig, words: Renderer | None) -> None:
        """Prepare for a run.

        Args:
            words: The run's renderer, which decodes tokens. None: a model without tokens.
        """

    def metrics(self, episodes: Sequence[Episode], step: int, newest: Callable[[Episode], int]) -> dict[str, float]:
        """Return numbers of a step's episodes, before the step is recorded.

        Args:
            newest: Function that returns the latest policy version that can have sampled an episode.
        """

    def recomputed(self, episodes: Sequence[Episode], step: int, backbone: Backbone) -> dict[str, float]:
        """Return numbers that need the present weights.

        Called for a step whose update compares no log-probabilities of engine and trainer.
        """


class StepObservers:
    """Calls all observers of a run and merges their numbers."""

    def __init__(self, settings: AjetConfig, words: Renderer | None) -> None:
        kinds: Iterator[type[StepObserver]] = load_references("step_observers", "step observer")
        self._observers = [kind(settings, words) for kind in kinds]

    def metrics(self, episodes: Sequence[Episode], step: int, newest: Callable[[Episode], int]) -> dict[str, float]:
        """Return the metrics of all observers in one mapping.

        Args:
            episodes: The episodes of the step.
            step: Number of the step.
            newest: Function that returns the latest policy version that can have sampled an episode.
        """
        metrics: dict[str, float] = {}
        for observer in self._observers:
            metrics |= observer.metrics(episodes, step, newest)
        return metrics

    def recomputed(self, episodes: Sequence[Episode], step: int, backbone: Backbone) -> dict[str, float]:
        """Return the numbers computed by all observers with the present weights."""
        metrics: dict[str, float] = {}
        for observer in self._observers:
            metrics |= observer.recomputed(episodes, step, backbone)
        return metrics
