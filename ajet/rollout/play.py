"""Play: all groups of one call to `Rollout.stream`, and how each ended.

Invariant: every task handed in ends once, as `Closed` (kept, or played to its end and of no use) or as `GivenBack` (cut
short, because enough groups had closed: it is to be played again). With oversampling the first groups with something
to learn from are kept; the others fill up only if those do not suffice.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ajet.rollout.group import GroupPlay
from ajet.schema.episode import Episode, Group


@dataclass(frozen=True, slots=True)
class Closed:
    """A group that was played to its end."""

    group: Group
    kept: bool = True
    """False: the batch was full by then, or there is nothing to learn from it."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """A task whose group was cut short."""

    order: int
    why: str
    lost_tokens: int
    """That its episodes had sampled."""


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
class Wanted:
    """Which groups of a play are kept, where not all are."""

    count: int
    learns_from: Callable[[Group], bool]
    """Whether there is something to learn from a group: the algorithm's to say."""


class Play:
    """Collects closed groups; lives on the rollout's loop, but for `events`, which the caller's thread empties."""

    def __init__(self, kept: Wanted | None, *, in_order: bool) -> None:
        """`kept` None keeps every group. `in_order` tells them by place among the tasks instead of by time."""
        self.groups: list[GroupPlay] = []
        self.events: queue.SimpleQueue[Episode | Closed | GivenBack | BaseException | None] = queue.SimpleQueue()
        self.tally = PlayTally()
        self._kept, self._in_order = kept, in_order
        self._closed: dict[int, GroupPlay] = {}
        self._given: set[int] = set()
        self._next = 0

    @property
    def enough(self) -> bool:
        """True when as many groups are kept as were asked for."""
        return self._kept is not None and len(self._given) >= self._kept.count

    def closed(self, group: GroupPlay) -> None:
        """A group has closed."""
        self._closed[group.index] = group
        if not self._in_order:
            self._offer(group)
            return
        while (following := self._closed.get(self._next)) is not None:
            self._next += 1
            self._offer(following)

    def stop(self, reason: str) -> None:
        """Abort every group that still runs."""
        for group in self.groups:
            if not group.closed:
                group.stop(reason)

    def finish(self) -> None:
        """Fill up and end the events, after all groups have closed; sort what is left."""
        left = [group for group in self._closed.values() if group.index not in self._given]
        left.sort(key=lambda group: (not group.group().scored, group.index))
        for group in left:
            if group.cut_short:
                lost = sum(episode.sampled_tokens for episode in group.episodes)
                self.tally.lost_tokens += lost
                self.events.put(GivenBack(group.order, group.stopped.result(), lost))
            elif self.enough:
                self.events.put(Closed(group.group(), kept=False))
            else:
                self._keep(group)
        self.events.put(None)

    def _offer(self, group: GroupPlay) -> None:
        if self._kept is None:
            if not group.cut_short:
                self._keep(group)
        elif not self.enough and not group.cut_short and self._kept.learns_from(group.group()):
            self._keep(group)
            if self.enough and not self._in_order:
                self.stop("enough_groups")

    def _keep(self, group: GroupPlay) -> None:
        self._given.add(group.index)
        self.events.put(Closed(group.group()))
