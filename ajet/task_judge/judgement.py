"""Turns the return value of a judge or scorer into a verdict.

Invariant: a reward in a verdict is a finite number. A value that is no reward raises JudgeFailure and never becomes 0.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

from ajet.environment.loop import in_thread
from ajet.schema.episode import Verdict
from ajet.schema.errors import JudgeFailure
from ajet.schema.process_reward import ProcessReward

_SHOWN = 200
"""Maximum characters of a wrong value in an error."""
UNDECIDED = "no score: the judge returned None"
_OF_A_MAPPING = ("score", "success", "reason")


def read_verdict(judgement: Any, who: str, *, gamma: float = 1.0, success: bool | None = None) -> Verdict:
    """Return the verdict of a judge's return value. Raises JudgeFailure.

    Args:
        who: name of the reward for errors.
        gamma: discount of a list of rewards.
        success: the workflow's success, used if the judge did not decide.
    """
    judgement = _to_python_scalar(judgement)
    if judgement is None:
        return Verdict(None, success, UNDECIDED)
    if isinstance(judgement, Verdict):
        verdict = replace(judgement, reward=discount_rewards(judgement.reward, who, gamma))
        verdict.turns = turn_rewards(judgement.reward, who) or judgement.turns
    elif isinstance(judgement, Mapping) and "score" in judgement:
        verdict = _read_mapping(judgement, who, gamma)
    elif _is_pair(judgement):
        verdict = Verdict(discount_rewards(judgement[0], who, gamma), _success_of_pair(judgement, who))
        verdict.turns = turn_rewards(judgement[0], who)
    elif isinstance(judgement, list):
        verdict = Verdict(discount_rewards(judgement, who, gamma), None, turns=turn_rewards(judgement, who))
    elif _is_truth(judgement):
        verdict = Verdict(float(judgement), bool(judgement))
    elif isinstance(judgement, Real):
        verdict = Verdict(float(judgement), None)
    else:
        raise JudgeFailure(f"{who}: {_explain_unread(judgement)}")
    if verdict.reward is None and not verdict.reason:
        verdict.reason = UNDECIDED
    return check_verdict(verdict, who)


def _explain_unread(judgement: Any) -> str:
    """Describe a value that is no reward, and the expected values."""
    if isinstance(judgement, Mapping):
        keys = ", ".join(str(key) for key in judgement)[:_SHOWN] or "no key"
        return f'it returned a dict without "score" (its keys are {keys}); return {{"score": 1.0, …}}'
    if isinstance(judgement, str):
        cure = "return float(…)" if _is_number(judgement) else "return a number"
        return f"it returned the text {judgement!r:.{_SHOWN}}; {cure}"
    return (
        f"it returned {judgement!r:.{_SHOWN}}, a {type(judgement).__name__}; expected a number, (reward, is_success), "
        'a list of numbers, a Verdict, a dict with "score", or None'
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def discount_rewards(reward: Any, who: str, gamma: float) -> float | None:
    """Return the reward, or the discounted sum of rewards per turn, r_0 + gamma * r_1 + …; None for no score. Raises
    JudgeFailure."""
    if isinstance(reward, (list, tuple)):
        if not reward:
            return None
        return sum(_require_number(part, who) * gamma**turn for turn, part in enumerate(reward))
    return None if reward is None else _require_number(reward, who)


def turn_rewards(reward: Any, who: str) -> tuple[float, ...]:
    """The rewards of the turns, where there are several. Raises JudgeFailure."""
    return tuple(_require_number(part, who) for part in reward) if isinstance(reward, (list, tuple)) else ()


def attach_process(verdict: Verdict, parts: Sequence[Any], who: str) -> Verdict:
    """Set the process rewards of a verdict. Raises JudgeFailure."""
    for part in parts:
        if not isinstance(part, ProcessReward):
            raise JudgeFailure(
                f"{who}: `process` contains {part!r:.200}; expected objects such as ProcessReward(reward=…, step=…)"
            )
    verdict.process = tuple(parts)
    return verdict


def check_verdict(verdict: Verdict, who: str) -> Verdict:
    """The verdict, unchanged. Raises JudgeFailure for a reward, a part or a metric that is no finite number."""
    parts = [(name, value) for name, value in verdict.parts.items() if value is not None]
    for name, value in (*verdict.metrics.items(), *parts):
        if not isinstance(value, Real) or not math.isfinite(value):
            raise JudgeFailure(f"{who}: {name} is {value!r:.200}; expected a finite number")
    if verdict.reward is None:
        verdict.reason = verdict.reason or "no score: the judge returned an empty list of rewards"
    elif not math.isfinite(verdict.reward):
        raise JudgeFailure(f"{who} is {verdict.reward}; expected a finite number, or None for no score")
    return verdict


def _read_mapping(mapping: Mapping[str, Any], who: str, gamma: float) -> Verdict:
    """Read `score`, optional `success` and `reason`; further numbers become parts, as in verl's reward functions."""
    score = mapping["score"]
    success = _read_success(mapping.get("success"), who)
    if _is_truth(score):
        success = bool(score) if success is None else success
    further = {str(name): float(value) for name, value in mapping.items()
               if name not in _OF_A_MAPPING and isinstance(value, Real) and math.isfinite(value)}  # fmt: skip
    return Verdict(discount_rewards(score, who, gamma), success, str(mapping.get("reason") or ""), parts=dict(further))


def _is_pair(judgement: Any) -> bool:
    """True for (reward, is_success): a tuple of two, or a list with a bool or None in second place. A list of two
    numbers is two rewards."""
    if not isinstance(judgement, (tuple, list)) or len(judgement) != 2:
        return False
    return isinstance(judgement, tuple) or judgement[1] is None or _is_truth(judgement[1])


def _success_of_pair(pair: Sequence[Any], who: str) -> bool | None:
    """Return the second value of (reward, is_success). Raises JudgeFailure unless it is a bool or None."""
    success = _to_python_scalar(pair[1])
    if success is None or isinstance(success, bool):
        return success
    order = f": `return {success!r:.40}, {pair[0]!r:.40}`" if _is_truth(pair[0]) else ""
    raise JudgeFailure(
        f"{who}: it returned ({pair[0]!r:.80}, {success!r:.80}); a pair must be (reward, is_success), in this "
        f"order, with True, False or None as its second value{order}. Return several rewards as a list, a single "
        "reward as a number"
    )


def _to_python_scalar(value: Any) -> Any:
    """Convert a scalar of numpy or torch; return other values unchanged."""
    is_scalar = hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", None) == 0
    return value.item() if is_scalar else value


def _is_truth(value: Any) -> bool:
    return isinstance(_to_python_scalar(value), bool)


def _require_number(value: Any, who: str) -> float:
    value = _to_python_scalar(value)
    if not isinstance(value, Real):
        raise JudgeFailure(f"{who} is {value!r:.200}, a {type(value).__name__}; expected a number")
    return float(value)


def _read_success(value: Any, who: str) -> bool | None:
    value = _to_python_scalar(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Real) and value in (0, 1):
        return bool(value)
    raise JudgeFailure(f"{who}: is_success is {value!r:.200}, a {type(value).__name__}; expected a bool or None")


async def call_user_function(function: Callable[..., Any], *args: Any) -> Any:
    """Call a user's function: awaited if async, else run in its own thread.

    Hanging judges would use up a thread pool. Code that ends the program ends only its own call.
    """
    answer = (
        function(*args) if inspect.iscoroutinefunction(function) else await in_thread(_contain_exit, function, *args)
    )
    return await answer if inspect.isawaitable(answer) else answer


def _contain_exit(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (SystemExit, KeyboardInterrupt) as raised:
        raise JudgeFailure(f"the judge tried to end the program: {raised!r}") from raised
