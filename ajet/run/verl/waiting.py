"""Groups that were played and that no recorded step has yet: verl's asynchronous modes play ahead of the trainer.

Invariant: a group leaves once, with a step: trained there, useless, or too old for verl to train on it any more. What
waits when a checkpoint is written lies in it, as what verl trains from then on lies in verl's own part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ajet.config.verl import SYNC
from ajet.record import EpisodeFiles
from ajet.record.secrets import Redactor
from ajet.schema.episode import Group

FOLDER = "waiting"
"""Within a checkpoint."""


def dropped_after(config: Mapping[str, Any]) -> int | None:
    """How many steps verl keeps a group for, the one that asked for it included; None: any number. `config`: verl's."""
    v1 = config["trainer"]["v1"]
    sampler = v1["sampler"]
    drops = v1["trainer_mode"] != SYNC and sampler["max_off_policy_strategy"] == "drop"
    return sampler["max_off_policy_threshold"] if drops else None


class Waiting:
    """By their order, which a group that is played again keeps."""

    def __init__(self, dropped_after: int | None = None) -> None:
        self._dropped_after = dropped_after
        self._groups: dict[int, Group] = {}
        self._marked: frozenset[int] = frozenset()

    def add(self, group: Group) -> None:
        """It has closed."""
        self._groups[group.order] = group

    def take(self, step: int, credited: Collection[str]) -> tuple[list[Group], list[Group]]:
        """What leaves with a step whose credit went to the episodes `credited` (uuids): the groups that it trained and
        those without a score, and those that are too old to be trained by a later one."""
        over = [
            group
            for group in self._groups.values()
            if not group.scored or any(episode.uuid in credited for episode in group.episodes)
        ]
        for group in over:
            del self._groups[group.order]
        stale = [group for group in self._groups.values() if self._too_old(group, step)]
        for group in stale:
            del self._groups[group.order]
        return sorted(over, key=_order), sorted(stale, key=_order)

    def orders(self) -> list[int]:
        """Of all that wait now."""
        return sorted(self._groups)

    def mark(self) -> None:
        """verl has written a checkpoint: of what comes from now on it knows nothing, and plays it again."""
        self._marked = frozenset(self._groups)

    def index(self) -> list[list[int]]:
        """Order and number of episodes of each group that waits and was there at the mark: what `restore` asks for."""
        return [[group.order, len(group.episodes)] for group in self._at_mark()]

    def write(self, checkpoint: Path, redact: Redactor) -> None:
        """Those groups, into a checkpoint."""
        if episodes := [episode for group in self._at_mark() for episode in group.episodes]:
            EpisodeFiles(checkpoint / FOLDER, redact).write(0, "train", episodes)

    def restore(self, checkpoint: Path, index: list[list[int]]) -> None:
        """What waited when the checkpoint was written."""
        episodes = iter(EpisodeFiles(checkpoint / FOLDER).read(0) if index else [])
        for order, count in index:
            own = [next(episodes) for _ in range(count)]
            self.add(Group(own[0].task, order, own))

    def _at_mark(self) -> list[Group]:
        return [group for order, group in sorted(self._groups.items()) if order in self._marked]

    def _too_old(self, group: Group, step: int) -> bool:
        """As verl counts: a group that step N asks for is one step old in step N."""
        return self._dropped_after is not None and step - group.episodes[0].step + 1 > self._dropped_after


def _order(group: Group) -> int:
    return group.order
