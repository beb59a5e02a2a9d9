"""TaskOrder: the task at each position of the training order. CurriculumSampler: the tasks of an epoch.

A position is a place in the training order, counted from 0 over all epochs. Invariants (property tests in
tests/task_reader/test_order.py): each epoch has every task once. The order depends only on seed, epoch and task ids,
not on row order, timing or batch size. With a curriculum an epoch has some tasks, each once, and the order also depends
on earlier results. The store tracks taken and finished positions. A checkpoint's positions continue only over tasks
with the same content.
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
    """Maps a position of the training order to its task, over endless epochs."""

    def __init__(
        self, tasks: Sequence[Task], seed: int, shuffle: bool = True, curriculum: CurriculumSampler | None = None
    ) -> None:
        """Order the tasks of each epoch.

        Args:
            seed: Selects the shuffled order.
            shuffle: False to keep the order of `tasks` in each epoch.
            curriculum: Chooses the tasks of each epoch. None: all tasks.

        Raises:
            TaskError: there are no tasks.
        """
        if not tasks:
            raise TaskError("The task reader has no tasks to train on.", do="check the data set that task_reader names")
        self._tasks = list(tasks)
        self._seed, self._is_shuffled = seed, shuffle
        self._permutation: tuple[int, list[int]] = (-1, [])
        self._curriculum = curriculum
        self._by_id = {task.task_id: task for task in self._tasks} if curriculum is not None else {}
        self._content = self._digest_parts(
            _digest_task(task) for task in self._tasks
        )  # now: an agent may write into its task

    def __len__(self) -> int:
        """Return the number of tasks per epoch."""
        return len(self._curriculum) if self._curriculum is not None else len(self._tasks)

    def task(self, order: int) -> Task:
        """Return the task at the position `order`, counted from 0 over all epochs."""
        epoch, index = divmod(order, len(self))
        if self._curriculum is not None:
            return self._by_id[self._curriculum.epoch(epoch)[index]]
        if not self._is_shuffled:
            return self._tasks[index]
        if self._permutation[0] != epoch:  # only one epoch's permutation is cached
            ranks = [shuffle_key(self._seed, epoch, task.task_id) for task in self._tasks]
            self._permutation = (epoch, sorted(range(len(self._tasks)), key=ranks.__getitem__))
        return self._tasks[self._permutation[1][index]]

    def record_results(self, groups: Iterable[Group], waiting: Sequence[int]) -> None:
        """Record results of attempts for the curriculum; without a curriculum nothing changes.

        Args:
            groups: Groups of finished attempts.
            waiting: Positions that are started and not over; the curriculum keeps their epochs.
        """
        if self._curriculum is not None:
            self._curriculum.record_results(groups)
            self._curriculum.forget(waiting)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Continue the order of a checkpoint.

        Args:
            saved: The value of `identity` in the checkpoint.

        Raises:
            TaskError: tasks, seed or shuffling differ from the checkpoint's.
        """
        self.require_same(saved)
        if self._curriculum is not None and "curriculum" in saved:
            self._curriculum.restore(saved["curriculum"])

    def identity(self) -> dict[str, Any]:
        """Return what determines the order as JSON values for a checkpoint: seed, digests of the tasks, curriculum."""
        return {
            "seed": self._seed,
            "shuffle": self._is_shuffled,
            "count": len(self),
            "tasks": self._digest_parts(task.task_id for task in self._tasks),
            "content": self._content,
            **({"curriculum": self._curriculum.state()} if self._curriculum is not None else {}),
        }

    def require_same(self, saved: Mapping[str, Any]) -> None:
        """Refuse a checkpoint made with other tasks, seed, shuffling or task content. Raises TaskError."""
        current = self.identity()
        counts = f"{saved['count']} tasks as before, found {current['count']}"
        description_by_key = {
            "tasks": ("the tasks", counts if saved["count"] != current["count"] else "the same task ids as before"),
            "seed": ("the seed", f"seed {saved['seed']}, found {current['seed']}"),
            "shuffle": ("data.shuffle", f"{saved['shuffle']}, found {current['shuffle']}".lower()),
            "content": ("the content of the tasks", "the same texts and columns as before"),
        }
        for key, (name, expected) in description_by_key.items():
            if saved[key] != current[key]:
                raise TaskError(
                    f"The task order saved in the checkpoint cannot be continued, because {name} changed since.",
                    expected=expected,
                    do=f"restore the former tasks and settings; or {FRESH_ADVICE}",
                )

    def _digest_parts(self, parts: Iterable[str]) -> str:
        """Return one digest of all tasks' texts (ids or contents); it does not depend on row order if shuffled."""
        ordered = sorted(parts) if self._is_shuffled else parts
        return hashlib.blake2b("\0".join(ordered).encode(), digest_size=12).hexdigest()


def shuffle_key(seed: int, epoch: int, task_id: str) -> bytes:
    """Return the key by which a shuffled epoch sorts its tasks."""
    return hashlib.blake2b(f"{seed}\0{epoch}\0{task_id}".encode(), digest_size=16).digest()


def _digest_task(task: Task) -> str:
    """Return the digest of a task's content. An object without a JSON form counts by its class only."""
    text = json.dumps(task.model_dump(), skipkeys=True, default=lambda value: f"<{type(value).__qualname__}>")
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class CurriculumSampler:
    """Chooses the tasks of an epoch by their success rates.

    Invariants: an epoch is drawn without replacement, and no task has a chance of 0. The draw depends on the seed, the
    epoch, the task's id and the share of successful attempts when the epoch's first task was read. Shares, open epochs
    and task ids are in the checkpoint, so a killed run and a reader of the record repeat the draw.

    The draw is weighted by exponential races (Efraimidis and Spirakis, 2006): with u from a hash of seed, epoch and id,
    tasks with the smallest -log(u) / w come first. With p the share, (successes + 1) / (attempts + 2), w is floor + (1
    - floor) f(p), f = 4 p (1 - p) for `uncertain`, p for `easy`, 1 - p for `hard`.
    """

    def __init__(self, ids: Sequence[str], settings: Settings, seed: int) -> None:
        """Start without results of attempts.

        Args:
            ids: Ids of all tasks.
            settings: Section `data.curriculum` of the configuration.
            seed: Selects the draws.
        """
        self._ids = sorted(ids)
        self._settings = settings
        self._seed = seed
        self._success_and_count: dict[str, list[float]] = {}
        self._epochs: dict[int, list[str]] = {}

    def __len__(self) -> int:
        """Return the number of tasks per epoch."""
        return self._settings.count_epoch_tasks(len(self._ids))

    def epoch(self, number: int) -> list[str]:
        """Return the epoch's task ids in order. The first call draws them by the success rates of that moment."""
        if number not in self._epochs:
            ranked = sorted(self._ids, key=lambda task_id: self._draw_key(number, task_id))
            self._epochs[number] = ranked[: len(self)]
        return self._epochs[number]

    def forget(self, waiting: Sequence[int]) -> None:
        """Drop drawn epochs that are not needed: all but the newest one and those of the positions in `waiting`."""
        needed = {max(self._epochs, default=0), *(order // len(self) for order in waiting)}
        self._epochs = {number: ids for number, ids in self._epochs.items() if number in needed}

    def record_results(self, groups: Iterable[Group]) -> None:
        """Add the successes of scored attempts to the success rates of their tasks."""
        for group in groups:
            for episode in group.scored:
                success_and_count = self._success_and_count.setdefault(group.task.task_id, [0.0, 0.0])
                success_and_count[0] += _success_share(episode)
                success_and_count[1] += 1

    def share(self, task_id: str) -> float:
        """Return the smoothed share of successful attempts at a task; one half without attempts."""
        successes, attempts = self._success_and_count.get(task_id, (0.0, 0.0))
        return (successes + 1) / (attempts + 2)

    def state(self) -> dict[str, Any]:
        """Return task ids, success rates and drawn epochs as JSON values, for a checkpoint."""
        return {
            "ids": self._ids,
            "seen": self._success_and_count,
            "epochs": {str(number): ids for number, ids in self._epochs.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the success rates and drawn epochs of a checkpoint."""
        self._success_and_count = {
            task_id: [float(number) for number in success_and_count]
            for task_id, success_and_count in state["seen"].items()
        }
        self._epochs = {int(number): list(ids) for number, ids in state["epochs"].items()}

    def _draw_key(self, epoch: int, task_id: str) -> float:
        """Return the sort key of a task in an epoch's draw, -log(u) / weight with u in (0, 1) from a hash.

        Tasks with the smallest keys are drawn (Efraimidis and Spirakis, 2006).
        """
        digest = hashlib.blake2b(f"{self._seed}\0{epoch}\0{task_id}".encode(), digest_size=8).digest()
        uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64
        return -math.log(uniform) / self._draw_weight(self.share(task_id))

    def _draw_weight(self, share: float) -> float:
        """Return a task's weight in the draw, from `floor` to 1, by its smoothed share of successful attempts."""
        floor, prefer = self._settings.floor, self._settings.prefer
        assert prefer is not None, "a curriculum has `prefer`"
        preference = {"uncertain": 4 * share * (1 - share), "easy": share, "hard": 1 - share}[prefer]
        return floor + (1 - floor) * preference


def _success_share(episode: Episode) -> float:
    """Return 1 or 0 by the judge's success verdict, else the reward clipped to [0, 1]."""
    assert episode.verdict is not None and episode.reward is not None, "only scored episodes are counted"
    if episode.verdict.success is not None:
        return float(episode.verdict.success)
    return min(max(episode.reward, 0.0), 1.0)
