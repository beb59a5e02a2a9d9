"""The batch of the next step of `ajet serve`, collected from episodes finished by clients.

Invariant: every result is in the batch exactly once: for training, with a reason against training, or for the record
only.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loguru import logger

from ajet.algorithm.staleness import measure_staleness
from ajet.schema.episode import Episode, Group

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.rollout.served import EpisodeRegistry
    from ajet.train.step import UnusedGroups


@dataclass(slots=True)
class ServedBatch:
    """The groups and episodes finished by clients for a step."""

    step: int
    groups: list[Group] = field(default_factory=list)
    """Groups with a scored episode."""
    unscored: list[Group] = field(default_factory=list)
    """Groups without a scored episode."""
    stale: list[Group] = field(default_factory=list)
    """Groups with an age above `trainer_common.max_staleness`, never trained."""
    alone: list[Episode] = field(default_factory=list)
    """Episodes without a group, recorded only."""
    held_out: list[Episode] = field(default_factory=list)
    """Attempts at held-out tasks. They are recorded, never trained on."""
    began: float | None = None
    """Arrival of the first group, on the monotonic clock in seconds. None: no group yet."""

    def is_complete(self, settings: AjetConfig) -> bool:
        """Return True if the batch has enough groups for a step, or has waited long enough (`ajet.serve`)."""
        size, serve = settings.data.train_batch_size, settings.serve
        if self.seconds_left(serve.batch_seconds) == 0.0:
            return True
        if serve.batch_by == "tasks":
            return len({group.task.task_id for group in self.groups}) >= size
        if serve.batch_by == "episodes":
            scored = sum(episode.scored for group in self.groups for episode in group.episodes)
            return scored >= size * settings.rollout.num_repeat
        return len(self.groups) >= size

    def seconds_left(self, seconds: float | None) -> float | None:
        """Return the remaining seconds of the batch's time limit. None: no limit."""
        if seconds is None or self.began is None:
            return None
        return max(0.0, self.began + seconds - time.monotonic())

    @property
    def results(self) -> list[Group | Episode]:
        """All groups and episodes of the batch."""
        return [*self.groups, *self.unscored, *self.stale, *self.alone, *self.held_out]

    @property
    def unused(self) -> UnusedGroups:
        """The groups excluded from training, by reason."""
        return {"no_score": self.unscored, "stale": self.stale}

    def add(self, result: Group | Episode, version: int = 0, max_staleness: int | None = None) -> None:
        """Add a finished group or episode to the batch.

        Args:
            version: The policy version that the next update starts from.
            max_staleness: Maximum age of a trained group in policy versions. None: no limit.
        """
        if isinstance(result, Episode):
            (self.held_out if result.split == "validation" else self.alone).append(result)
            return
        oldest = measure_staleness(result.episodes, version)
        is_stale = max_staleness is not None and oldest > max_staleness
        if is_stale:
            logger.warning(
                "the group of task {} is not trained: it is {:g} steps old, more than trainer_common.max_staleness",
                result.task.task_id,
                oldest,
            )
        (self.stale if is_stale else self.groups if result.scored else self.unscored).append(result)
        if self.groups and self.began is None:
            self.began = time.monotonic()


def take_results(desk: EpisodeRegistry) -> list[Group | Episode]:
    """Return all groups and episodes that clients have finished and no step has taken yet."""
    results: list[Group | Episode] = []
    while True:
        try:
            results.append(desk.results.get_nowait())
        except queue.Empty:
            return results
