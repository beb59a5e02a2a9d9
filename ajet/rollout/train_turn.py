"""Which turns train: the user's `train_turn(call, episode) -> bool`, called for each call that could be trained.

Invariant: it is called once an attempt has its verdict, in a thread. A call that it turns down is context, and its
tokens are counted as `not_trainable`. An attempt for which it raises, hangs or returns anything but a bool has failed:
nothing of it is trained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ajet.config import resolve_reference
from ajet.config.functions import is_function, require_callable_with
from ajet.environment.loop import in_thread
from ajet.schema.call import Call
from ajet.schema.episode import Episode
from ajet.schema.errors import ConfigError, JudgeFailure

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.rollout.train_turn"


class TrainTurn:
    """Calls one such function."""

    def __init__(self, function: Callable[[Call, Episode], object], reference: str, timeout: float | None) -> None:
        self._function, self._reference, self._timeout = function, reference, timeout

    @classmethod
    def of(cls, experiment: Experiment) -> TrainTurn | None:
        """Resolve the experiment's function; None if every turn trains. Raises ConfigError and UnresolvedReference."""
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

    async def choose_calls(self, episode: Episode) -> list[Call]:
        """Return the episode's calls; those that the function turns down are no longer trained.

        Raises:
            JudgeFailure: It took too long or returned no bool; any other exception is the function's own.
        """
        try:
            return await asyncio.wait_for(in_thread(self._choose_all, episode), self._timeout)
        except asyncio.TimeoutError:
            message = f"{self._reference} did not answer within {self._timeout} seconds"
            raise JudgeFailure(message, own=True) from None

    def _choose_all(self, episode: Episode) -> list[Call]:
        return [
            call
            if not call.is_step or self._should_train(call, episode)
            else replace(call, trained=False, turned_down=True)
            for call in episode.calls
        ]

    def _should_train(self, call: Call, episode: Episode) -> bool:
        answer = self._function(call, episode)
        if not isinstance(answer, bool):
            raise JudgeFailure(f"{self._reference} answered {answer!r:.200}; expected True or False")
        return answer
