"""OpenGroups: the groups that wait for attempts, and which one a new attempt belongs to.

Invariant: a group is here from its first attempt until it is complete; one that is whole is noted in the store, so that
a later server takes no further attempts for it. On the desk's loop, which the store never holds up: it is asked from
threads, and one new group is made at a time, so that who comes meanwhile takes a place in it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from loguru import logger

from ajet.gateway import Refused
from ajet.rollout.served.group import OpenGroup
from ajet.rollout.served.store_calls import ask_store
from ajet.schema.task import Task
from ajet.store import CANNOT_NOW, Lease, LeaseLost, Store

if TYPE_CHECKING:
    from ajet.task_reader import TaskOrder

MANY = 1_000
SETTLING = 0.01
"""Seconds between two looks for groups that are leaving."""
P = ParamSpec("P")
T = TypeVar("T")


async def asked(question: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
    """The store's answer, whose server may be away. Raises Refused while it cannot."""
    try:
        return await ask_store(question, *given, **more)
    except CANNOT_NOW as error:
        logger.warning("the store cannot be asked: {}", error)
        raise Refused(
            "The server's store cannot be asked now; ask again later.", status=503, code="store_down", retry_after=1
        ) from error


class OpenGroups:
    """The open groups of one desk."""

    def __init__(self, store: Store, tasks: TaskOrder | None, places: int) -> None:
        """`tasks` None: clients bring all tasks themselves. `places`: attempts at a task."""
        self._store, self._tasks, self._places = store, tasks, places
        self._open: list[OpenGroup] = []
        self._making = asyncio.Lock()
        self._leaving: set[OpenGroup] = set()
        """Of those here, which the store is being told of."""
        self._away = False
        """Whether it was said that nothing can be given back, since something last could."""

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
        """A group of that task (None: of any of the reader's that `suits`) with a place left, or a new one. Raises
        Refused."""
        if task is None and self._tasks is None:
            raise Refused("The request names no task, and the server has no task reader.", param="task")
        if (found := self._with_place(task, suits)) is not None:
            return found
        async with self._making:
            while (found := self._with_place(task, suits)) is None:
                self._refuse_all_busy(task)
                made = await self._made(task)
                if task is not None:
                    return made
            return found

    def _refuse_all_busy(self, task: Task | None) -> None:
        """Refuse to begin more of the reader's tasks ahead, for nobody, than an epoch has. Raises Refused."""
        ahead = sum(group.untouched and group.suits(None) for group in self._open)
        if task is None and self._tasks is not None and ahead >= len(self._tasks):
            raise Refused(
                "As many episodes of every task are under way as serve.max_per_task allows; finish one first.",
                status=429,
                code="task_busy",
            )

    def _with_place(self, task: Task | None, suits: Callable[[OpenGroup], bool]) -> OpenGroup | None:
        for group in self._open:
            if group.has_place and group.suits(task) and (task is not None or suits(group)):
                return group
        return None

    async def _made(self, task: Task | None) -> OpenGroup:
        if task is not None:
            lease = await asked(self._store.bring)
        else:
            assert self._tasks is not None
            (lease,) = await asked(self._store.lease, 1)
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
        """Until the store has been told of all that are leaving, or who told it was cancelled."""
        while self._leaving:
            await asyncio.sleep(SETTLING)

    def older_than(self, seconds: float) -> list[OpenGroup]:
        """The groups that have waited that long."""
        now = time.monotonic()
        return [group for group in self._open if now - group.began > seconds]

    async def give_back(self, group: OpenGroup) -> None:
        """Nobody's attempt at it came to anything: its task is to be had again. Stays here while the store cannot."""
        try:
            await ask_store(self._store.give_back, [group.lease])
        except CANNOT_NOW as error:
            if not self._away:
                logger.warning("position {} is not given back yet: {}", group.lease.order, error)
            self._away = True
            return
        except LeaseLost as lost:
            logger.warning("nothing is given back: {}", lost)
        self._away = False
        self._open.remove(group)

    async def remove(self, group: OpenGroup, *, whole: bool) -> None:
        """Let the group wait no longer. `whole`: after a restart, too. It stays where this is cancelled."""
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
