"""Episodes: attempts in, one episode out.

Invariant: what is begun ends as one episode, which is counted, told, and takes its place in its group: after as many
attempts as its failures allow, and those that an outage took, with the verdict of the last. All of it is on the
rollout's loop.
"""

from __future__ import annotations

from collections.abc import Callable

from ajet.config.schema import AjetConfig
from ajet.engine.contract import Sampling
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.attempts import Attempts
from ajet.rollout.breaker import Breaker, Turn
from ajet.rollout.group import GroupPlay
from ajet.rollout.own_loop import wait_first
from ajet.rollout.play import Play
from ajet.rollout.slots import Slots
from ajet.rollout.teaching import Teaching
from ajet.rollout.train_turn import TrainTurn, built
from ajet.rollout.verdicts import RETRY_PAUSE, Verdicts
from ajet.schema.episode import Episode


class Episodes:
    """Plays them one by one; the parts are the rollout's, which closes them."""

    def __init__(
        self,
        attempts: Attempts,
        verdicts: Verdicts,
        teaching: Teaching | None,
        breaker: Breaker,
        settings: AjetConfig,
        train_turn: TrainTurn | None,
    ) -> None:
        self._attempts, self._verdicts, self._teaching = attempts, verdicts, teaching
        self._breaker, self._settings, self._train_turn = breaker, settings, train_turn

    async def one(
        self,
        play: Play,
        group: GroupPlay,
        slots: Slots,
        identity: Identity,
        sampling: Sampling,
        on_end: Callable[[Episode], None] | None = None,
    ) -> None:
        """Play one episode, from its wait for a slot to its place in the group."""
        turn = self._breaker.begins()
        try:
            episode = await self._played(play, group, slots, identity, sampling, turn)
        finally:
            turn.leave()
        play.tally.statuses[episode.status] += 1
        if episode.failure:
            play.tally.failures[episode.failure.boundary, episode.failure.kind] += 1
        (on_end or play.events.put)(episode)
        if group.ranking is not None:
            group.ranking.over(identity.repeat)
        group.ended(episode)

    async def _played(
        self, play: Play, group: GroupPlay, slots: Slots, identity: Identity, sampling: Sampling, turn: Turn
    ) -> Episode:
        """The episode; what an outage took of it was played again."""
        number = 0
        while True:
            seat = slots.ask()
            try:
                await wait_first(seat, group.stopped)
                if group.stopped.done():
                    played = AttemptResult(aborted=group.stopped.result(), attempts=number)
                else:
                    group.began()
                    played = await self._repeated(play, group, identity, sampling, turn, number)
            finally:
                slots.leave(seat)
            ranking = group.ranking if self._verdicts.ranks(played) else None
            try:
                verdict = None if ranking is not None else await self._verdicts.of(identity, played, group.stopped)
            finally:
                self._attempts.release(played.task)
            told = False
            if ranking is not None:
                if turn.probes:  # the others, which it would wait for, begin only once it has ended
                    played.failure, told = await self._verdicts.awake(), True
                    turn.ended(played.failure)
                if played.failure is None:
                    verdict = await self._verdicts.compared(ranking, identity, played, group.stopped, turn)
                    turn.back()
            if self._teaching is not None:
                await self._teaching.ask(identity, played, verdict, group.stopped)
            if played.attempts > number and not told:
                turn.ended(played.failure, aborted=played.aborted is not None)
            if not await turn.taken(played.failure, group.stopped):
                return await built(identity, played, verdict, self._settings, self._train_turn, group.stopped)
            number = played.attempts
            _play_again(play, played)

    async def _repeated(
        self, play: Play, group: GroupPlay, identity: Identity, sampling: Sampling, turn: Turn, before: int
    ) -> AttemptResult:
        """Attempts until one ends well or in a way that another would not mend: the breaker knows of all but that one.
        All draw with the same key. `before`: attempts at this episode that an outage took."""
        number = 1
        while True:
            await turn.admitted(group.stopped)
            if group.stopped.done():
                return AttemptResult(aborted=group.stopped.result(), attempts=before + number - 1)
            played = await self._attempts.one(group, identity, sampling)
            played.attempts = before + number
            failure = played.failure
            if failure is None or not failure.retryable or number > self._settings.rollout.max_retries:
                return played
            await wait_first(group.stopped, timeout=RETRY_PAUSE * 2 ** (number - 1))
            if group.stopped.done():
                return played
            turn.ended(failure)
            self._attempts.release(played.task)
            _play_again(play, played)
            number += 1


def _play_again(play: Play, played: AttemptResult) -> None:
    play.tally.retries += 1
    if played.capture is not None:
        play.tally.lost_tokens += sum(len(call.response_ids) for call in played.capture.calls)
