"""Groups in play: the episodes allowed to run, the closing of a group, and the selection of groups.

A group is all repeats of one task, and closes when no further episode will be added. Invariants: a group closes once,
with every repeat accounted for: played to the end, or recorded as aborted. A group closes early only at the deadline
with at least `min_group` scored episodes, or when the batch has enough groups. Every task ends once: as `ClosedGroup`
(played to the end, selected or not) or as `ReturnedTask` (cut short because enough groups had closed, and due to be
played again). With oversampling the first groups with a learning signal are selected. Other groups fill the batch only
if too few have a signal. Everything runs on the rollout's loop, except that the caller's thread reads
`InflightBatch.events`.
"""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.schema.episode import Episode, Group
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.rollout.judge_caller import AttemptRanker


@dataclass(frozen=True, slots=True)
class ClosedGroup:
    """A group whose attempts have all ended."""

    group: Group
    is_selected: bool = True
    """False if the batch was already full, or if the algorithm learns nothing from the group."""


@dataclass(frozen=True, slots=True)
class ReturnedTask:
    """A task whose group was aborted before all repeats ended. The task is to be played again."""

    order: int
    why: str


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Selects the first `count` groups from which the algorithm can learn."""

    count: int
    learns_from: Callable[[Group], bool]
    """True if the algorithm can learn from a group."""


class Slots:
    """Lets at most `limit` episodes run at the same time, first come first served.

    Invariant: `live`, the number of episodes in a slot or about to take a free slot, never drops while others wait.
    `RoundEngine` waits for a request of each live episode before it starts a round.
    """

    def __init__(self, limit: int, total: int, on_live: Callable[[int], None] | None = None) -> None:
        """Start with all slots free.

        Args:
            limit: The number of slots.
            total: The number of episodes that will request a slot.
            on_live: Called with each new value of `live`.
        """
        self._free_count = self._limit = limit
        self._remaining = total
        self._queue: deque[asyncio.Future[None]] = deque()
        self._on_live = on_live
        self._report_live()

    @property
    def live(self) -> int:
        """The number of episodes in a slot or about to take a slot."""
        return min(self._limit, self._remaining)

    def request(self) -> asyncio.Future[None]:
        """Return a future set once the caller holds a slot.

        Cancel the future to stop waiting. In both cases call `release` once.
        """
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(slot)
        self._assign_free()
        return slot

    def release(self, slot: asyncio.Future[None]) -> None:
        """Return a slot after the episode's end, or after a cancelled wait for the slot."""
        self._remaining -= 1
        if slot.done() and not slot.cancelled():
            self._free_count += 1
        else:
            slot.cancel()
        self._report_live()
        self._assign_free()

    def _assign_free(self) -> None:
        """Give free slots to the longest-waiting attempts. Cancelled ones are skipped."""
        while self._free_count and self._queue:
            slot = self._queue.popleft()
            if not slot.done():
                self._free_count -= 1
                slot.set_result(None)

    def _report_live(self) -> None:
        """Pass the current value of `live` to the callback `on_live`, if there is one."""
        if self._on_live is not None:
            self._on_live(self.live)


class InflightGroup:
    """The group of one task while its attempts run."""

    def __init__(
        self,
        task: Task,
        order: int,
        index: int,
        repeats: int,
        *,
        deadline: float | None,
        min_group: int,
        on_close: Callable[[InflightGroup], None],
    ) -> None:
        """Prepare a group of `repeats` episodes.

        Args:
            order: Position of the task in the training order.
            index: Number of the task within this play.
            deadline: Seconds after the first episode's start. None: no deadline.
            min_group: Scored episodes that suffice to close the group at the deadline.
            on_close: Called when the last episode was added.
        """
        self.task = task
        self.order = order
        self.index = index
        self.repeats = repeats
        self.episodes: list[Episode] = []
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the reason when the running episodes are to be aborted."""
        self.ranker: AttemptRanker | None = None
        """Compares the group's attempts with each other. None: each attempt is judged alone."""
        self._deadline, self._min_group = deadline, min_group
        self._on_close = on_close
        self.has_started = self._is_overdue = False
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_closed(self) -> bool:
        """True if each repeat has an ended episode, aborted ones included."""
        return len(self.episodes) == self.repeats

    @property
    def is_cut_short(self) -> bool:
        """True if the play stopped the group before all episodes ended. The group is then incomplete."""
        return self.stopped.done() and self.stopped.result() != "group_deadline"

    def note_start(self) -> None:
        """Note the start of an episode. The first start starts the deadline."""
        if not self.has_started and self._deadline is not None:
            self.timer = asyncio.get_running_loop().call_later(self._deadline, self.pass_deadline)
        self.has_started = True

    def add_episode(self, episode: Episode) -> None:
        """Add an ended episode. The last episode closes the group."""
        self.episodes.append(episode)
        if self.is_closed:
            if self.timer is not None:
                self.timer.cancel()
            self.episodes.sort(key=lambda episode: episode.repeat)
            self._on_close(self)
        elif self._is_overdue:
            self.pass_deadline()

    def note_arrival(self) -> None:
        """Check an overdue group again, because another attempt now waits for the comparison."""
        if self._is_overdue:
            self.pass_deadline()

    def stop(self, reason: str) -> None:
        """Abort the running episodes of the group. Only the first `reason` counts."""
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def build_group(self) -> Group:
        """Return the group with all ended episodes."""
        return Group(self.task, self.order, self.episodes)

    def pass_deadline(self) -> None:
        """Abort the running episodes if enough are scored. Otherwise each later end repeats this check."""
        self._is_overdue = True
        waiting = self.ranker.waiting if self.ranker is not None else 0
        if should_close_late(self.episodes, min_group=self._min_group, repeats=self.repeats, waiting=waiting):
            self.stop("group_deadline")


def should_close_late(episodes: Iterable[Episode], *, min_group: int, repeats: int, waiting: int = 0) -> bool:
    """True if a group past its deadline closes with the episodes ended so far.

    At least `min_group` attempts then have a reward, or wait for a comparison. Groups of a server close by the same
    rule.

    Args:
        repeats: Planned attempts of the group.
        waiting: Attempts that wait to be compared, so have no reward yet.
    """
    return sum(episode.scored for episode in episodes) + waiting >= min(min_group, repeats)


class InflightBatch:
    """All groups of one call to `Rollout.stream`, and the events that its caller iterates over."""

    def __init__(self, keep_rule: KeepRule | None, *, in_order: bool) -> None:
        """Prepare the batch.

        Args:
            keep_rule: The rule for selecting groups. None selects every group.
            in_order: True reports closed groups in the order of the tasks instead of by time.
        """
        self.groups: list[InflightGroup] = []
        self.events: queue.SimpleQueue[Episode | ClosedGroup | ReturnedTask | BaseException | None]
        self.events = queue.SimpleQueue()
        self._keep_rule, self._in_order = keep_rule, in_order
        self._closed: dict[int, InflightGroup] = {}
        self._selected_indexes: set[int] = set()
        """Indexes of the groups that the step will train on."""
        self._next = 0

    @property
    def has_enough(self) -> bool:
        """True if as many groups are selected as were requested."""
        return self._keep_rule is not None and len(self._selected_indexes) >= self._keep_rule.count

    def take_closed(self, group: InflightGroup) -> None:
        """Offer a closed group for selection. With `in_order`, wait until all earlier tasks have closed."""
        self._closed[group.index] = group
        if not self._in_order:
            self._offer_group(group)
            return
        while (following := self._closed.get(self._next)) is not None:
            self._next += 1
            self._offer_group(following)

    def stop(self, reason: str) -> None:
        """Abort every running group of the batch."""
        for group in self.groups:
            if not group.is_closed:
                group.stop(reason)

    def finish(self) -> None:
        """Report the groups not selected so far, and end the events. Call once all groups are closed.

        If too few groups are selected, these fill the batch, scored groups first.
        """
        unselected = [group for group in self._closed.values() if group.index not in self._selected_indexes]
        unselected.sort(key=lambda group: (not group.build_group().scored, group.index))
        for group in unselected:
            if group.is_cut_short:
                self.events.put(ReturnedTask(group.order, group.stopped.result()))
            elif self.has_enough:
                self.events.put(ClosedGroup(group.build_group(), is_selected=False))
            else:
                self._keep_group(group)
        self.events.put(None)

    def _offer_group(self, group: InflightGroup) -> None:
        """Select the group if it is needed and the algorithm can learn from it."""
        if self._keep_rule is None:
            if not group.is_cut_short:
                self._keep_group(group)
        elif not self.has_enough and not group.is_cut_short and self._keep_rule.learns_from(group.build_group()):
            self._keep_group(group)
            # With `in_order` the other groups play on, because an abort would depend on timing.
            if self.has_enough and not self._in_order:
                self.stop("enough_groups")

    def _keep_group(self, group: InflightGroup) -> None:
        """Mark a closed group as selected and report it to the caller of the batch."""
        self._selected_indexes.add(group.index)
        self.events.put(ClosedGroup(group.build_group()))
