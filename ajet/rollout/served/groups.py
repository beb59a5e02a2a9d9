"""OpenGroups: the groups that wait for attempts, and which one a new attempt belongs to.

Invariant: a group is here from its first attempt until it is complete; one that is whole is noted in the store, so that
a later server takes no further attempts for it. On the desk's loop.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from loguru import logger

from ajet.gateway import Refused
from ajet.rollout.served.group import OpenGroup
from ajet.schema.task import Task
from ajet.store import CANNOT_NOW, Lease, Store

if TYPE_CHECKING:
    from ajet.task_reader import TaskOrder

MANY = 1_000


class OpenGroups:
    """Of one desk."""

    def __init__(self, store: Store, tasks: TaskOrder | None, places: int) -> None:
        """`tasks` None: clients bring all tasks themselves. `places`: attempts at a task."""
        self._store, self._tasks, self._places = store, tasks, places
        self._open: list[OpenGroup] = []

    def __iter__(self) -> Iterator[OpenGroup]:
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, group: OpenGroup) -> bool:
        return group in self._open

    def take_up(self, lease: Lease) -> OpenGroup:
        """One that the store has of an earlier server."""
        group = OpenGroup(lease.kept[0].episode.task, lease, self._places)
        for one in lease.kept:
            group.restore(one.episode)
        self._open.append(group)
        return group

    def for_task(self, task: Task | None) -> OpenGroup:
        """A group of that task (None: of any of the reader's) with a place left, or a new one. Raises Refused."""
        for group in self._open:
            if group.has_place and group.suits(task):
                return group
        if task is not None:
            lease = self._store.bring()
        elif self._tasks is not None:
            (lease,) = self._store.lease(1)
            task = self._tasks.task(lease.order)
        else:
            raise Refused("The request names no task, and the server has no task reader.", param="task")
        group = OpenGroup(task, lease, self._places)
        self._open.append(group)
        if len(self._open) == MANY:
            logger.warning(
                "{} tasks have fewer than {} attempts each and wait for more: rollout.group_deadline would let them go",
                MANY,
                self._places,
            )
        return group

    def older_than(self, seconds: float) -> list[OpenGroup]:
        """Those that have waited that long."""
        now = time.monotonic()
        return [group for group in self._open if now - group.began > seconds]

    def give_back(self, group: OpenGroup) -> None:
        """Nobody's attempt at it came to anything: its task is to be had again. Stays here while the store cannot."""
        try:
            self._store.give_back([group.lease])
        except CANNOT_NOW as error:
            logger.warning("position {} is not given back yet: {}", group.lease.order, error)
        else:
            self._open.remove(group)

    def remove(self, group: OpenGroup, *, whole: bool) -> None:
        """It waits no longer. `whole`: after a restart, too."""
        self._open.remove(group)
        if whole:
            try:
                self._store.close(group.lease)
            except CANNOT_NOW as error:  # the trainer gets the group in any case
                logger.warning(
                    "a restarted server would wait for further attempts at position {}: {}", group.lease.order, error
                )
