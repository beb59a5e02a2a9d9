"""Closed groups read from a shared store, and their selection for a training step.

Invariant: groups without a training step come before groups that were trained on. A group is trained on at most
`max_trained_count` times, not again within `retrained_interval` steps, and never if older than `max_staleness`. The
store counts and dates each use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ajet.algorithm.staleness import measure_staleness
from ajet.schema.episode import NO_OUTCOME, Episode, Group, Outcome, list_episodes

if TYPE_CHECKING:
    from ajet.backbone.decoupled.quarantine import Quarantine
    from ajet.config.schema.trainer_common import TrainerConfig
    from ajet.store import Lease, SharedStore
    from ajet.task_reader import TaskOrder


@dataclass(frozen=True, slots=True)
class GroupReuse:
    """The positions whose groups a step trains on again, or later steps may train on again."""

    before: Collection[int] = ()
    """Positions trained on by an earlier step."""
    retrainable: Collection[int] = ()
    """Positions whose groups may be trained on again in a later step."""
    expired: Collection[int] = ()
    """Positions outside the step: trained on before, now too old or used too often."""

    def find_retrainable(self, groups: Sequence[Group], outcomes: Mapping[str, Outcome]) -> list[int]:
        """Return the positions that later steps may train on again, if this step used one of their episodes.

        Other positions would yield no training data in later steps either.
        """
        return [
            group.order
            for group in groups
            if group.order in self.retrainable
            and any(outcomes.get(episode.uuid, NO_OUTCOME).step is not None for episode in group.episodes)
        ]


@dataclass(slots=True)
class ReadyGroups:
    """The closed groups available for a step."""

    groups: list[Group] = field(default_factory=list)
    """Groups to train on, in order."""
    stale: list[Group] = field(default_factory=list)
    """Groups too old to use and never trained on."""
    expired: list[int] = field(default_factory=list)
    """Positions of used groups, as in `GroupReuse`."""


class ClosedGroups:
    """Holds the complete groups of one store until a step takes them."""

    def __init__(self, store: SharedStore, trainer: TrainerConfig, quarantine: Quarantine | None = None) -> None:
        """Start without groups.

        Args:
            quarantine: Checks each group. None: groups are not checked.
        """
        self._store = store
        self._trainer = trainer
        self._quarantine = quarantine
        self._groups: dict[int, tuple[Group, tuple[int, ...]]] = {}
        """Each group with the steps that have trained on it, by position."""

    def read(self, tasks: TaskOrder, version: int) -> None:
        """Read groups that were completed since the last read, and drop those that cannot be trained on.

        Args:
            version: newest policy version known to the trainer.
        """
        for lease in self._store.closed(but=self._groups.keys()):
            task = tasks.task(lease.order)
            if self._quarantine is not None and not self._quarantine.admits(lease, task.task_id, version):
                continue
            self._groups[lease.order] = _build_group(lease, tasks), lease.used

    def ready(self, version: int, step: int) -> ReadyGroups:
        """Return the groups usable in an update of policy `version` at `step`: unused ones first, then
        the least used.
        """
        ready_groups, retrainable = ReadyGroups(), list[tuple[int, Group]]()
        use_limit, interval = self._trainer.algorithm.max_trained_count, self._trainer.algorithm.retrained_interval
        for order in sorted(self._groups):
            group, used_at_steps = self._groups[order]
            # a resumed run may have a lower max_trained_count
            if len(used_at_steps) >= use_limit or not is_fresh(group, version, self._trainer):
                if used_at_steps:
                    ready_groups.expired.append(order)
                else:
                    ready_groups.stale.append(group)
            elif not used_at_steps:
                ready_groups.groups.append(group)
            elif used_at_steps[-1] + interval <= step:
                retrainable.append((len(used_at_steps), group))
        ready_groups.groups += [group for _, group in sorted(retrainable, key=lambda pair: pair[0])]
        return ready_groups

    def take(self, groups: Sequence[Group], stale: Sequence[Group], expired: Sequence[int]) -> GroupReuse:
        """Remove the groups that a step uses, and groups too old or used too often.

        Groups that a later step may use again are read from the store then.

        Args:
            groups: Groups of the step.
            stale: Groups too old, never trained on.
            expired: Positions of groups trained on before, now too old or used too often.
        """
        steps_by_order = {group.order: self._groups.pop(group.order)[1] for group in groups}
        for order in (*(group.order for group in stale), *expired):
            del self._groups[order]
        use_limit = self._trainer.algorithm.max_trained_count
        retrainable = [order for order, steps in steps_by_order.items() if len(steps) + 1 < use_limit]
        return GroupReuse([order for order, steps in steps_by_order.items() if steps], retrainable, expired)


def is_fresh(group: Group, version: int, trainer: TrainerConfig) -> bool:
    """True if an update of policy `version` may train on the group.

    The oldest weights that sampled trained tokens are at most `max_staleness` versions old; a group without trained
    tokens is fresh. A group with a later version was sampled with weights that no checkpoint holds any more, and is
    refused.
    """
    return find_newest_version(group.episodes, version) <= version and (
        trainer.max_staleness is None or measure_staleness(group.episodes, version) <= trainer.max_staleness
    )


def list_samplers(groups: Iterable[Group], version: int) -> set[str]:
    """Return the remote samplers of episodes that were sampled by the policy `version` only."""
    return {episode.sampler for episode in list_episodes(groups) if episode.policy == (version, version)} - {""}


def find_newest_version(episodes: Iterable[Episode], version: int) -> int:
    """Return the latest policy version that sampled any of the episodes, or `version` if no call has a version."""
    return max((run.high for episode in episodes for call in episode.calls for run in call.versions), default=version)


def _build_group(lease: Lease, tasks: TaskOrder) -> Group:
    """Return the group of a position, with its episodes sorted by repeat."""
    episodes = sorted((stored.episode for stored in lease.attempts), key=lambda episode: episode.repeat)
    return Group(tasks.task(lease.order), lease.order, episodes)
