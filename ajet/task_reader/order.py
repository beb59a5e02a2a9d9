"""TaskOrder: which task stands at which position of the training order. Curriculum: which tasks an epoch has.

Invariants (property tests in tests/unit/test_task_order.py): each epoch has every task once; the order is a function of
the seed, the epoch and the task ids alone, not of rows' positions, timing or batch sizes. (With a curriculum an epoch
has some of them, each once, and the order is a function of what was learned before it, too.) Which positions are taken
and which are done is the store's business; a checkpoint's positions are gone on with only over the same tasks, by what
they say and not by their ids alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.schema.commands import FRESH_ADVICE
from ajet.schema.errors import TaskError
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.config.schema.data import CurriculumConfig as Settings
    from ajet.schema.episode import Episode, Group


class TaskOrder:
    """Position -> task, over endless epochs."""

    def __init__(
        self, tasks: Sequence[Task], seed: int, shuffle: bool = True, curriculum: CurriculumSampler | None = None
    ) -> None:
        if not tasks:
            raise TaskError("There are no tasks to train on.", do="check the data set that task_reader names")
        self._tasks = list(tasks)
        self._seed, self._shuffle = seed, shuffle
        self._permutation: tuple[int, list[int]] = (-1, [])
        self._curriculum = curriculum
        self._by_id = {task.task_id: task for task in self._tasks} if curriculum is not None else {}
        self._content = self._digest_parts(
            _digest_task(task) for task in self._tasks
        )  # now: an agent may write into its task

    def __len__(self) -> int:
        """Tasks in one epoch."""
        return len(self._curriculum) if self._curriculum is not None else len(self._tasks)

    def task(self, order: int) -> Task:
        """The task at a position of the order."""
        epoch, place = divmod(order, len(self))
        if self._curriculum is not None:
            return self._by_id[self._curriculum.epoch(epoch)[place]]
        if not self._shuffle:
            return self._tasks[place]
        if self._permutation[0] != epoch:
            ranks = [shuffle_key(self._seed, epoch, task.task_id) for task in self._tasks]
            self._permutation = (epoch, sorted(range(len(self._tasks)), key=ranks.__getitem__))
        return self._tasks[self._permutation[1][place]]

    def record_results(self, groups: Iterable[Group], waiting: Sequence[int]) -> None:
        """What came of attempts at some of them: it bears on which come next, with a curriculum. `waiting`: the
        positions that are begun and not over, as `Store.begun` says."""
        if self._curriculum is not None:
            self._curriculum.record_results(groups)
            self._curriculum.forget(waiting)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on as `identity` said it of the same order. Raises TaskError where it is another one."""
        self.require_same(saved)
        if self._curriculum is not None and "curriculum" in saved:
            self._curriculum.restore(saved["curriculum"])

    def identity(self) -> dict[str, Any]:
        """Which order it is, as JSON values for a checkpoint."""
        return {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "count": len(self),
            "tasks": self._digest_parts(task.task_id for task in self._tasks),
            "content": self._content,
            **({"curriculum": self._curriculum.state()} if self._curriculum is not None else {}),
        }

    def require_same(self, saved: Mapping[str, Any]) -> None:
        """Raises TaskError when the order that a checkpoint was made with had other tasks, another seed or shuffling,
        or the tasks said something else."""
        now = self.identity()
        names = {"tasks": "the tasks", "seed": "the seed", "shuffle": "data.shuffle", "content": "what the tasks say"}
        for key, name in names.items():
            if saved[key] != now[key]:
                raise TaskError(
                    f"The saved task order cannot be continued: {name} changed since.",
                    expected=f"{key} {saved[key]}, found {now[key]}",
                    do=f"restore what changed; or {FRESH_ADVICE}",
                )

    def _digest_parts(self, parts: Iterable[str]) -> str:
        """The digest of one text a task; where the order is shuffled, that of the rows does not matter."""
        ordered = sorted(parts) if self._shuffle else parts
        return hashlib.blake2b("\0".join(ordered).encode(), digest_size=12).hexdigest()


def shuffle_key(seed: int, epoch: int, task_id: str) -> bytes:
    """The key by which a shuffled epoch is sorted."""
    return hashlib.blake2b(f"{seed}\0{epoch}\0{task_id}".encode(), digest_size=16).digest()


def _digest_task(task: Task) -> str:
    """A digest of all that a task says; of an object that is no JSON value only its class."""
    text = json.dumps(task.model_dump(), skipkeys=True, default=lambda value: f"<{type(value).__qualname__}>")
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class CurriculumSampler:
    """The curriculum over the tasks with these ids: which of them an epoch has, by how often they were solved before.

    Invariants: an epoch is drawn without replacement, so that a task is in it once at most, and none has a chance of 0;
    the draw is a function of the seed, the epoch, the task's id and the share of attempts at it that had succeeded when
    the epoch's first task was read. These shares, the epochs that may still be under way and the ids of all tasks are
    in the checkpoint, so that a killed run draws again what it drew, and so can a reader of the record.

    The draw is a weighted one by exponential races (Efraimidis and Spirakis, 2006): with u from a hash of seed, epoch
    and id, the tasks with the smallest -log(u) / w come first. With p the share, (successes + 1) / (attempts + 2), w is
    floor + (1 - floor) f(p), f = 4 p (1 - p) for `uncertain`, p for `easy`, 1 - p for `hard`.
    """

    def __init__(self, ids: Sequence[str], settings: Settings, seed: int) -> None:
        self._ids, self._settings, self._seed = sorted(ids), settings, seed
        self._seen: dict[str, list[float]] = {}
        self._epochs: dict[int, list[str]] = {}

    def __len__(self) -> int:
        """Tasks in one epoch."""
        return self._settings.count_epoch_tasks(len(self._ids))

    def epoch(self, number: int) -> list[str]:
        """The epoch's tasks, in the order in which they are played."""
        if number not in self._epochs:
            ranked = sorted(self._ids, key=lambda each: self._draw_key(number, each))
            self._epochs[number] = ranked[: len(self)]
        return self._epochs[number]

    def forget(self, waiting: Sequence[int]) -> None:
        """Epochs other than the newest one, but for those that a position is still under way of."""
        needed = {max(self._epochs, default=0), *(order // len(self) for order in waiting)}
        self._epochs = {number: ids for number, ids in self._epochs.items() if number in needed}

    def record_results(self, groups: Iterable[Group]) -> None:
        """Note how the attempts at some tasks ended."""
        for group in groups:
            for episode in group.scored:
                seen = self._seen.setdefault(group.task.task_id, [0.0, 0.0])
                seen[0] += _success_share(episode)
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

    def _draw_key(self, epoch: int, task_id: str) -> float:
        digest = hashlib.blake2b(f"{self._seed}\0{epoch}\0{task_id}".encode(), digest_size=8).digest()
        chance = (int.from_bytes(digest, "big") + 0.5) / 2**64
        return -math.log(chance) / self._draw_weight(self.share(task_id))

    def _draw_weight(self, share: float) -> float:
        floor, prefer = self._settings.floor, self._settings.prefer
        assert prefer is not None, "else there is no curriculum"
        wanted = {"uncertain": 4 * share * (1 - share), "easy": share, "hard": 1 - share}[prefer]
        return floor + (1 - floor) * wanted


def _success_share(episode: Episode) -> float:
    """1 or 0 where its judge says whether it succeeded, else its reward, held between them."""
    assert episode.verdict is not None and episode.reward is not None, "it is scored"
    if episode.verdict.success is not None:
        return float(episode.verdict.success)
    return min(max(episode.reward, 0.0), 1.0)
