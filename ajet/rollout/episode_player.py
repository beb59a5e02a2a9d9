"""Plays one episode: attempts in a slot until an attempt counts, the verdict, and the place in the group.

Invariant: a started episode ends as one `Episode`, which is counted, reported and added to the group. The episode has
the verdict of the last attempt. Failed attempts are repeated up to `max_retries`, attempts lost to an outage without
limit.
"""

from __future__ import annotations

from collections.abc import Callable

from ajet.engine.contract import Sampling
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.attempt_runner import AttemptRunner
from ajet.rollout.breaker import Breaker, BreakerTurn
from ajet.rollout.episode import EpisodeBuilder
from ajet.rollout.group import InflightGroup, Slots
from ajet.rollout.judge_caller import JudgeCaller
from ajet.rollout.runtime import wait_first
from ajet.rollout.teacher import TeacherScorer
from ajet.schema.episode import Episode, Verdict

RETRY_PAUSE = 0.2
"""Seconds before the second attempt, doubled before each further attempt."""


class EpisodePlayer:
    """Plays episodes on the rollout's loop, from the wait for a slot to the place in the group."""

    def __init__(
        self,
        attempts: AttemptRunner,
        judge_caller: JudgeCaller,
        teacher_scorer: TeacherScorer | None,
        breaker: Breaker,
        builder: EpisodeBuilder,
        max_retries: int,
    ) -> None:
        """Store the parts of the rollout. The rollout closes the parts."""
        self._attempts = attempts
        self._judge_caller = judge_caller
        self._teacher_scorer = teacher_scorer
        self._breaker = breaker
        self._builder = builder
        self._max_retries = max_retries

    async def play(
        self,
        group: InflightGroup,
        slots: Slots,
        identity: Identity,
        sampling: Sampling,
        on_end: Callable[[Episode], None] | None = None,
    ) -> None:
        """Play one episode and add it to the group.

        Args:
            slots: Limits the episodes that run at the same time.
            sampling: Sampling settings of all attempts.
            on_end: Gets the ended episode, before the group does.
        """
        turn = self._breaker.open_turn()
        try:
            episode = await self._play_to_end(group, slots, identity, sampling, turn)
        finally:
            turn.leave()
        if on_end is not None:
            on_end(episode)
        if group.ranker is not None:
            group.ranker.note_end(identity.repeat)
        group.add_episode(episode)

    async def _play_to_end(
        self,
        group: InflightGroup,
        slots: Slots,
        identity: Identity,
        sampling: Sampling,
        turn: BreakerTurn,
    ) -> Episode:
        """Play attempts in a slot until one is not lost to an outage, judge it, and build the episode."""
        attempts_before = 0
        while True:
            slot = slots.request()
            try:
                await wait_first(slot, group.stopped)
                if group.stopped.done():
                    result = AttemptResult(aborted=group.stopped.result(), attempts=attempts_before)
                else:
                    group.note_start()
                    result = await self._play_attempts(group, identity, sampling, turn, attempts_before)
            finally:
                # Before the judge: while an attempt is judged, another episode may play.
                slots.release(slot)
            verdict, is_reported = await self._judge_attempt(group, identity, result, turn)
            if self._teacher_scorer is not None:
                await self._teacher_scorer.score_attempt(identity, result, verdict, group.stopped)
            if result.attempts > attempts_before and not is_reported:
                turn.report_end(result.failure, aborted=result.aborted is not None)
            if not await turn.was_outage(result.failure, group.stopped):
                return await self._builder.build(identity, result, verdict, group.stopped)
            attempts_before = result.attempts

    async def _play_attempts(
        self,
        group: InflightGroup,
        identity: Identity,
        sampling: Sampling,
        turn: BreakerTurn,
        before: int,
    ) -> AttemptResult:
        """Play attempts until one succeeds or fails without a retry. Report all earlier attempts to the breaker.

        All attempts sample with the same key (seed, position, repeat), so with the same random numbers.

        Args:
            before: The number of this episode's attempts lost to an outage.
        """
        number = 1
        while True:
            await turn.wait_admitted(group.stopped)
            if group.stopped.done():
                return AttemptResult(aborted=group.stopped.result(), attempts=before + number - 1)
            result = await self._attempts.play(identity, sampling, group.stopped)
            result.attempts = before + number
            failure = result.failure
            if failure is None or not failure.retryable or number > self._max_retries:
                return result
            await wait_first(group.stopped, timeout=RETRY_PAUSE * 2 ** (number - 1))
            if group.stopped.done():
                return result
            turn.report_end(failure)
            self._attempts.release(result.task)
            number += 1

    async def _judge_attempt(
        self, group: InflightGroup, identity: Identity, result: AttemptResult, turn: BreakerTurn
    ) -> tuple[Verdict | None, bool]:
        """Return the verdict, and True if the attempt's end was already reported to the breaker."""
        verdict, is_reported = None, False
        ranker = group.ranker if self._judge_caller.needs_ranking(result) else None
        try:
            if ranker is None:
                verdict = await self._judge_caller.judge_attempt(identity, result, group.stopped)
        finally:
            self._attempts.release(result.task)
        if ranker is not None:
            if turn.is_probe:  # the other ranked attempts start only after the probe has ended
                result.failure, is_reported = await self._judge_caller.find_outage(), True
                turn.report_end(result.failure)
            if result.failure is None:
                verdict = await self._judge_caller.rank_attempt(ranker, identity, result, group.stopped, turn)
                turn.rejoin()
        return verdict, is_reported
