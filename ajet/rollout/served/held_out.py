"""HeldOutTasks: the server's held-out tasks, for clients who ask for one of them.

Invariant: they are given out in turns, in their order, so that after as many attempts as there are tasks each was
played once, however many clients play and whatever is trained meanwhile; an attempt that came to nothing was no turn.
On the desk's loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from ajet.gateway import Refused
from ajet.schema.task import Task


class HeldOutTasks:
    """The held-out tasks that one desk gives to clients."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._given = [0] * len(tasks)
        """Attempts at each."""

    def __len__(self) -> int:
        return len(self._tasks)

    def next(self) -> Task:
        """The one whose turn it is. Raises Refused where there are none."""
        if not self._tasks:
            raise Refused("The request names no task, and the server has no held-out tasks.", param="task")
        at = self._given.index(min(self._given))
        self._given[at] += 1
        return self._tasks[at]

    def came_to_nothing(self, task: Task) -> None:
        """An attempt at one that was given out: it is its turn again."""
        self._given[self._tasks.index(task)] -= 1
