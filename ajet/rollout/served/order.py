"""ServedOrder: which tasks clients still get, and the numbers of the groups that came back.

Invariant: groups are numbered in the order in which they are complete, without a gap, whatever clients leave undone;
a task of the reader that was handed out and never came back is handed out again after a restart. What a checkpoint
holds of it says which acknowledged episodes (`record.pending`) that checkpoint has used. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from ajet.schema.task import Task
from ajet.task_reader import TaskOrder


class ServedOrder:
    """`tasks` None: clients bring all tasks themselves."""

    def __init__(self, tasks: TaskOrder | None) -> None:
        self._tasks = tasks
        self._lock = threading.Lock()
        self._sources: dict[int, int | None] = {}
        self._next = self._done = 0
        self.used: set[int] = set()
        """Numbers of pending episodes that the next checkpoint has used and that are still kept."""

    def __len__(self) -> int:
        return 0 if self._tasks is None else len(self._tasks)

    @property
    def has_tasks(self) -> bool:
        """Whether there is a task reader behind it."""
        return self._tasks is not None

    def fresh(self) -> tuple[int, Task] | None:
        """A task of the reader's with its place in the reader's order; None without a reader."""
        if self._tasks is None:
            return None
        with self._lock:
            taken = self._tasks.take(1)
        return taken[0] if taken else None

    def claim(self, source: int) -> bool:
        """Take the task at this place of the reader's order, whose attempts an earlier server has; False where it is
        not to be had."""
        if self._tasks is None:
            return False
        others: list[int] = []
        with self._lock:
            while (taken := self._tasks.take(1)) and taken[0][0] != source:
                others.append(taken[0][0])
                if others[-1] > source:
                    break
            self._tasks.give_back(others)
        return bool(taken) and taken[0][0] == source

    def number(self, source: int | None) -> int:
        """The next number, for a group that is complete. `source`: its task's place in the reader's order."""
        with self._lock:
            self._sources[self._next] = source
            self._next += 1
            return self._next - 1

    def done(self, orders: Iterable[int]) -> None:
        """These groups were trained on, or found useless."""
        with self._lock:
            for order in orders:
                source = self._sources.pop(order)
                self._done = max(self._done, order + 1)
                if source is not None and self._tasks is not None:
                    self._tasks.done([source])

    def give_back(self, orders: Iterable[int]) -> None:
        """Their tasks are to be played again."""
        with self._lock:
            for order in orders:
                source = self._sources.pop(order)
                if source is not None and self._tasks is not None:
                    self._tasks.give_back([source])

    def state(self) -> dict[str, Any]:
        """As JSON values. Groups that are complete and not done count as never played."""
        with self._lock:
            tasks = None if self._tasks is None else self._tasks.state()
            return {"next": self._done, "tasks": tasks, "used": sorted(self.used)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises TaskError when the reader's tasks are not the same."""
        with self._lock:
            self._next = self._done = int(state["next"])
            self._sources.clear()
            self.used = set(state.get("used", ()))
            if self._tasks is not None and state["tasks"] is not None:
                self._tasks.restore(state["tasks"])
