"""Closed groups that the trainer has read from a shared store, and which of them a step may be made of.

Invariants: a group that no step has trained on comes before one that a step has. None is trained on more often than
`max_trained_count`, none again within `retrained_interval` steps, none that is older than `max_staleness`; how often
and when it was is the store's to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ajet.algorithm.staleness import measure_freshness
from ajet.schema.episode import NO_OUTCOME, Episode, Group, Outcome, list_episodes

if TYPE_CHECKING:
    from ajet.backbone.decoupled.quarantine import Quarantine
    from ajet.config.schema.trainer_common import TrainerConfig
    from ajet.store import Lease, SharedStore
    from ajet.task_reader import TaskOrder


@dataclass(frozen=True, slots=True)
class GroupReuse:
    """The positions of a step that were trained on before, or may be once more."""

    before: Collection[int] = ()
    """A step has trained on these."""
    retrainable: Collection[int] = ()
    """A later step may train on these, too."""
    expired: Collection[int] = ()
    """None of the step's: trained on before, and too old by now, or too often, to be once more."""

    def find_retrainable(self, groups: Sequence[Group], outcomes: Mapping[str, Outcome]) -> list[int]:
        """The positions of `retrainable` of which this step has trained on something: of the others no later one would,
        either."""
        return [
            group.order
            for group in groups
            if group.order in self.retrainable
            and any(outcomes.get(each.uuid, NO_OUTCOME).step is not None for each in group.episodes)
        ]


@dataclass(slots=True)
class ReadyGroups:
    """The groups that are there for a step."""

    groups: list[Group] = field(default_factory=list)
    """To be trained on, in this order."""
    stale: list[Group] = field(default_factory=list)
    """Too old, and never trained on."""
    expired: list[int] = field(default_factory=list)
    """See `GroupReuse`."""


class ClosedGroups:
    """The closed groups of one store."""

    def __init__(self, store: SharedStore, trainer: TrainerConfig, quarantine: Quarantine | None = None) -> None:
        """`quarantine`: checks each group that is read; None: none is checked."""
        self._store, self._trainer, self._quarantine = store, trainer, quarantine
        self._groups: dict[int, tuple[Group, tuple[int, ...]]] = {}
        """Each with the steps that have trained on it."""

    def read(self, tasks: TaskOrder, version: int) -> None:
        """Read the groups that have closed meanwhile, without those that cannot be used. `version`: the newest policy
        that the trainer knows."""
        for lease in self._store.closed(but=self._groups.keys()):
            task = tasks.task(lease.order)
            if self._quarantine is not None and not self._quarantine.admits(lease, task.task_id, version):
                continue
            self._groups[lease.order] = _build_group(lease, tasks), lease.used

    def ready(self, version: int, step: int) -> ReadyGroups:
        """For that step, an update of the policy's `version`."""
        found, retrainable = ReadyGroups(), list[tuple[int, Group]]()
        most, rest = self._trainer.algorithm.max_trained_count, self._trainer.algorithm.retrained_interval
        for order in sorted(self._groups):
            group, used = self._groups[order]
            if len(used) >= most or not is_fresh(group, version, self._trainer):  # the run may go on with fewer times
                if used:
                    found.expired.append(order)
                else:
                    found.stale.append(group)
            elif not used:
                found.groups.append(group)
            elif used[-1] + rest <= step:
                retrainable.append((len(used), group))
        found.groups += [group for _, group in sorted(retrainable, key=lambda each: each[0])]
        return found

    def take(self, groups: Sequence[Group], stale: Sequence[Group], expired: Sequence[int]) -> GroupReuse:
        """Take groups out: they are a step's, or nobody's any more; what is used again is read again."""
        used = {group.order: self._groups.pop(group.order)[1] for group in groups}
        for order in (*(group.order for group in stale), *expired):
            del self._groups[order]
        most = self._trainer.algorithm.max_trained_count
        retrainable = [order for order, steps in used.items() if len(steps) + 1 < most]
        return GroupReuse([order for order, steps in used.items() if steps], retrainable, expired)


def is_fresh(group: Group, version: int, trainer: TrainerConfig) -> bool:
    """Whether it may be trained on by an update of the policy's `version`. What names a later one was sampled with
    weights that no checkpoint has any more."""
    return (
        find_newest_version(group.episodes, version) <= version
        and measure_freshness(group.episodes, version, trainer).is_usable
    )


def list_samplers(groups: Iterable[Group], version: int) -> set[str]:
    """Who says that it sampled with the weights of `version` alone in them, of samplers elsewhere."""
    return {each.sampler for each in list_episodes(groups) if each.policy == (version, version)} - {""}


def find_newest_version(episodes: Iterable[Episode], version: int) -> int:
    """The latest policy version that sampled in them; `version` where none did."""
    return max((run.high for each in episodes for call in each.calls for run in call.versions), default=version)


def _build_group(lease: Lease, tasks: TaskOrder) -> Group:
    episodes = sorted((stored.episode for stored in lease.kept), key=lambda episode: episode.repeat)
    return Group(tasks.task(lease.order), lease.order, episodes)
