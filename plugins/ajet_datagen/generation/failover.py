"""Which of several models is asked first.

Invariant: they are asked in their order, but one that did not answer rests: for REST_S it is asked last, and once. So a
model that is dead costs those prompts its waits that were on their way, and no other; and nobody is given up for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ajet.environment.chat_model import NoAnswerError

REST_S = 60.0
NEVER = (401, 402, 403, 404)
"""Refusals that say nothing of the prompt: the next one would be refused, too."""


class ModelFailover:
    """Chooses among `count` models, by their places. Kept for all of a reader's prompts."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._until, self._clock = [float("-inf")] * count, clock

    def rank_models(self) -> list[int]:
        """To be asked in, the next prompt's."""
        return sorted(range(len(self._until)), key=self.is_resting)

    def is_resting(self, place: int) -> bool:
        """Whether it is asked last."""
        return self._clock() < self._until[place]

    def note_answer(self, place: int) -> None:
        """Note that the model at this place answered."""
        self._until[place] = float("-inf")

    def note_failure(self, place: int, problem: NoAnswerError) -> bool:
        """Note that a model did not answer, also when it was asked again; answers whether its rest begins with that."""
        if not problem.is_retryable and problem.status not in NEVER:
            return False
        began = not self.is_resting(place)
        self._until[place] = self._clock() + REST_S
        return began
