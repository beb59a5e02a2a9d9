"""Batch: what clients of `ajet serve` brought for the next step, and when it is enough.

Invariant: every result of the desk's is in it once: to be trained on, or with the reason why not, or recorded only.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from loguru import logger

from ajet.algorithm.staleness import staleness
from ajet.schema.episode import Episode, Group

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.rollout.served import EpisodeRegistry
    from ajet.train.step import UnusedGroups


@dataclass(slots=True)
class Batch:
    """The episodes that came in for a step."""

    step: int
    groups: list[Group] = field(default_factory=list)
    """With something to train on."""
    useless: list[Group] = field(default_factory=list)
    """Without any scored episode."""
    stale: list[Group] = field(default_factory=list)
    """Too old."""
    alone: list[Episode] = field(default_factory=list)
    """Recorded only, as their clients wished."""
    held_out: list[Episode] = field(default_factory=list)
    """The same, at held-out tasks."""
    began: float | None = None
    """When its first group came in, by the monotonic clock."""

    def whole(self, settings: AjetConfig) -> bool:
        """Whether a step is to be made of it, as `serve` says."""
        size, serve = settings.data.train_batch_size, settings.serve
        if self.began is not None and self.patience(serve.batch_seconds) == 0.0:
            return True
        if serve.batch_by == "tasks":
            return len({group.task.task_id for group in self.groups}) >= size
        if serve.batch_by == "episodes":
            scored = sum(episode.scored for group in self.groups for episode in group.episodes)
            return scored >= size * settings.rollout.num_repeat
        return len(self.groups) >= size

    def patience(self, seconds: float | None) -> float | None:
        """The seconds that it may wait still; None: for ever."""
        if seconds is None or self.began is None:
            return None
        return max(0.0, self.began + seconds - time.monotonic())

    @property
    def results(self) -> list[Group | Episode]:
        """All groups and episodes of the batch."""
        return [*self.groups, *self.useless, *self.stale, *self.alone, *self.held_out]

    @property
    def unused(self) -> UnusedGroups:
        """The groups that no batch takes, by the reason."""
        return {"no_score": self.useless, "stale": self.stale}

    def add(self, result: Group | Episode, version: int = 0, max_staleness: int | None = None) -> None:
        """Take in one result of the desk's, for an update of the policy's `version`."""
        if isinstance(result, Episode):
            (self.held_out if result.split == "validation" else self.alone).append(result)
            return
        oldest = staleness(result.episodes, version)
        stale = max_staleness is not None and oldest > max_staleness
        if stale:
            logger.warning(
                "task {}: {:g} steps old, more than trainer_common.max_staleness: recorded, and not trained on",
                result.task.task_id,
                oldest,
            )
        (self.stale if stale else self.groups if result.scored else self.useless).append(result)
        if self.groups and self.began is None:
            self.began = time.monotonic()


def take_results(desk: EpisodeRegistry) -> list[Group | Episode]:
    """Return the groups and episodes that are there already."""
    found: list[Group | Episode] = []
    while True:
        try:
            found.append(desk.results.get_nowait())
        except queue.Empty:
            return found
