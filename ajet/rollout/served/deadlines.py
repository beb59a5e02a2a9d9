"""Deadlines: episodes that fell silent or took too long, ends that could not be recorded, groups that are overdue.

Invariant: nothing that began stays open for ever: each is looked at again and again, often enough for the shortest
limit. What a store or a client may come to ends no look; a mistake in ajet ends them all, and is told to whoever takes
the desk's results, so that no server goes on without limits. What is done about it is the desk's. Lives on the desk's
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ajet.gateway import Refused
from ajet.rollout.attempt import AttemptResult
from ajet.rollout.group import closes_late
from ajet.rollout.served.episode import ServedEpisode
from ajet.rollout.served.groups import OpenGroup, OpenGroups
from ajet.rollout.served.ranking import waits
from ajet.schema.episode import Episode, Failure

if TYPE_CHECKING:
    from ajet.config import AjetConfig

LONGEST_GLANCE = 2.0
"""Seconds between two looks for episodes whose time is over, at most."""
PATIENCE = 600.0
"""Seconds after which an end that cannot be recorded is given up, where gateway.idle_timeout says nothing."""


class Deadlines:
    """Keeps the time limits of one desk."""

    def __init__(
        self,
        settings: AjetConfig,
        under_way: Mapping[str, ServedEpisode],
        groups: OpenGroups,
        *,
        end: Callable[[ServedEpisode, AttemptResult, str], Awaitable[Episode]],
        give_up: Callable[[ServedEpisode, str, str], None],
        close: Callable[[OpenGroup, list[ServedEpisode]], Awaitable[None]],
    ) -> None:
        """`end`: an episode, as somebody says; raises Refused where it cannot be recorded. `give_up`: one whose end
        never could. `close`: a group, with the episodes of it that are under way."""
        rollout, self._idle = settings.rollout, settings.gateway.idle_timeout
        self._longest, self._of_a_group, self._least = (
            rollout.episode_timeout,
            rollout.group_deadline,
            rollout.min_group,
        )
        self._under_way, self._groups = under_way, groups
        self._end, self._give_up, self._close = end, give_up, close

    def watch(self, loop: asyncio.AbstractEventLoop, broken: Callable[[Exception], None]) -> None:
        """Look again and again on this loop, until `stop`. `broken`: gets what ends it otherwise."""

        def report(watching: Future[None]) -> None:
            problem = None if watching.cancelled() else watching.exception()
            if isinstance(problem, Exception):
                broken(problem)

        self._watching = asyncio.run_coroutine_threadsafe(self._look_repeatedly(), loop)
        self._watching.add_done_callback(report)

    def stop(self) -> None:
        """Look no more."""
        self._watching.cancel()

    async def _look_repeatedly(self) -> None:
        """Often enough for the shortest limit."""
        limits = [limit for limit in (self._longest, self._idle, self._of_a_group) if limit]
        while True:
            await asyncio.sleep(min([LONGEST_GLANCE, *(limit / 10 for limit in limits)]))
            await self.look()

    async def look(self) -> None:
        """End those whose time is over; close groups whose deadline has passed."""
        for served in list(self._under_way.values()):
            if served.unrecorded is not None:
                await self._record_again(served, served.unrecorded)
            elif (failure := self._find_timeout(served)) and served.ending is None:
                with contextlib.suppress(Refused):  # not recorded: the next look tries again
                    await self._end(served, AttemptResult(failure=failure), "timeout")
        for group in self._groups.older_than(self._of_a_group or math.inf):
            await self._close_overdue(group)

    def _find_timeout(self, served: ServedEpisode) -> Failure | None:
        if self._idle and served.quiet > self._idle:
            why = f"no model call for {self._idle:g} seconds (gateway.idle_timeout)"
            return Failure("agent", "timeout", why, retryable=True)
        if self._longest and time.monotonic() - served.since > self._longest:
            return Failure(
                "agent", "timeout", f"not finished within {self._longest:g} seconds (rollout.episode_timeout)"
            )
        return None

    async def _record_again(self, served: ServedEpisode, since: float) -> None:
        try:
            await self._end(served, AttemptResult(), served.ended_by)
        except Refused:
            if time.monotonic() - since > (self._idle or PATIENCE):
                self._give_up(served, "given up", "server")

    async def _close_overdue(self, group: OpenGroup) -> None:
        under_way = [served for served in self._under_way.values() if served.group is group]
        waiting = sum(map(waits, group.episodes))
        if not under_way or closes_late(group.episodes, min_group=self._least, repeats=group.places, waiting=waiting):
            await self._close(group, under_way)
