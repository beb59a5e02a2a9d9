"""Retries requests to models that write or embed, and prefers models that answered.

Invariant: only transient failures are retried, after a doubling wait or the wait that the server requests. A model that
recently failed ("resting") is tried last, and once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from ajet.environment.chat_model import NoAnswerError
from ajet.environment.loop import tools_loop
from ajet.record.console import counted

T = TypeVar("T")
AGAIN = 3
"""Maximum retries of one model."""
WAIT_S = 1.0
"""Wait before the first retry; doubled before each further retry."""
TIMEOUT_S = 300.0


async def request_with_retries(
    ask: Callable[[float], Awaitable[T]],
    failover: ModelFailover,
    place: int,
    *,
    last: bool,
    counted: Callable[[], None],
) -> T:
    """Request an answer from one model, with retries.

    Args:
        ask: sends one request with a timeout in seconds.
        place: index of the model.
        last: True if no other model follows. A model that hangs is then retried once.
        counted: called before each request.

    Raises:
        NoAnswerError: all tries failed.
    """
    began, number = time.monotonic(), 0
    retries = 0 if failover.is_resting(place) else AGAIN
    while True:
        counted()
        try:
            return await ask(TIMEOUT_S)
        except NoAnswerError as problem:
            hung = time.monotonic() - began >= TIMEOUT_S and not (last and number == 0)
            if not problem.is_retryable or number >= retries or hung or failover.is_resting(place):
                raise
            await asyncio.sleep(max(problem.after, WAIT_S * 2.0**number))
            if failover.is_resting(place):  # another prompt's failure has put the server to rest
                raise
            number += 1


def run_on_tools_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the tools' event loop and return its result. An interrupted caller cancels it."""
    future = asyncio.run_coroutine_threadsafe(work, tools_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


# Cost of a generation: requests, tokens reported by servers, and money by the configured prices.
# Invariant: a request counts when sent, tokens count when a reply arrives, readable or not.
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenPrice:
    """Prices of a million prompt and reply tokens of a model. 0 means unknown."""

    prompt: float = 0.0
    reply: float = 0.0


@dataclass(slots=True)
class GenerationCost:
    """Sums up requests, tokens and money of one generation."""

    calls: int = 0
    unreadable: int = 0
    prompt_tokens: int = 0
    reply_tokens: int = 0
    money: float = 0.0
    embedded: int = 0  # number of embedded texts

    def count_request(self) -> None:
        """Add a request to the cost."""
        self.calls += 1

    def count_reply(self, prompt_tokens: int, reply_tokens: int, price: TokenPrice) -> None:
        """Add a reply's tokens and price to the cost."""
        self.prompt_tokens += prompt_tokens
        self.reply_tokens += reply_tokens
        self.money += (prompt_tokens * price.prompt + reply_tokens * price.reply) / MILLION

    def describe_cost(self) -> str:
        """Return the cost in a few words; "" without requests."""
        parts = (
            [f"{counted(self.calls, 'request')}, {self.prompt_tokens:,} + {self.reply_tokens:,} tokens"]
            if self.calls
            else []
        )
        parts += [f"{self.money:.4g} in the currency of the models' prices"] if self.money else []
        parts += [f"{counted(self.embedded, 'text')} embedded"] if self.embedded else []
        return ", ".join(parts)


# Choose the order of several models.
# Invariant: models are tried in order, but a model that did not answer rests: for REST_S seconds it is tried last,
# and once. So a dead model delays only the prompts already waiting, and no model is given up forever.
REST_S = 60.0
NEVER = (401, 402, 403, 404)
"""Refusals that do not depend on the prompt."""


class ModelFailover:
    """Orders the models so that recently failed ones come last, shared by all prompts of a reader."""

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._until, self._clock = [float("-inf")] * count, clock

    def rank_models(self) -> list[int]:
        """Return the model indexes in the order in which the next prompt tries them."""
        return sorted(range(len(self._until)), key=self.is_resting)

    def is_resting(self, place: int) -> bool:
        """True if the model recently failed and is tried last."""
        return self._clock() < self._until[place]

    def note_answer(self, place: int) -> None:
        """Record an answer of this model."""
        self._until[place] = float("-inf")

    def note_failure(self, place: int, problem: NoAnswerError) -> bool:
        """Record that a model failed after all retries. Return True if it is now tried last."""
        if not problem.is_retryable and problem.status not in NEVER:
            return False
        began = not self.is_resting(place)
        self._until[place] = self._clock() + REST_S
        return began
