"""Ranks clients' attempts at one task, once the group is complete.

Invariants: an attempt due for ranking has a verdict without a score and with WAITING_REASON, on the disk too, until all
attempts of the group are in. Then each attempt gets a verdict, or all get the same failure. A restarted server ranks
the unranked groups of an earlier server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from loguru import logger

from ajet.gateway import Capture
from ajet.rollout.attempt import AttemptResult
from ajet.rollout.episode import EpisodeBuilder
from ajet.rollout.judge_caller import JudgeCaller
from ajet.rollout.served.episode import ServedIdentity
from ajet.rollout.served.groups import OpenGroup
from ajet.schema.episode import Episode, Failure, Verdict
from ajet.schema.task import WorkflowOutput

WAITING_REASON = "no score yet: the judge compares all attempts of this task once they have ended"


def needs_ranking(episode: Episode) -> bool:
    """True if the episode waits to be ranked."""
    verdict = episode.verdict
    return verdict is not None and verdict.reward is None and verdict.reason == WAITING_REASON


class ServedRanker:
    """Ranks the complete groups of one registry, on the registry's loop."""

    def __init__(
        self,
        judge_caller: JudgeCaller,
        builder: EpisodeBuilder,
        seed: int,
        on_end: Callable[[OpenGroup, Sequence[Episode], Failure | None], None],
    ) -> None:
        """Prepare the ranker.

        Args:
            on_end: Called once for each started group, with the ranked episodes (an empty list if the ranking was
                stopped) and the failure if there is no ranking.
        """
        self._judge_caller = judge_caller
        self._builder = builder
        self._seed = seed
        self._on_end = on_end
        self._group_of_task: dict[asyncio.Task[tuple[list[Episode], Failure | None]], OpenGroup] = {}

    @property
    def inflight_count(self) -> int:
        """The number of groups that are being ranked."""
        return len(self._group_of_task)

    def begin(self, group: OpenGroup) -> None:
        """Rank the waiting attempts of a complete group."""
        ranking = asyncio.ensure_future(self._rank_group(group))
        self._group_of_task[ranking] = group
        ranking.add_done_callback(self._take_end)

    async def stop(self) -> None:
        """Cancel all rankings. When the call returns, `on_end` was called for all groups."""
        running = list(self._group_of_task)
        for ranking in running:
            ranking.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _take_end(self, ranking: asyncio.Task[tuple[list[Episode], Failure | None]]) -> None:
        """Pass the result of an ended ranking to `on_end`. A cancelled or crashed ranking has no episodes."""
        group = self._group_of_task.pop(ranking)
        problem = None if ranking.cancelled() else ranking.exception()
        if problem is not None:
            logger.opt(exception=problem).error("the attempts at position {} could not be ranked", group.lease.order)
        self._on_end(group, *(([], None) if ranking.cancelled() or problem is not None else ranking.result()))

    async def _rank_group(self, group: OpenGroup) -> tuple[list[Episode], Failure | None]:
        """Rank the waiting episodes and put them back into the group. Return the episodes, and the failure if any."""
        waiting = {episode.repeat: episode for episode in group.episodes if needs_ranking(episode)}
        attempts = {
            repeat: (_restore_identity(episode), _restore_result(episode)) for repeat, episode in waiting.items()
        }
        compared = {repeat: self._judge_caller.make_judge_input(*attempts[repeat]) for repeat in sorted(attempts)}
        result = await self._judge_caller.rank_attempts(compared, f"{self._seed}/{group.lease.order}")
        ranked = {}
        for repeat, (identity, attempt) in attempts.items():
            verdict = replace(result) if isinstance(result, Failure) else result[repeat]
            ranked[repeat] = await self._build_episode(identity, attempt, verdict)
        group.episodes = [ranked.get(episode.repeat, episode) for episode in group.episodes]
        return list(ranked.values()), result if isinstance(result, Failure) else None

    async def _build_episode(
        self, identity: ServedIdentity, played: AttemptResult, result: Verdict | Failure
    ) -> Episode:
        """Build an episode again, with its rank's verdict, or as failed if the ranking failed."""
        if isinstance(result, Failure):
            played.failure = result
        never_stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        verdict = result if isinstance(result, Verdict) else None
        return await self._builder.build(identity, played, verdict, never_stopped)


def _restore_identity(episode: Episode) -> ServedIdentity:
    """Return the identity under which an ended episode was opened."""
    return ServedIdentity(
        episode.run, episode.split, episode.step, episode.task, episode.order, episode.order, episode.repeat,
        episode.uuid, episode.group,
    )  # fmt: skip


def _restore_result(episode: Episode) -> AttemptResult:
    """Return the attempt result from which the episode was built."""
    return AttemptResult(
        output=WorkflowOutput(metadata=dict(episode.metadata), log_metrics=dict(episode.metrics)),
        capture=Capture(
            calls=list(episode.calls), messages=episode.messages, tools=episode.tools, checks=list(episode.checks),
            tool_uses=list(episode.tool_uses),
        ),
        started=episode.started,
        ended=episode.ended,
        attempts=episode.attempts,
        printed=episode.printed,
    )  # fmt: skip
