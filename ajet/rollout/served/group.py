"""OpenGroup: the attempts at one task that clients make, until all are in.

Invariant: every place in it is taken at most once, and the group is complete exactly when each place that was taken has
an episode and no further one is to be taken: all are, or its deadline has passed. A place is free again whose attempt
was given up before it could be recorded, or was lost and may be repeated.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections import Counter

from ajet.schema.episode import Episode, Group
from ajet.schema.task import Task
from ajet.store import Lease


class OpenGroup:
    """`lease`: of its task's position; of a negative one where a client brought the task."""

    def __init__(self, task: Task, lease: Lease, places: int) -> None:
        self.task, self.lease = task, lease
        self.name = uuid.uuid4().hex
        self.episodes: list[Episode] = []
        self.began = time.monotonic()
        self.places = places
        self._taken: set[int] = set()
        self._again: Counter[int] = Counter()
        self._closed = False

    @property
    def has_place(self) -> bool:
        """Whether another attempt belongs to it."""
        return len(self._taken) < self.places

    @property
    def untouched(self) -> bool:
        """Whether nobody has a place in it."""
        return not self._taken

    def suits(self, task: Task | None) -> bool:
        """Whether an attempt at this task belongs here; None is any task of the reader's."""
        if task is None:
            return self.lease.order >= 0
        return self.task.task_id == task.task_id and self.task == task

    @property
    def complete(self) -> bool:
        """Whether all attempts are in."""
        return not self.has_place and len(self.episodes) == len(self._taken)

    def take_place(self) -> int:
        """The next attempt's number."""
        repeat = next(number for number in itertools.count() if number not in self._taken)
        self._taken.add(repeat)
        return repeat

    def free_place(self, repeat: int) -> None:
        """Free the place of an attempt that is none after all: another one may take its place, unless the group is
        closed."""
        self._taken.discard(repeat)
        if self._closed:
            self.places = len(self._taken)

    def may_repeat(self, repeat: int, most: int) -> bool:
        """Whether a lost attempt's place is to be had again, which it is at most so many times; it counts."""
        if self._closed or self._again[repeat] >= most:
            return False
        self._again[repeat] += 1
        return True

    def restore(self, episode: Episode) -> None:
        """An attempt that an earlier server acknowledged."""
        self._taken.add(episode.repeat)
        self.episodes.append(episode)
        self.name = episode.group or self.name

    def close(self) -> None:
        """No further attempt is taken."""
        self._closed = True
        self.places = len(self._taken)

    def group(self) -> Group:
        """The group, as training takes it."""
        return Group(self.task, self.lease.order, sorted(self.episodes, key=lambda episode: episode.repeat))
