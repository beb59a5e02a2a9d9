"""Which turns train: the user's `train_turn(call, episode) -> bool`, asked for each call that could be trained.

Invariant: it is asked once an attempt has its verdict, beside the loops that play; a call that it turns down is
context, its tokens are counted as `not_trainable`. An attempt for which it raises, hangs or answers anything but a bool
has failed: nothing of it is trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ajet.config import resolve_reference
from ajet.config.functions import is_function, require_callable_with
from ajet.environment.services.threads import in_thread
from ajet.rollout.attempt import AttemptResult, Identity
from ajet.rollout.episode import build_episode
from ajet.rollout.failure import classify
from ajet.schema.call import Call
from ajet.schema.episode import Episode, Verdict
from ajet.schema.errors import ConfigError, JudgeFailure

if TYPE_CHECKING:
    from ajet.config import AjetConfig, Experiment

KEY = "ajet.rollout.train_turn"


class TrainTurn:
    """Asks one such function."""

    def __init__(self, function: Callable[[Call, Episode], object], reference: str, timeout: float | None) -> None:
        self._function, self._reference, self._timeout = function, reference, timeout

    @classmethod
    def of(cls, experiment: Experiment) -> TrainTurn | None:
        """The experiment's; None where every turn trains. Raises ConfigError and UnresolvedReference."""
        rollout = experiment.ajet.rollout
        if not rollout.train_turn:
            return None
        function: Any = resolve_reference(rollout.train_turn, base=experiment.base, what=KEY)
        if not is_function(function) or asyncio.iscoroutinefunction(function):
            raise ConfigError(
                f"{rollout.train_turn} is no function that can be asked.",
                where=KEY,
                expected="`def name(call, episode) -> bool`, without `async`",
            )
        require_callable_with(function, ("call", "episode"), what=KEY, reference=rollout.train_turn)
        return cls(function, rollout.train_turn, rollout.episode_timeout)

    async def chosen(self, episode: Episode) -> list[Call]:
        """Its calls, those that it turns down no longer trained. Raises JudgeFailure, or what the function raises."""
        try:
            return await asyncio.wait_for(in_thread(self._ask, episode), self._timeout)
        except asyncio.TimeoutError:
            words = f"{self._reference} did not answer within {self._timeout} seconds"
            raise JudgeFailure(words, own=True) from None

    def _ask(self, episode: Episode) -> list[Call]:
        return [call if not call.is_step or self._says(call, episode) else _declined(call) for call in episode.calls]

    def _says(self, call: Call, episode: Episode) -> bool:
        answer = self._function(call, episode)
        if not isinstance(answer, bool):
            raise JudgeFailure(f"{self._reference} answered {answer!r:.200}; expected True or False")
        return answer


def _declined(call: Call) -> Call:
    return replace(call, trained=False, turned_down=True)


async def built(
    identity: Identity,
    played: AttemptResult,
    verdict: Verdict | None,
    settings: AjetConfig,
    choice: TrainTurn | None,
    stopped: asyncio.Future[str],
) -> Episode:
    """The episode of an attempt, with the turns that train. `stopped` ends the asking."""
    episode = build_episode(identity, played, verdict, settings)
    if choice is None or not episode.scored or played.capture is None:
        return episode
    asked = asyncio.ensure_future(choice.chosen(episode))
    await asyncio.wait((asked, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not asked.done():
        asked.cancel()
        played.aborted = stopped.result()
        return build_episode(identity, played, verdict, settings)
    try:
        played.capture = replace(played.capture, calls=asked.result())
    except Exception as problem:  # noqa: BLE001 - the border where a user's function fails
        played.failure = classify(problem, "judge")
        if played.failure.boundary == "agent":
            played.failure.boundary = "judge"
    return build_episode(identity, played, verdict, settings)
