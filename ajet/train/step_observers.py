"""Observers of training steps, which plug-ins register (`Plugin.step_observers`).

Invariant: an observer changes nothing of the run; what it returns is in the step's row of metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from ajet.config.plugins import load_references

if TYPE_CHECKING:
    from ajet.backbone.contract import Backbone
    from ajet.config import AjetConfig
    from ajet.schema.episode import Episode
    from ajet.tokens import Renderer


class StepObserver(Protocol):
    """What looks at each training step of a run."""

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
    """All observers of a run, as one."""

    def __init__(self, settings: AjetConfig, words: Renderer | None) -> None:
        kinds: Iterator[type[StepObserver]] = load_references("step_observers", "step observer")
        self._observers = [kind(settings, words) for kind in kinds]

    def metrics(self, episodes: Sequence[Episode], step: int, newest: Callable[[Episode], int]) -> dict[str, float]:
        """Return the numbers of all observers."""
        found: dict[str, float] = {}
        for each in self._observers:
            found |= each.metrics(episodes, step, newest)
        return found

    def recomputed(self, episodes: Sequence[Episode], step: int, backbone: Backbone) -> dict[str, float]:
        """Return the numbers of all observers that take the present weights."""
        found: dict[str, float] = {}
        for each in self._observers:
            found |= each.recomputed(episodes, step, backbone)
        return found
