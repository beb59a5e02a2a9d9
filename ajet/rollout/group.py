"""GroupPlay: the episodes of one task while they run, and when their group closes.

Invariant: a group closes once, with all its repeats accounted for: played to their end, or recorded as aborted. It
closes early only at its deadline with at least `min_group` scored episodes, or when the play has enough groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ajet.rollout.ranking import Ranking
from ajet.schema.episode import Episode, Group
from ajet.schema.task import Task


def closes_late(episodes: Iterable[Episode], *, min_group: int, repeats: int, waiting: int = 0) -> bool:
    """Whether a group whose deadline has passed closes with the episodes that are in: enough of them have a reward, or
    are `waiting` to be compared for one. Whoever makes the episodes, this runtime or clients."""
    return sum(episode.scored for episode in episodes) + waiting >= min(min_group, repeats)


class GroupPlay:
    """Lives on the rollout's loop."""

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
        """`index` is the task's place within this play; `deadline` in seconds after the first episode's start."""
        self.task, self.order, self.index, self.repeats = task, order, index, repeats
        self.episodes: list[Episode] = []
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason, when the episodes that still run are to be aborted."""
        self._deadline, self._min_group = deadline, min_group
        self._on_close = on_close
        self._began = self._late = False
        self._timer: asyncio.TimerHandle | None = None
        self.ranking: Ranking | None = None
        """Where its attempts are compared with each other."""

    @property
    def closed(self) -> bool:
        """True when every repeat is accounted for."""
        return len(self.episodes) == self.repeats

    @property
    def cut_short(self) -> bool:
        """True when the play stopped it before it could close by itself: it is unfinished, not small."""
        return self.stopped.done() and self.stopped.result() != "group_deadline"

    def began(self) -> None:
        """An episode starts; the first one sets the clock."""
        if not self._began and self._deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(self._deadline, self._overdue)
        self._began = True

    def ended(self, episode: Episode) -> None:
        """An episode is complete."""
        self.episodes.append(episode)
        if self.closed:
            if self._timer is not None:
                self._timer.cancel()
            self.episodes.sort(key=lambda episode: episode.repeat)
            self._on_close(self)
        elif self._late:
            self._overdue()

    def arrived(self) -> None:
        """An attempt waits to be compared."""
        if self._late:
            self._overdue()

    def stop(self, reason: str) -> None:
        """Abort what still runs."""
        if not self.stopped.done():
            self.stopped.set_result(reason)

    def group(self) -> Group:
        """The closed group."""
        return Group(self.task, self.order, self.episodes)

    def _overdue(self) -> None:
        self._late = True
        waiting = self.ranking.waiting if self.ranking is not None else 0
        if closes_late(self.episodes, min_group=self._min_group, repeats=self.repeats, waiting=waiting):
            self.stop("group_deadline")
