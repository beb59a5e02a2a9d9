"""Groups of attempts that clients make at one task, until all are in, and the group that a new attempt belongs to.

Invariants: every place in a group is taken at most once, and a group is complete exactly when each place that was taken
has an episode and no further one is to be taken: all are, or its deadline has passed. A place is free again if its
attempt was given up before it could be recorded, or was lost and may be repeated. A group is listed from its first
attempt until it is complete; the store notes a complete one, so that a later server takes no further attempts for it.
All of it is on the desk's loop, which the store never holds up: it is called from threads, and one new group is made at
a time, so that a client who comes meanwhile takes a place in it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from loguru import logger

from ajet.gateway import Refused
from ajet.rollout.served.store_calls import ask_store, ask_store_or_refuse
from ajet.schema.episode import Episode, Group
from ajet.schema.task import Task
from ajet.store import CANNOT_NOW, Lease, LeaseLost, Store

if TYPE_CHECKING:
    from ajet.task_reader import TaskOrder

MANY = 1_000
SETTLING = 0.01
"""Seconds between two looks for groups that are leaving."""


class OpenGroup:
    """The attempts at one task; the position of its `lease` is negative if a client brought the task."""

    def __init__(self, task: Task, lease: Lease, places: int) -> None:
        self.task, self.lease = task, lease
        self.name = uuid.uuid4().hex
        self.episodes: list[Episode] = []
        self.began = time.monotonic()
        self.places = places
        self._taken: set[int] = set()
        self._repeats: Counter[int] = Counter()
        self._closed = False

    @property
    def has_place(self) -> bool:
        """True if another attempt belongs to it."""
        return len(self._taken) < self.places

    @property
    def untouched(self) -> bool:
        """True if no place is taken."""
        return not self._taken

    def suits(self, task: Task | None) -> bool:
        """True if an attempt at this task belongs here; None is any task of the reader's."""
        if task is None:
            return self.lease.order >= 0
        return self.task.task_id == task.task_id and self.task == task

    @property
    def complete(self) -> bool:
        """True if all attempts are in."""
        return not self.has_place and len(self.episodes) == len(self._taken)

    def take_place(self) -> int:
        """Take the next free place; return its number."""
        repeat = next(number for number in itertools.count() if number not in self._taken)
        self._taken.add(repeat)
        return repeat

    def free_place(self, repeat: int) -> None:
        """Free the place of an attempt that does not count: another may take it, unless the group is closed."""
        self._taken.discard(repeat)
        if self._closed:
            self.places = len(self._taken)

    def may_repeat(self, repeat: int, most: int) -> bool:
        """True if a lost attempt may be repeated, at most `most` times; this call counts as one."""
        if self._closed or self._repeats[repeat] >= most:
            return False
        self._repeats[repeat] += 1
        return True

    def restore(self, episode: Episode) -> None:
        """Add an attempt that an earlier server acknowledged."""
        self._taken.add(episode.repeat)
        self.episodes.append(episode)
        self.name = episode.group or self.name

    def close(self) -> None:
        """Take no further attempts."""
        self._closed = True
        self.places = len(self._taken)

    def group(self) -> Group:
        """Return the group for training."""
        return Group(self.task, self.lease.order, sorted(self.episodes, key=lambda episode: episode.repeat))


class OpenGroups:
    """The open groups of one desk."""

    def __init__(self, store: Store, tasks: TaskOrder | None, places: int) -> None:
        """`tasks` None: clients bring all tasks themselves. `places`: attempts at a task."""
        self._store, self._tasks, self._places = store, tasks, places
        self._open: list[OpenGroup] = []
        self._making = asyncio.Lock()
        self._leaving: set[OpenGroup] = set()
        """Listed groups that the store is being told of."""
        self._is_store_away = False
        """True if the last return of a position failed, and that was logged."""

    def __iter__(self) -> Iterator[OpenGroup]:
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, group: OpenGroup) -> bool:
        return group in self._open and group not in self._leaving

    def take_up(self, lease: Lease) -> OpenGroup:
        """Take up a group that the store has of an earlier server."""
        group = OpenGroup(lease.kept[0].episode.task, lease, self._places)
        for one in lease.kept:
            group.restore(one.episode)
        self._open.append(group)
        return group

    async def for_task(self, task: Task | None, suits: Callable[[OpenGroup], bool]) -> OpenGroup:
        """Return a group of that task with a place left, or a new one; None is any task of the reader's that `suits`.

        Raises Refused.
        """
        if task is None and self._tasks is None:
            raise Refused("The request names no task, and the server has no task reader.", param="task")
        if (found := self._find_open(task, suits)) is not None:
            return found
        async with self._making:
            while (found := self._find_open(task, suits)) is None:
                self._refuse_all_busy(task)
                made = await self._make_group(task)
                if task is not None:
                    return made
            return found

    def _refuse_all_busy(self, task: Task | None) -> None:
        """Raise Refused if as many of the reader's tasks wait for their first attempt as an epoch has."""
        ahead = sum(group.untouched and group.suits(None) for group in self._open)
        if task is None and self._tasks is not None and ahead >= len(self._tasks):
            raise Refused(
                "As many episodes of every task are under way as serve.max_per_task allows; finish one first.",
                status=429,
                code="task_busy",
            )

    def _find_open(self, task: Task | None, suits: Callable[[OpenGroup], bool]) -> OpenGroup | None:
        for group in self._open:
            if group.has_place and group.suits(task) and (task is not None or suits(group)):
                return group
        return None

    async def _make_group(self, task: Task | None) -> OpenGroup:
        if task is not None:
            lease = await ask_store_or_refuse(self._store.bring)
        else:
            assert self._tasks is not None
            (lease,) = await ask_store_or_refuse(self._store.lease, 1)
            task = self._tasks.task(lease.order)
        group = OpenGroup(task, lease, self._places)
        self._open.append(group)
        if len(self._open) == MANY:
            logger.warning(
                "{} tasks have fewer than {} attempts each and wait for more: rollout.group_deadline would let them go",
                MANY,
                self._places,
            )
        return group

    async def settled(self) -> None:
        """Wait until no group is leaving."""
        while self._leaving:
            await asyncio.sleep(SETTLING)

    def older_than(self, seconds: float) -> list[OpenGroup]:
        """Return the groups that have waited that long."""
        now = time.monotonic()
        return [group for group in self._open if now - group.began > seconds]

    async def give_back(self, group: OpenGroup) -> None:
        """Return the task of a group without attempts to the store; the group stays while the store is out of reach."""
        try:
            await ask_store(self._store.give_back, [group.lease])
        except CANNOT_NOW as error:
            if not self._is_store_away:
                logger.warning("position {} is not given back yet: {}", group.lease.order, error)
            self._is_store_away = True
            return
        except LeaseLost as lost:
            logger.warning("nothing is given back: {}", lost)
        self._is_store_away = False
        self._open.remove(group)

    async def remove(self, group: OpenGroup, *, whole: bool) -> None:
        """Remove a group; it stays if this is cancelled.

        Args:
            whole: The store notes it, so that a restarted server does not wait for it either.
        """
        if whole:
            self._leaving.add(group)
            try:
                await ask_store(self._store.close, group.lease)
            except (LeaseLost, *CANNOT_NOW) as error:  # the trainer gets the group in any case, and finds the same
                logger.warning(
                    "a restarted server would wait for further attempts at position {}: {}", group.lease.order, error
                )
            finally:
                self._leaving.discard(group)
        self._open.remove(group)
