"""Groups of clients' attempts at one task, and the store's calls for the groups.

A place is the slot of one attempt in a group. A position is a task's place in the training order, leased from the
store. Invariants: every place in a group is taken at most once. A group is complete when each taken place has an
episode and no further place is due: all are taken, or the deadline has passed. A place is free again if the attempt was
given up without a recorded end, or was lost and may be repeated. A group is listed from the first attempt until the
group is complete. The store notes a complete group, and a later server then takes no further attempts for the group.
All methods run on the registry's loop, which never waits for the store. The store is called in threads, for at most
STORE_PATIENCE seconds during an outage, to leave threads for other requests. One new group is created at a time: a
client arriving meanwhile takes a place in the new group.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from loguru import logger

from ajet.gateway import Refused
from ajet.schema.episode import Episode, Group
from ajet.schema.task import Task
from ajet.store import TRANSIENT_ERRORS, Lease, LeaseLostError, Store
from ajet.store.outage import limited_patience

if TYPE_CHECKING:
    from ajet.task_reader import TaskOrder

MANY_GROUPS = 1_000
"""Number of open groups at which a warning is logged."""
SETTLE_INTERVAL = 0.01
"""Seconds between two checks for groups in removal."""
STORE_PATIENCE = 10.0
"""Seconds for which a client's request waits for an unreachable store. The client then repeats the request."""
P = ParamSpec("P")
T = TypeVar("T")


async def call_store(method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the store's method in a thread and return the result. Raises the exceptions of the method."""
    with limited_patience(STORE_PATIENCE):
        return await asyncio.to_thread(method, *args, **kwargs)


async def call_store_or_refuse(method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the store's method in a thread. Raises Refused while the store is out of reach."""
    try:
        return await call_store(method, *args, **kwargs)
    except TRANSIENT_ERRORS as error:
        logger.warning("the store cannot be reached: {}", error)
        raise Refused(
            "The server's store cannot be reached now; retry later.", status=503, code="store_down", retry_after=1
        ) from error


class OpenGroup:
    """The attempts at one task, until all are in.

    `lease` is the store's lease of the task's position in the training order. `lease.order` is negative if a client
    brought the task.
    """

    def __init__(self, task: Task, lease: Lease, places: int) -> None:
        """Start a group with `places` free places. `lease` is the store's lease of the task's position."""
        self.task, self.lease = task, lease
        self.name = uuid.uuid4().hex
        self.episodes: list[Episode] = []
        self.began = time.monotonic()
        self.places = places
        self._taken_repeats: set[int] = set()  # numbers of the attempts that are open or ended
        self._repeats: Counter[int] = Counter()  # by the number of the attempt
        self._closed = False

    @property
    def has_place(self) -> bool:
        """True if the group needs another attempt."""
        return len(self._taken_repeats) < self.places

    @property
    def is_untouched(self) -> bool:
        """True if no place is taken."""
        return not self._taken_repeats

    def accepts(self, task: Task | None) -> bool:
        """Return True if an attempt at the task belongs to the group. None means any task of the task reader."""
        if task is None:
            return self.lease.order >= 0
        return self.task.task_id == task.task_id and self.task == task

    @property
    def is_complete(self) -> bool:
        """True if each taken place has an ended episode and no further attempt is expected."""
        return not self.has_place and len(self.episodes) == len(self._taken_repeats)

    def take_place(self) -> int:
        """Take the free place with the lowest number and return the number, which becomes the episode's repeat."""
        repeat = next(number for number in itertools.count() if number not in self._taken_repeats)
        self._taken_repeats.add(repeat)
        return repeat

    def free_place(self, repeat: int) -> None:
        """Free the place of an attempt that does not count, so that another attempt may take it.

        A closed group takes no further attempts, so there the place is removed instead.
        """
        self._taken_repeats.discard(repeat)
        if self._closed:
            self.places = len(self._taken_repeats)

    def may_repeat(self, repeat: int, limit: int) -> bool:
        """Return True, and count one repetition, if the lost attempt may be played again.

        Args:
            repeat: Number of the attempt in its group.
            limit: Maximum number of repetitions of one attempt.
        """
        if self._closed or self._repeats[repeat] >= limit:
            return False
        self._repeats[repeat] += 1
        return True

    def restore(self, episode: Episode) -> None:
        """Add an episode that an earlier server put into the store."""
        self._taken_repeats.add(episode.repeat)
        self.episodes.append(episode)
        self.name = episode.group or self.name

    def close(self) -> None:
        """Refuse further attempts and remove the free places."""
        self._closed = True
        self.places = len(self._taken_repeats)

    def build_group(self) -> Group:
        """Return the group for training, with the episodes sorted by repeat."""
        return Group(self.task, self.lease.order, sorted(self.episodes, key=lambda episode: episode.repeat))


class OpenGroups:
    """The open groups of one registry."""

    def __init__(self, store: Store, tasks: TaskOrder | None, attempts_per_task: int) -> None:
        """Start without groups.

        Args:
            tasks: The task reader's order. None: clients bring all tasks themselves.
            attempts_per_task: Number of places in a group (`rollout.num_repeat`).
        """
        self._store = store
        self.tasks = tasks
        self._attempts_per_task = attempts_per_task
        self._groups: list[OpenGroup] = []
        self._creation_lock = asyncio.Lock()
        self._groups_being_removed: set[OpenGroup] = set()
        """Groups whose end is being reported to the store; they take no further attempt."""
        self._is_store_away = False
        """True if the last `return_task` could not reach the store; further failures are not logged."""

    def __iter__(self) -> Iterator[OpenGroup]:
        return iter(tuple(self._groups))

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: OpenGroup) -> bool:
        return group in self._groups and group not in self._groups_being_removed

    def restore_group(self, lease: Lease) -> OpenGroup:
        """Add an earlier server's group from the store."""
        group = OpenGroup(lease.attempts[0].episode.task, lease, self._attempts_per_task)
        for record in lease.attempts:
            group.restore(record.episode)
        self._groups.append(group)
        return group

    async def find_or_make(self, task: Task | None, is_wanted: Callable[[OpenGroup], bool]) -> OpenGroup:
        """Return a group of the task with a free place, or a new group.

        Args:
            task: The task. None: any task of the task reader.
            is_wanted: Returns False for groups to skip. Used only if `task` is None.

        Raises:
            Refused: The task does not exist, no task is free, or the store is out of reach.
        """
        if task is None and self.tasks is None:
            raise Refused(
                "The request contains no task, and the server has no task reader to take one from.", param="task"
            )
        if (open_group := self._find_open(task, is_wanted)) is not None:
            return open_group
        async with self._creation_lock:
            # Search again with the lock: another request may have made a group meanwhile.
            while (open_group := self._find_open(task, is_wanted)) is None:
                self._refuse_all_busy(task)
                new_group = await self._make_group(task)
                if task is not None:
                    return new_group
            return open_group

    def _refuse_all_busy(self, task: Task | None) -> None:
        """Raise Refused if as many reader tasks as an epoch has are open without any attempt.

        The caller skips all of them because of `serve.max_per_task`. It would lease positions without end otherwise.
        """
        ahead = sum(group.is_untouched and group.accepts(None) for group in self._groups)
        if task is None and self.tasks is not None and ahead >= len(self.tasks):
            raise Refused(
                "Every task has as many open episodes as serve.max_per_task allows; finish an episode first.",
                status=429,
                code="task_busy",
            )

    def _find_open(self, task: Task | None, is_wanted: Callable[[OpenGroup], bool]) -> OpenGroup | None:
        """Return the oldest group that has a free place for the task, or None. See `find_or_make` for the arguments."""
        for group in self._groups:
            if group.has_place and group.accepts(task) and (task is not None or is_wanted(group)):
                return group
        return None

    async def _make_group(self, task: Task | None) -> OpenGroup:
        """Lease a position from the store and add a group for it. None: the next task of the task reader."""
        if task is not None:
            lease = await call_store_or_refuse(self._store.bring)
        else:
            assert self.tasks is not None
            (lease,) = await call_store_or_refuse(self._store.lease, 1)
            task = self.tasks.task(lease.order)
        group = OpenGroup(task, lease, self._attempts_per_task)
        self._groups.append(group)
        if len(self._groups) == MANY_GROUPS:
            logger.warning(
                "{} tasks have fewer than {} finished attempts each, so the trainer waits for more: set "
                "rollout.group_deadline to train without the missing attempts",
                MANY_GROUPS,
                self._attempts_per_task,
            )
        return group

    async def wait_settled(self) -> None:
        """Wait until no group's end is being reported to the store."""
        while self._groups_being_removed:
            await asyncio.sleep(SETTLE_INTERVAL)

    def list_older(self, seconds: float) -> list[OpenGroup]:
        """Return the groups opened more than `seconds` ago."""
        current_time = time.monotonic()
        return [group for group in self._groups if current_time - group.began > seconds]

    async def return_task(self, group: OpenGroup) -> None:
        """Give the position of a group without attempts back to the store. The group stays while the store is
        unreachable.
        """
        try:
            await call_store(self._store.give_back, [group.lease])
        except TRANSIENT_ERRORS as error:
            if not self._is_store_away:
                logger.warning(
                    "the task at position {} of the training order could not be returned to the store yet: {}",
                    group.lease.order,
                    error,
                )
            self._is_store_away = True
            return
        except LeaseLostError as lost:
            logger.warning("a task could not be returned to the store: {}", lost)
        self._is_store_away = False
        self._groups.remove(group)

    async def remove(self, group: OpenGroup, *, report: bool) -> None:
        """Remove a complete group. After a cancellation the group stays.

        Args:
            report: True to close the group in the store, so that a restarted server does not wait for further attempts.
        """
        if report:
            self._groups_being_removed.add(group)
            try:
                await call_store(self._store.close, group.lease)
            except (
                LeaseLostError,
                *TRANSIENT_ERRORS,
            ) as error:  # the trainer gets the group in any case, and finds the same
                logger.warning(
                    "the group at position {} could not be closed in the store; a restarted server would wait "
                    "for further attempts: {}",
                    group.lease.order,
                    error,
                )
            finally:
                self._groups_being_removed.discard(group)
        self._groups.remove(group)
