"""Plays one episode: attempts in a slot until one counts, its verdict, and its place in the group.

Invariant: an episode that is begun ends as one `Episode`, which is counted, reported, and takes its place in its group:
after as many attempts as its failures allow, and those that an outage took, with the verdict of the last.
"""

from __future__ import annotations

from collections.abc import Callable

from ajet.engine.contract import Sampling
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.attempt_runner import AttemptRunner
from ajet.rollout.breaker import Breaker, BreakerTurn
from ajet.rollout.episode import EpisodeBuilder
from ajet.rollout.group import GroupPlay, Play, Slots
from ajet.rollout.runtime import wait_first
from ajet.rollout.teaching import Teaching
from ajet.rollout.verdicts import Verdicts
from ajet.schema.episode import Episode, Verdict

RETRY_PAUSE = 0.2
"""Seconds before the second attempt; doubled before each further one."""


class EpisodePlayer:
    """Plays episodes on the rollout's loop, from the wait for a slot to the place in the group."""

    def __init__(
        self,
        attempts: AttemptRunner,
        verdicts: Verdicts,
        teaching: Teaching | None,
        breaker: Breaker,
        builder: EpisodeBuilder,
        max_retries: int,
    ) -> None:
        """The parts are the rollout's, which closes them."""
        self._attempts, self._verdicts, self._teaching = attempts, verdicts, teaching
        self._breaker, self._builder, self._max_retries = breaker, builder, max_retries

    async def play(
        self,
        play: Play,
        group: GroupPlay,
        slots: Slots,
        identity: Identity,
        sampling: Sampling,
        on_end: Callable[[Episode], None] | None = None,
    ) -> None:
        """Play one episode; `on_end` gets it in place of the play's events."""
        turn = self._breaker.open_turn()
        try:
            episode = await self._play_to_end(play, group, slots, identity, sampling, turn)
        finally:
            turn.leave()
        play.tally.statuses[episode.status] += 1
        if episode.failure:
            play.tally.failures[episode.failure.boundary, episode.failure.kind] += 1
        (on_end or play.events.put)(episode)
        if group.ranking is not None:
            group.ranking.over(identity.repeat)
        group.ended(episode)

    async def _play_to_end(
        self, play: Play, group: GroupPlay, slots: Slots, identity: Identity, sampling: Sampling, turn: BreakerTurn
    ) -> Episode:
        """Play attempts in a slot and judge the last; play again those that an outage took."""
        number = 0
        while True:
            slot = slots.ask()
            try:
                await wait_first(slot, group.stopped)
                if group.stopped.done():
                    played = AttemptResult(aborted=group.stopped.result(), attempts=number)
                else:
                    group.began()
                    played = await self._play_attempts(play, group, identity, sampling, turn, number)
            finally:
                slots.leave(slot)
            verdict, is_reported = await self._judge(group, identity, played, turn)
            if self._teaching is not None:
                await self._teaching.ask(identity, played, verdict, group.stopped)
            if played.attempts > number and not is_reported:
                turn.ended(played.failure, aborted=played.aborted is not None)
            if not await turn.was_outage(played.failure, group.stopped):
                return await self._builder.build(identity, played, verdict, group.stopped)
            number = played.attempts
            _count_retry(play, played)

    async def _play_attempts(
        self, play: Play, group: GroupPlay, identity: Identity, sampling: Sampling, turn: BreakerTurn, before: int
    ) -> AttemptResult:
        """Play attempts until one ends well or in a way that another would not mend; report all others to the breaker.

        All draw with the same key.

        Args:
            before: The number of attempts at this episode that an outage took.
        """
        number = 1
        while True:
            await turn.wait_admitted(group.stopped)
            if group.stopped.done():
                return AttemptResult(aborted=group.stopped.result(), attempts=before + number - 1)
            played = await self._attempts.play(identity, sampling, group.stopped)
            played.attempts = before + number
            failure = played.failure
            if failure is None or not failure.retryable or number > self._max_retries:
                return played
            await wait_first(group.stopped, timeout=RETRY_PAUSE * 2 ** (number - 1))
            if group.stopped.done():
                return played
            turn.ended(failure)
            self._attempts.release(played.task)
            _count_retry(play, played)
            number += 1

    async def _judge(
        self, group: GroupPlay, identity: Identity, played: AttemptResult, turn: BreakerTurn
    ) -> tuple[Verdict | None, bool]:
        """Return the verdict, and whether the attempt's end was reported to the breaker before it."""
        verdict, is_reported = None, False
        ranking = group.ranking if self._verdicts.ranks(played) else None
        try:
            if ranking is None:
                verdict = await self._verdicts.of(identity, played, group.stopped)
        finally:
            self._attempts.release(played.task)
        if ranking is not None:
            if turn.probes:  # the others, which it would wait for, begin only once it has ended
                played.failure, is_reported = await self._verdicts.awake(), True
                turn.ended(played.failure)
            if played.failure is None:
                verdict = await self._verdicts.compared(ranking, identity, played, group.stopped, turn)
                turn.back()
        return verdict, is_reported


def _count_retry(play: Play, played: AttemptResult) -> None:
    play.tally.retries += 1
    if played.capture is not None:
        play.tally.lost_tokens += sum(len(call.response_ids) for call in played.capture.calls)
