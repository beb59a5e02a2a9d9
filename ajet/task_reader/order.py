"""TaskOrder: which task stands at which position of the training order.

Invariants (property tests in tests/unit/test_task_order.py): each epoch has every task once; the order is a function of
the seed, the epoch and the task ids alone, not of rows' positions, timing or batch sizes. (With a curriculum an epoch
has some of them, each once, and the order is a function of what was learned before it, too.) Which positions are taken
and which are done is the store's business; a checkpoint's positions are gone on with only over the same tasks, by what
they say and not by their ids alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.schema.commands import ANEW
from ajet.schema.errors import TaskError
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.schema.episode import Group
    from ajet.task_reader.curriculum import Curriculum


class TaskOrder:
    """Position -> task, over endless epochs."""

    def __init__(
        self, tasks: Sequence[Task], seed: int, shuffle: bool = True, curriculum: Curriculum | None = None
    ) -> None:
        if not tasks:
            raise TaskError("There are no tasks to train on.", do="check the data set that task_reader names")
        self._tasks = list(tasks)
        self._seed, self._shuffle = seed, shuffle
        self._permutation: tuple[int, list[int]] = (-1, [])
        self._curriculum = curriculum
        self._by_id = {task.task_id: task for task in self._tasks} if curriculum is not None else {}
        self._content = self._digest(_content(task) for task in self._tasks)  # now: an agent may write into its task

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
            ranks = [rank(self._seed, epoch, task.task_id) for task in self._tasks]
            self._permutation = (epoch, sorted(range(len(self._tasks)), key=ranks.__getitem__))
        return self._tasks[self._permutation[1][place]]

    def learned(self, groups: Iterable[Group], waiting: Sequence[int]) -> None:
        """What came of attempts at some of them: it bears on which come next, with a curriculum. `waiting`: the
        positions that are begun and not over, as `Store.begun` says."""
        if self._curriculum is not None:
            self._curriculum.learned(groups)
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
            "tasks": self._digest(task.task_id for task in self._tasks),
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
                    do=f"restore what changed; or {ANEW}",
                )

    def _digest(self, parts: Iterable[str]) -> str:
        """The digest of one text a task; where the order is shuffled, that of the rows does not matter."""
        ordered = sorted(parts) if self._shuffle else parts
        return hashlib.blake2b("\0".join(ordered).encode(), digest_size=12).hexdigest()


def rank(seed: int, epoch: int, task_id: str) -> bytes:
    """The key by which a shuffled epoch is sorted."""
    return hashlib.blake2b(f"{seed}\0{epoch}\0{task_id}".encode(), digest_size=16).digest()


def _content(task: Task) -> str:
    """A digest of all that a task says; of an object that is no JSON value only its class."""
    text = json.dumps(task.model_dump(), skipkeys=True, default=lambda value: f"<{type(value).__qualname__}>")
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
