"""One training step: the groups that it takes, what its update returned, and the step as it is recorded.

Every training uses these types, whichever process has its optimizer. `RunSink.commit` records a `TrainedStep`.
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
"""Groups that no batch takes, by reason."""


@dataclass(frozen=True, slots=True)
class StepGroups:
    """The groups that a source brings for one step."""

    began: float
    """Start of the step, by the monotonic clock in seconds."""
    groups: Sequence[Group]
    """Groups that the step trains on, by order."""
    unused: UnusedGroups = field(default_factory=dict)
    """Groups that are only recorded."""
    unfinished: Sequence[Lease] = ()
    """Leases that are given back, so that their tasks are played again."""
    single: Sequence[Episode] = ()
    """Episodes of no group, which are only recorded."""
    held_out: Sequence[Episode] = ()
    """Attempts of clients at held-out tasks: a validation that is recorded with the step."""
    by_samplers: bool = False
    """True if samplers in other processes played the groups."""
    reuse: GroupReuse = field(default_factory=GroupReuse)
    """Which groups were trained on before, and which may be again."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Reasons of each failed attempt, by order, for positions that were given up since the last step."""
    dead: int = 0
    """Number of all positions that were given up."""
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """Number of groups that could not be trained on, by kind."""
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
    """What the update of one step returned."""

    version: int
    """Policy version that the step was trained from."""
    metrics: Mapping[str, float]
    fresh_gap: float | None = None
    """Mean gap in nats per token between the trainer's and the samplers' log-probabilities; None: not measured."""


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A step whose update is over, to be recorded."""

    step: int
    version: int
    """Policy version that the step was trained from."""
    groups: Sequence[Group]
    """Groups that the metrics are over."""
    outcomes: Mapping[str, Outcome]
    """Outcomes of all episodes, by uuid."""
    tokens: Mapping[str, int]
    """Number of trained tokens, by uuid."""
    metrics: Mapping[str, float]
    """Metrics of credit, update and clock."""
    tasks: Sequence[int]
    """Orders of the groups in the batch that no earlier step trained on."""
    retrained: Sequence[int] = ()
    """Orders of the groups in the batch that an earlier step trained on, too."""
    unused: Sequence[Group] = ()
    """Groups that are only recorded."""
    discarded: Sequence[int] = ()
    """Orders of the groups that no batch takes."""
    waiting: Sequence[int] = ()
    """Orders of tasks that were begun and are in no step yet."""
    given_up: Mapping[int, Sequence[str]] = field(default_factory=dict)
    dead: int = 0
    quarantined: Mapping[str, int] = field(default_factory=dict)
    """This and the two fields above: as in `StepGroups`."""

    def newest_version(self, episode: Episode) -> int:
        """Return the latest policy version that can have sampled an episode.

        An episode that the update did not use may have ended after the update.
        """
        is_trained = self.outcomes.get(episode.uuid, NO_OUTCOME).step is not None
        return self.version if is_trained else self.version + 1


class StepObserver(Protocol):
    """Looks at each training step of a run; plug-ins register observers (`Plugin.step_observers`).

    An observer changes nothing of the run; what it returns is in the step's row of metrics.
    """

    def __init__(self, settings: AjetConfig, words: Renderer | None) -> None:
        """Begin with a run. `words`: its renderer; None for a model without tokens."""

    def metrics(self, episodes: Sequence[Episode], step: int, newest: Callable[[Episode], int]) -> dict[str, float]:
        """Return numbers of a step's episodes, before it is recorded.

        Args:
            newest: returns the latest policy version that can have sampled an episode.
        """

    def recomputed(self, episodes: Sequence[Episode], step: int, backbone: Backbone) -> dict[str, float]:
        """Return numbers that take the present weights, for a step whose update does not compare log-probabilities."""


class StepObservers:
    """Calls all observers of a run."""

    def __init__(self, settings: AjetConfig, words: Renderer | None) -> None:
        kinds: Iterator[type[StepObserver]] = load_references("step_observers", "step observer")
        self._observers = [kind(settings, words) for kind in kinds]

    def metrics(self, episodes: Sequence[Episode], step: int, newest: Callable[[Episode], int]) -> dict[str, float]:
        """Return the numbers of all observers."""
        found: dict[str, float] = {}
        for observer in self._observers:
            found |= observer.metrics(episodes, step, newest)
        return found

    def recomputed(self, episodes: Sequence[Episode], step: int, backbone: Backbone) -> dict[str, float]:
        """Return the numbers of all observers that take the present weights."""
        found: dict[str, float] = {}
        for observer in self._observers:
            found |= observer.recomputed(episodes, step, backbone)
        return found
