"""Play: all groups of one call to `Rollout.play`, and what became of them.

Invariant: every task handed in ends in exactly one place: yielded, discarded (played to its end and of no use), or
unfinished (cut short because enough groups had closed; the task order hands it out first next time). With
oversampling the first groups with something to learn from are kept; the others fill up only if those do not suffice.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ajet.rollout.group import GroupPlay
from ajet.schema.episode import Episode, Group


@dataclass(slots=True)
class Tally:
    """What a play came to; `Rollout.tally` of the last one."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Episodes by status."""
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Failed episodes by (boundary, kind)."""
    retries: int = 0
    """Further attempts that were made."""
    lost_tokens: int = 0
    """Sampled tokens of attempts that were made again, and of unfinished groups: no group that is kept has them."""
    abandoned: int = 0
    """Workflows that could not be ended and still run, when the play ended."""
    discarded: list[Group] = field(default_factory=list)
    """Groups that were played to their end and not yielded."""
    unfinished: list[int] = field(default_factory=list)
    """Orders of the tasks whose groups were cut short: give them back to the task order."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Which groups of a play are yielded, where not all are."""

    count: int
    learns_from: Callable[[Group], bool]
    """Whether there is something to learn from a group: the algorithm's to say."""


class Play:
    """Collects closed groups; lives on the rollout's loop, but for `events`, which the caller's thread empties."""

    def __init__(self, kept: Kept | None, *, in_order: bool) -> None:
        """`kept` None yields every group. `in_order` yields by place among the tasks instead of by time."""
        self.groups: list[GroupPlay] = []
        self.events: queue.SimpleQueue[Episode | Group | BaseException | None] = queue.SimpleQueue()
        self.tally = Tally()
        self._kept, self._in_order = kept, in_order
        self._closed: dict[int, GroupPlay] = {}
        self._given: set[int] = set()
        self._next = 0

    @property
    def enough(self) -> bool:
        """True when as many groups are yielded as were asked for."""
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
        """All groups have closed: fill up, sort what is left, end the events."""
        left = [group for group in self._closed.values() if group.index not in self._given]
        left.sort(key=lambda group: (not group.group().scored, group.index))
        for group in left:
            if self._kept is not None and not self.enough and not group.cut_short:
                self._yield(group)
            elif group.cut_short:
                self.tally.unfinished.append(group.order)
                self.tally.lost_tokens += sum(episode.sampled_tokens for episode in group.episodes)
            else:
                self.tally.discarded.append(group.group())
        self.tally.unfinished.sort()
        self.events.put(None)

    def _offer(self, group: GroupPlay) -> None:
        if self._kept is None:
            if not group.cut_short:
                self._yield(group)
        elif not self.enough and not group.cut_short and self._kept.learns_from(group.group()):
            self._yield(group)
            if self.enough and not self._in_order:
                self.stop("enough_groups")

    def _yield(self, group: GroupPlay) -> None:
        self._given.add(group.index)
        self.events.put(group.group())
