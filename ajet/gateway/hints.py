"""What clients ask for beside the reply itself: hints, what asks nothing of it, and other ways of drawing it.

Invariant: a hint, which no engine here can follow and on which no token depends, is recorded with its call, and said
once; never is it a refusal. What would change the distribution that is drawn from is refused with the reason: the
policy that is trained and proven is the run's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from loguru import logger

from ajet.engine.contract import Sampling
from ajet.gateway.turn import Refused, TurnRequest

HINTS = frozenset({"reasoning_effort", "verbosity"})
"""By their names in a turn."""
_SHAPING = {
    "logit_bias": "{}",
    "presence_penalty": "0",
    "frequency_penalty": "0",
    "repetition_penalty": "1",
    "min_p": "0",
}
"""They make another distribution of the model's; each with its value that does not."""
_DECIDED_BY = {
    "temperature": "rollout.temperature (in validation: rollout.val_kwargs)",
    "top_p": "rollout.top_p (in validation: rollout.val_kwargs)",
    "top_k": "rollout.top_k (in validation: rollout.val_kwargs)",
    "seed": "seed (each reply has a draw of its own)",
    "max_tokens": "rollout.max_response_length_in_one_turn",
}
"""The key that decides a sampling field which the run replaces."""


class Heard:
    """The hints that a gateway has spoken of. Thread-safe."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def say(self, names: Iterable[str]) -> None:
        """Say of those that were not yet spoken of that they change nothing."""
        with self._lock:
            new = sorted(set(names) - self._names)
            self._names.update(new)
        if new:
            logger.info("clients ask for {}, which changes nothing here and is kept with their calls", ", ".join(new))

    def say_replaced(self, asked: Mapping[str, Any], run: Sampling) -> None:
        """Log each sampling field that the run replaces, once a gateway, with the key that decides it.

        Args:
            asked: the fields that are replaced, with the request's values.
            run: the run's own sampling.
        """
        if self._names.issuperset(asked):
            return
        with self._lock:
            new = [name for name in asked if name not in self._names]
            self._names.update(new)
        for name in new:
            logger.warning(
                "the agent asks for {} {}; the run uses {}, by {}",
                *(name, asked[name], "its own" if name == "seed" else getattr(run, name), _DECIDED_BY[name]),
            )


def hints_of(request: TurnRequest) -> dict[str, Any]:
    """The hints of a request, with their values; what asks nothing of the reply is among them."""
    return {**{name: value for name, value in request.passed.items() if name in HINTS}, **request.asides}


def refuse_unhonoured(request: TurnRequest) -> None:
    """Raises Refused for a field that this engine cannot honour."""
    honoured = {"seed"} if request.json_schema is None else {"seed", "response_format"}
    for name in request.passed:
        if name in honoured or name in HINTS:
            continue
        why = (
            f"{name} draws from another distribution than the model's own, which is the one that is trained and whose "
            f"logprobs are recorded and proven: leave it out, or send {_SHAPING[name]}"
            if name in _SHAPING
            else f"{name} cannot be honoured by this model's engine"
        )
        raise Refused(why, param=name, code="unsupported_parameter")
