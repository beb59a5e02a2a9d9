"""Deadlines of served episodes and groups: idle or slow clients, unrecorded ends, overdue groups.

Invariant: no episode and no group stays open for ever. All limits are checked repeatedly, often enough for the shortest
limit. An error of a store or a client ends no check. A bug in ajet ends all checks and is raised in the caller of the
registry's results: no server continues without limits. The watcher only decides when; the registry ends, gives up and
closes. The watcher runs on the registry's loop.
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
from ajet.rollout.group import should_close_late
from ajet.rollout.served.episode import ServedEpisode
from ajet.rollout.served.groups import OpenGroup, OpenGroups
from ajet.rollout.served.ranker import needs_ranking
from ajet.schema.episode import Episode, Failure

if TYPE_CHECKING:
    from ajet.config import AjetConfig

CHECK_INTERVAL = 2.0
"""Seconds between two checks, at most."""
RECORD_PATIENCE = 600.0
"""Seconds until an unrecorded end is given up, if gateway.idle_timeout is not set."""


class DeadlineWatcher:
    """Checks the time limits of one registry."""

    def __init__(
        self,
        settings: AjetConfig,
        under_way: Mapping[str, ServedEpisode],
        groups: OpenGroups,
        *,
        end_episode: Callable[[ServedEpisode, AttemptResult, str], Awaitable[Episode]],
        give_up: Callable[[ServedEpisode, str, str], None],
        close: Callable[[OpenGroup, list[ServedEpisode]], Awaitable[None]],
    ) -> None:
        """Read the limits from the settings.

        Args:
            under_way: The open episodes by name. This is the registry's own mapping.
            groups: The groups that still wait for attempts.
            end_episode: Judges and records an episode. The text names the cause. Raises Refused if the end cannot be
                recorded.
            give_up: Drops an episode whose end could not be recorded. The texts are the reason and the cause.
            close: Closes a group, with the open episodes of the group.
        """
        rollout, self._idle_timeout = settings.rollout, settings.gateway.idle_timeout
        self._episode_timeout, self._group_deadline = rollout.episode_timeout, rollout.group_deadline
        self._min_group = rollout.min_group
        self._under_way, self._groups = under_way, groups
        self._end_episode = end_episode
        self._give_up = give_up
        self._close_group = close

    def start(self, loop: asyncio.AbstractEventLoop, on_error: Callable[[Exception], None]) -> None:
        """Check repeatedly on this loop until `stop`. `on_error` gets an exception that ends the checks early."""

        def report(watching: Future[None]) -> None:
            problem = None if watching.cancelled() else watching.exception()
            if isinstance(problem, Exception):
                on_error(problem)

        self.watching = asyncio.run_coroutine_threadsafe(self._check_repeatedly(), loop)
        self.watching.add_done_callback(report)

    def stop(self) -> None:
        """End the checks. Does not wait."""
        self.watching.cancel()

    async def _check_repeatedly(self) -> None:
        """Check all limits for ever, at intervals of a tenth of the shortest limit and at most CHECK_INTERVAL."""
        limits = [limit for limit in (self._episode_timeout, self._idle_timeout, self._group_deadline) if limit]
        while True:
            await asyncio.sleep(min([CHECK_INTERVAL, *(limit / 10 for limit in limits)]))
            await self.check_all()

    async def check_all(self) -> None:
        """Check all limits once: end overdue episodes, repeat failed recordings, close overdue groups."""
        for served in list(self._under_way.values()):
            if served.unrecorded_since is not None:
                await self._retry_recording(served, served.unrecorded_since)
            elif (failure := self.find_timeout(served)) and served.ending is None:
                with contextlib.suppress(Refused):  # not recorded: the next check tries again
                    await self._end_episode(served, AttemptResult(failure=failure), "timeout")
        for group in self._groups.list_older(self._group_deadline or math.inf):
            await self._close_overdue(group)

    def find_timeout(self, served: ServedEpisode) -> Failure | None:
        """Return the failure of an episode over one of its time limits, or None."""
        if self._idle_timeout and served.idle_seconds > self._idle_timeout:
            reason = f"no model call for {self._idle_timeout:g} seconds (gateway.idle_timeout)"
            return Failure("agent", "timeout", reason, retryable=True)
        if self._episode_timeout and time.monotonic() - served.since > self._episode_timeout:
            reason = f"not finished within {self._episode_timeout:g} seconds (rollout.episode_timeout)"
            return Failure("agent", "timeout", reason)
        return None

    async def _retry_recording(self, served: ServedEpisode, since: float) -> None:
        """Try to record an ended episode again, and drop the episode if that has failed for too long.

        Args:
            since: Monotonic time of the first failed try.
        """
        try:
            await self._end_episode(served, AttemptResult(), served.ended_by)
        except Refused:
            if time.monotonic() - since > (self._idle_timeout or RECORD_PATIENCE):
                self._give_up(served, "given up", "server")

    async def _close_overdue(self, group: OpenGroup) -> None:
        """Close a group past its deadline, if enough attempts are scored or none is under way."""
        under_way = [served for served in self._under_way.values() if served.group is group]
        waiting = sum(map(needs_ranking, group.episodes))
        is_due = should_close_late(group.episodes, min_group=self._min_group, repeats=group.places, waiting=waiting)
        if not under_way or is_due:
            await self._close_group(group, under_way)
