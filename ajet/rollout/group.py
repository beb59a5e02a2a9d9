"""Groups while they are played: which episodes may run, when a group closes, and which groups are kept.

Invariants: a group closes once, with all its repeats accounted for: played to their end, or recorded as aborted. It
closes early only at its deadline with at least `min_group` scored episodes, or when the play has enough groups. Every
task that is handed in ends once, as `ClosedGroup` (kept, or played to its end and of no use) or as `ReturnedTask` (cut
short, because enough groups had closed: it is to be played again). With oversampling the first groups with something to
learn from are kept; the others fill up only if those do not suffice. All of it happens on the rollout's loop, but for
`Play.events`, which the caller's thread empties.
"""

from __future__ import annotations

import asyncio
import queue
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ajet.schema.episode import Episode, Group
from ajet.schema.task import Task

if TYPE_CHECKING:
    from ajet.rollout.verdicts import Ranking


@dataclass(frozen=True, slots=True)
class ClosedGroup:
    """A group that was played to its end."""

    group: Group
    kept: bool = True
    """False: the batch was full by then, or there is nothing to learn from it."""


@dataclass(frozen=True, slots=True)
class ReturnedTask:
    """A task whose group was cut short."""

    order: int
    why: str
    lost_tokens: int
    """Tokens that its episodes had sampled."""


@dataclass(slots=True)
class PlayTally:
    """The counts of one play; `Rollout.tally` has those of the last."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Episodes by status."""
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Failed episodes by (boundary, kind)."""
    retries: int = 0
    """Further attempts that were made."""
    lost_tokens: int = 0
    """Sampled tokens of attempts that were made again, and of groups that were cut short: no group has them."""
    abandoned: int = 0
    """Workflows that could not be ended and still run, when the play ended."""


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Which groups of a play are kept, where not all are."""

    count: int
    learns_from: Callable[[Group], bool]
    """True if the algorithm can learn from a group."""


class Slots:
    """At most `limit` episodes at a time, first come first served.

    Invariant: `live`, the number of episodes that run or are about to take a free slot, never dips while others wait;
    a deterministic rollout admits its requests by it.
    """

    def __init__(self, limit: int, total: int, on_live: Callable[[int], None] | None = None) -> None:
        """`total` is the number of the play's episodes; `on_live` gets each new `live`."""
        self._free = self._limit = limit
        self._remaining = total
        self._queue: deque[asyncio.Future[None]] = deque()
        self._on_live = on_live
        self._report_live()

    @property
    def live(self) -> int:
        """The number of episodes that run or are about to."""
        return min(self._limit, self._remaining)

    def ask(self) -> asyncio.Future[None]:
        """Return a future that is done once the caller holds a slot.

        Cancel it to give up waiting; either way call `leave` once.
        """
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(slot)
        self._assign_free()
        return slot

    def leave(self, slot: asyncio.Future[None]) -> None:
        """Return the slot of an episode that has ended, or that never began."""
        self._remaining -= 1
        if slot.done() and not slot.cancelled():
            self._free += 1
        else:
            slot.cancel()
        self._report_live()
        self._assign_free()

    def _assign_free(self) -> None:
        while self._free and self._queue:
            slot = self._queue.popleft()
            if not slot.done():
                self._free -= 1
                slot.set_result(None)

    def _report_live(self) -> None:
        if self._on_live is not None:
            self._on_live(self.live)


class GroupPlay:
    """The episodes of one task while they run."""

    def __init__(
        self,
        task: Task,
        order: int,
        index: int,
        repeats: int,
        *,
        deadline: float | None,
        min_group: int,
        on_close: Callable[[GroupPlay], None],
    ) -> None:
        """Prepare a group of `repeats` episodes.

        Args:
            index: The task's place within this play.
            deadline: Seconds after the first episode's start; None: no deadline.
        """
        self.task, self.order, self.index, self.repeats = task, order, index, repeats
        self.episodes: list[Episode] = []
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the episodes that still run are to be aborted."""
        self.ranking: Ranking | None = None
        """Compares its attempts with each other; None: each is judged by itself."""
        self._deadline, self._min_group = deadline, min_group
        self._on_close = on_close
        self._began = self._is_overdue = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """True if every repeat is accounted for."""
        return len(self.episodes) == self.repeats

    @property
    def cut_short(self) -> bool:
        """True if the play stopped it before it could close by itself: it is unfinished, not small."""
        return self.stopped.done() and self.stopped.result() != "group_deadline"

    def began(self) -> None:
        """Note that an episode starts; the first one sets the clock."""
        if not self._began and self._deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(self._deadline, self._pass_deadline)
        self._began = True

    def ended(self, episode: Episode) -> None:
        """Take a complete episode; the last one closes the group."""
        self.episodes.append(episode)
        if self.closed:
            if self._timer is not None:
                self._timer.cancel()
            self.episodes.sort(key=lambda episode: episode.repeat)
            self._on_close(self)
        elif self._is_overdue:
            self._pass_deadline()

    def arrived(self) -> None:
        """Note that an attempt waits to be compared."""
        if self._is_overdue:
            self._pass_deadline()

    def stop(self, reason: str) -> None:
        """Abort the episodes that still run."""
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def group(self) -> Group:
        """Return the closed group."""
        return Group(self.task, self.order, self.episodes)

    def _pass_deadline(self) -> None:
        self._is_overdue = True
        waiting = self.ranking.waiting if self.ranking is not None else 0
        if closes_late(self.episodes, min_group=self._min_group, repeats=self.repeats, waiting=waiting):
            self.stop("group_deadline")


def closes_late(episodes: Iterable[Episode], *, min_group: int, repeats: int, waiting: int = 0) -> bool:
    """True if a group whose deadline has passed closes with the episodes that are in.

    Enough of them have a reward, or are `waiting` to be compared for one. Groups of a server close by the same rule.
    """
    return sum(episode.scored for episode in episodes) + waiting >= min(min_group, repeats)


class Play:
    """All groups of one call to `Rollout.stream`, and how each ended."""

    def __init__(self, kept: KeepRule | None, *, in_order: bool) -> None:
        """Prepare the play.

        Args:
            kept: None keeps every group.
            in_order: Closed groups are reported by their place among the tasks instead of by time.
        """
        self.groups: list[GroupPlay] = []
        self.events: queue.SimpleQueue[Episode | ClosedGroup | ReturnedTask | BaseException | None]
        self.events = queue.SimpleQueue()
        self.tally = PlayTally()
        self._keep_rule, self._in_order = kept, in_order
        self._closed: dict[int, GroupPlay] = {}
        self._kept_places: set[int] = set()
        """Places of the groups that are kept."""
        self._next = 0

    @property
    def enough(self) -> bool:
        """True if as many groups are kept as were requested."""
        return self._keep_rule is not None and len(self._kept_places) >= self._keep_rule.count

    def take_closed(self, group: GroupPlay) -> None:
        """Take a group that has closed."""
        self._closed[group.index] = group
        if not self._in_order:
            self._offer_group(group)
            return
        while (following := self._closed.get(self._next)) is not None:
            self._next += 1
            self._offer_group(following)

    def stop(self, reason: str) -> None:
        """Abort every group that still runs."""
        for group in self.groups:
            if not group.closed:
                group.stop(reason)

    def finish(self) -> None:
        """Report the remaining groups, scored ones first, and end the events; call it once all groups have closed."""
        left = [group for group in self._closed.values() if group.index not in self._kept_places]
        left.sort(key=lambda group: (not group.group().scored, group.index))
        for group in left:
            if group.cut_short:
                lost = sum(episode.sampled_tokens for episode in group.episodes)
                self.tally.lost_tokens += lost
                self.events.put(ReturnedTask(group.order, group.stopped.result(), lost))
            elif self.enough:
                self.events.put(ClosedGroup(group.group(), kept=False))
            else:
                self._keep_group(group)
        self.events.put(None)

    def _offer_group(self, group: GroupPlay) -> None:
        if self._keep_rule is None:
            if not group.cut_short:
                self._keep_group(group)
        elif not self.enough and not group.cut_short and self._keep_rule.learns_from(group.group()):
            self._keep_group(group)
            if self.enough and not self._in_order:
                self.stop("enough_groups")

    def _keep_group(self, group: GroupPlay) -> None:
        self._kept_places.add(group.index)
        self.events.put(ClosedGroup(group.group()))
