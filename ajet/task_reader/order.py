"""TaskOrder: the order in which training takes its tasks, as a frontier that can be saved.

Invariants (property tests in tests/unit/test_task_order.py): within an epoch every task is taken exactly once; the
order is a function of the seed, the epoch and the task ids alone, not of rows' positions, timing or batch sizes;
what is saved is not a cursor but the frontier, so that tasks taken and not done come back first after a restart
(long episodes are not biased against); it is restored only over the same tasks, by what they say and not by their
ids alone. Only the loop that trains calls it: it is not thread-safe.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from ajet.schema.errors import TaskError
from ajet.schema.task import Task


class TaskOrder:
    """Hands out `(order, task)` pairs; `order` counts every task ever taken, so it is unique over all epochs."""

    def __init__(self, tasks: Sequence[Task], seed: int, shuffle: bool = True, *, epochs: int | None = None) -> None:
        """`epochs` None: endless."""
        if not tasks:
            raise TaskError("There are no tasks to train on.", do="check the data set that task_reader names")
        self._tasks = list(tasks)
        self._seed, self._shuffle, self._epochs = seed, shuffle, epochs
        self._next = 0
        self._taken: set[int] = set()
        self._waiting: set[int] = set()
        self._permutation: tuple[int, list[int]] = (-1, [])
        self._content = self._digest(_content(task) for task in self._tasks)  # now: an agent may write into its task

    def __len__(self) -> int:
        """Tasks in one epoch."""
        return len(self._tasks)

    @property
    def epoch(self) -> int:
        """The epoch that the next new task belongs to, from 0."""
        return self._next // len(self._tasks)

    @property
    def total(self) -> int | None:
        """How many tasks there are to take over all epochs; None when endless."""
        return None if self._epochs is None else self._epochs * len(self._tasks)

    @property
    def consumed(self) -> int:
        """How many tasks are done."""
        return self._next - len(self._taken) - len(self._waiting)

    def take(self, count: int) -> list[tuple[int, Task]]:
        """The next `count` tasks, unfinished ones first; fewer, or none, when the epochs are used up."""
        again = sorted(self._waiting)[:count]
        fresh = count - len(again)
        if self.total is not None:
            fresh = min(fresh, self.total - self._next)
        orders = again + list(range(self._next, self._next + fresh))
        self._next += fresh
        self._waiting.difference_update(again)
        self._taken.update(orders)
        return [(order, self.task(order)) for order in orders]

    def task(self, order: int) -> Task:
        """The task at a position of the order."""
        epoch, place = divmod(order, len(self._tasks))
        if not self._shuffle:
            return self._tasks[place]
        if self._permutation[0] != epoch:
            self._permutation = (epoch, sorted(range(len(self._tasks)), key=lambda index: self._rank(epoch, index)))
        return self._tasks[self._permutation[1][place]]

    def done(self, orders: Iterable[int]) -> None:
        """These were trained on (or finished and found useless): they never come back."""
        orders = set(orders)
        self._own(orders)
        self._taken -= orders

    def give_back(self, orders: Iterable[int]) -> None:
        """These were taken and not finished: the next `take` starts with them."""
        orders = set(orders)
        self._own(orders)
        self._taken -= orders
        self._waiting |= orders

    def state(self) -> dict[str, Any]:
        """The frontier as JSON values: everything taken and not done counts as unfinished."""
        return {
            "next": self._next,
            "unfinished": sorted(self._taken | self._waiting),
            "seed": self._seed,
            "shuffle": self._shuffle,
            "tasks": self._digest(task.task_id for task in self._tasks),
            "content": self._content,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved frontier. Raises TaskError when tasks, seed or shuffling are not the same; what the
        tasks say is compared where the frontier knows it (earlier versions saved ids only)."""
        now = self.state()
        names = {"tasks": "the tasks", "seed": "the seed", "shuffle": "data.shuffle", "content": "what the tasks say"}
        for key, name in names.items():
            if state.get(key, now[key]) != now[key]:
                raise TaskError(
                    f"The saved task order cannot be continued: {name} changed since.",
                    expected=f"{key} {state[key]}, found {now[key]}",
                    do="restore what changed, or start anew with --fresh",
                )
        self._next = int(state["next"])
        self._taken = set()
        self._waiting = {int(order) for order in state["unfinished"]}

    def _own(self, orders: set[int]) -> None:
        foreign = orders - self._taken
        if foreign:
            raise ValueError(f"orders {sorted(foreign)} are not taken")

    def _rank(self, epoch: int, index: int) -> bytes:
        text = f"{self._seed}\0{epoch}\0{self._tasks[index].task_id}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def _digest(self, parts: Iterable[str]) -> str:
        """Of one text a task; where the order is shuffled, that of the rows does not matter."""
        ordered = sorted(parts) if self._shuffle else parts
        return hashlib.blake2b("\0".join(ordered).encode(), digest_size=12).hexdigest()


def _content(task: Task) -> str:
    """A digest of all that a task says; of an object that is no JSON value only its class."""
    text = json.dumps(task.model_dump(), skipkeys=True, default=lambda value: f"<{type(value).__qualname__}>")
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
