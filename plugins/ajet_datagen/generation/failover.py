"""Choose the order of several models.

Invariant: models are tried in order, but a model that did not answer rests: for REST_S seconds it is tried last, and
once. So a dead model delays only the prompts already waiting, and no model is given up forever.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ajet.environment.chat_model import NoAnswerError

REST_S = 60.0
NEVER = (401, 402, 403, 404)
"""Refusals that do not depend on the prompt."""


class ModelFailover:
    """Orders the models so that recently failed ones come last, shared by all prompts of a reader."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._paused_until, self._clock = [float("-inf")] * count, clock

    def rank_models(self) -> list[int]:
        """Return the model indexes in the order in which the next prompt tries them."""
        return sorted(range(len(self._paused_until)), key=self.is_resting)

    def is_resting(self, model_index: int) -> bool:
        """True if the model recently failed and is tried last."""
        return self._clock() < self._paused_until[model_index]

    def note_answer(self, model_index: int) -> None:
        """Record an answer of this model."""
        self._paused_until[model_index] = float("-inf")

    def note_failure(self, model_index: int, problem: NoAnswerError) -> bool:
        """Record that a model failed after all retries, and let it rest unless only this prompt is at fault.

        Returns:
            True if it begins to rest now; False if it was resting already, or does not rest.
        """
        if not problem.is_retryable and problem.status not in NEVER:
            return False
        starts_rest = not self.is_resting(model_index)
        self._paused_until[model_index] = self._clock() + REST_S
        return starts_rest
