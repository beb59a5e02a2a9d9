"""Curriculum: which tasks an epoch has, by how often they were solved before.

Invariants: an epoch is drawn without replacement, so that a task is in it once at most, and none has a chance of 0;
what is drawn is a function of the seed, the epoch, the task's id and the share of attempts at it that had succeeded
when the epoch's first task was asked for. These shares, and the epochs that may still be under way, are in the
checkpoint, so that a killed run draws again what it drew; so are the ids of all tasks, drawn or not, so that whoever
has the record can draw again, too.

The draw is a weighted one by exponential races (Efraimidis and Spirakis, 2006): with u from a hash of seed, epoch and
id, the tasks with the smallest -log(u) / w come first. With p the share, (successes + 1) / (attempts + 2), w is floor +
(1 - floor) f(p), f = 4 p (1 - p) for `uncertain`, p for `easy`, 1 - p for `hard`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.config.schema.data import Curriculum as Settings
    from ajet.schema.episode import Episode, Group


class Curriculum:
    """The curriculum over the tasks with these ids."""

    def __init__(self, ids: Sequence[str], settings: Settings, seed: int) -> None:
        self._ids, self._settings, self._seed = sorted(ids), settings, seed
        self._seen: dict[str, list[float]] = {}
        self._epochs: dict[int, list[str]] = {}

    def __len__(self) -> int:
        """Tasks in one epoch."""
        return self._settings.tasks_an_epoch(len(self._ids))

    def epoch(self, number: int) -> list[str]:
        """The epoch's tasks, in the order in which they are played."""
        if number not in self._epochs:
            ranked = sorted(self._ids, key=lambda each: self._rank(number, each))
            self._epochs[number] = ranked[: len(self)]
        return self._epochs[number]

    def forget(self, waiting: Sequence[int]) -> None:
        """Epochs other than the newest one, but for those that a position is still under way of."""
        kept = {max(self._epochs, default=0), *(order // len(self) for order in waiting)}
        self._epochs = {number: ids for number, ids in self._epochs.items() if number in kept}

    def learned(self, groups: Iterable[Group]) -> None:
        """Note how the attempts at some tasks ended."""
        for group in groups:
            for episode in group.scored:
                seen = self._seen.setdefault(group.task.task_id, [0.0, 0.0])
                seen[0] += _success(episode)
                seen[1] += 1

    def share(self, task_id: str) -> float:
        """The share of attempts at a task that succeeded; one half where there were none."""
        successes, attempts = self._seen.get(task_id, (0.0, 0.0))
        return (successes + 1) / (attempts + 2)

    def state(self) -> dict[str, Any]:
        """The curriculum as JSON values, for a checkpoint."""
        return {
            "ids": self._ids,
            "seen": self._seen,
            "epochs": {str(number): ids for number, ids in self._epochs.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what a checkpoint holds."""
        self._seen = {name: [float(number) for number in seen] for name, seen in state["seen"].items()}
        self._epochs = {int(number): list(ids) for number, ids in state["epochs"].items()}

    def _rank(self, epoch: int, task_id: str) -> float:
        digest = hashlib.blake2b(f"{self._seed}\0{epoch}\0{task_id}".encode(), digest_size=8).digest()
        chance = (int.from_bytes(digest, "big") + 0.5) / 2**64
        return -math.log(chance) / self._weight(self.share(task_id))

    def _weight(self, share: float) -> float:
        floor, prefer = self._settings.floor, self._settings.prefer
        assert prefer is not None, "else there is no curriculum"
        wanted = {"uncertain": 4 * share * (1 - share), "easy": share, "hard": 1 - share}[prefer]
        return floor + (1 - floor) * wanted


def _success(episode: Episode) -> float:
    """1 or 0 where its judge says whether it succeeded, else its reward, held between them."""
    assert episode.verdict is not None and episode.reward is not None, "it is scored"
    if episode.verdict.success is not None:
        return float(episode.verdict.success)
    return min(max(episode.reward, 0.0), 1.0)
