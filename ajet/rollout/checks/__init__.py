"""Checks for abnormal output, run on every reply that could be trained on.

In: a call and its parsed reply. Out: the rules that fired, as `check:rule`. Invariant: a rule fires on what no honest
answer contains; what merely looks unusual (mathematics, other scripts, tables, rulers, binary digits) passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ajet.rollout.checks.nonsense_check import nonsense
from ajet.rollout.checks.wrong_toolcall_check import wrong_toolcall
from ajet.schema.call import Call
from ajet.schema.errors import ConfigError

CHECKS: dict[str, Callable[[dict[str, Any]], list[str]]] = {"nonsense": nonsense, "wrong_toolcall": wrong_toolcall}
"""Each takes the reply as an assistant message and answers the rules that fired."""


def open_checks(names: Sequence[str]) -> Callable[[Call, dict[str, Any]], list[str]] | None:
    """What the gateway calls after each reply; None when no check is wanted. Raises ConfigError."""
    for name in names:
        if name not in CHECKS:
            raise ConfigError(
                f"There is no check {name}.",
                where="ajet.rollout.compute_madness_checklist",
                expected=f"any of {', '.join(CHECKS)}",
            )

    def inspect(call: Call, message: dict[str, Any]) -> list[str]:
        if not call.trained:
            return []
        return [f"{name}:{rule}" for name in names for rule in CHECKS[name](message)]

    return inspect if names else None


__all__ = ["CHECKS", "nonsense", "open_checks", "wrong_toolcall"]
