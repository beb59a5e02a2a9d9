"""Rankings of attempts that clients made at one task, once their group is complete.

Invariant: an attempt that waits to be ranked says so in its verdict, on the disk too, and has no score until all of its
group are in; then each that waits gets its verdict, or all the same failure. A restarted server ranks what an earlier
one did not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loguru import logger

from ajet.gateway import Capture
from ajet.rollout.attempt import AttemptResult
from ajet.rollout.episode import EpisodeBuilder
from ajet.rollout.served.episode import ServedIdentity
from ajet.rollout.served.groups import OpenGroup
from ajet.rollout.verdicts import Verdicts
from ajet.schema.episode import Episode, Failure, Verdict
from ajet.schema.task import WorkflowOutput

WAITS = "no score yet: it is ranked when all attempts of its group are in"


def waits(episode: Episode) -> bool:
    """True if the episode waits to be ranked."""
    verdict = episode.verdict
    return verdict is not None and verdict.reward is None and verdict.reason == WAITS


class GroupRanking:
    """Ranks the groups of one desk; on its loop."""

    def __init__(
        self,
        verdicts: Verdicts,
        builder: EpisodeBuilder,
        seed: int,
        ended: Callable[[OpenGroup, Sequence[Episode], Failure | None], None],
    ) -> None:
        """`ended` is told of each group that was begun, once: who was
        ranked (nobody, where it was stopped), and why there is no ranking."""
        self._verdicts, self._builder, self._seed, self._ended = verdicts, builder, seed, ended
        self._asked: dict[asyncio.Task[tuple[list[Episode], Failure | None]], OpenGroup] = {}

    @property
    def under_way(self) -> int:
        """The number of groups that are being ranked."""
        return len(self._asked)

    def begin(self, group: OpenGroup) -> None:
        """Rank the waiting attempts of a complete group."""
        asked = asyncio.ensure_future(self._rank_group(group))
        self._asked[asked] = group
        asked.add_done_callback(self._take_end)

    async def stop(self) -> None:
        """End what is under way without a ranking; `ended` has been told of all."""
        asked = list(self._asked)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    def _take_end(self, asked: asyncio.Task[tuple[list[Episode], Failure | None]]) -> None:
        group = self._asked.pop(asked)
        problem = None if asked.cancelled() else asked.exception()
        if problem is not None:
            logger.opt(exception=problem).error("the attempts at position {} are not ranked", group.lease.order)
        self._ended(group, *(([], None) if asked.cancelled() or problem is not None else asked.result()))

    async def _rank_group(self, group: OpenGroup) -> tuple[list[Episode], Failure | None]:
        """Ask, and put those that waited back into the group with what they got: these, and why there was no
        ranking."""
        waiting = {episode.repeat: episode for episode in group.episodes if waits(episode)}
        again = {repeat: (_restore_identity(episode), _restore_result(episode)) for repeat, episode in waiting.items()}
        arrived = {repeat: self._verdicts.arrived(*again[repeat]) for repeat in sorted(again)}
        found = await self._verdicts.rank(arrived, f"{self._seed}/{group.lease.order}")
        ranked = {repeat: await self._build_episode(*again[repeat], _get_verdict(found, repeat)) for repeat in again}
        group.episodes = [ranked.get(episode.repeat, episode) for episode in group.episodes]
        return list(ranked.values()), found if isinstance(found, Failure) else None

    async def _build_episode(
        self, identity: ServedIdentity, played: AttemptResult, found: Verdict | Failure
    ) -> Episode:
        if isinstance(found, Failure):
            played.failure = found
        stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        verdict = found if isinstance(found, Verdict) else None
        return await self._builder.build(identity, played, verdict, stopped)


def _get_verdict(found: Mapping[int, Verdict] | Failure, repeat: int) -> Verdict | Failure:
    return replace(found) if isinstance(found, Failure) else found[repeat]


def _restore_identity(episode: Episode) -> ServedIdentity:
    return ServedIdentity(
        episode.run, episode.split, episode.step, episode.task, episode.order, episode.order, episode.repeat,
        episode.uuid, episode.group,
    )  # fmt: skip


def _restore_result(episode: Episode) -> AttemptResult:
    """Return the result of the attempt that the episode was built of."""
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
