"""Judge: from what a workflow returned to a verdict.

Invariant: a reward in a verdict is a finite number; a judge that raises or answers anything else is a JudgeFailure,
and one that cannot decide gives no score. Nothing is ever turned into 0. A user's blocking code never holds up the
event loop that asks.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable
from numbers import Real
from typing import Any, Protocol

from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, JudgeFailure, RewardFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask


class Judging(Protocol):
    """What a judge of the user's, or a task reader's own, can do: see BaseJudge."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        """A reward alone, (reward, is_success), a Verdict, or None; maybe awaitable."""
        ...


class Judge:
    """Asks `judging` (None: there is no judge) where a workflow left the reward open."""

    def __init__(self, judging: Judging | None, *, gamma: float = 1.0) -> None:
        """`gamma` discounts a list of rewards, one a turn: r_0 + gamma * r_1 + …"""
        self._judging, self._gamma = judging, gamma

    def __str__(self) -> str:
        if self._judging is None:
            return "none: the workflow sets the reward"
        return f"{type(self._judging).__module__}.{type(self._judging).__qualname__}"

    @property
    def judges(self) -> bool:
        """Whether there is anybody to ask."""
        return self._judging is not None

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        """The workflow's own reward, else the judge's. Raises RewardFailure for the first, JudgeFailure, or the
        BoundaryError the judge raised."""
        if output.reward is not None:
            who = "the workflow's reward"
            try:
                return self._checked(Verdict(self._total(output.reward, who), output.is_success), who)
            except JudgeFailure as problem:
                raise RewardFailure(str(problem)) from None
        if self._judging is None:
            reason = "no score: the workflow set no reward, and no judge is configured"
            return Verdict(None, output.is_success, reason)
        name = type(self._judging).__name__
        try:
            judgement = await _called(self._judging.compute_reward, workflow_task, output)
        except BoundaryError:
            raise
        except Exception as problem:
            raise JudgeFailure(f"{name} raised {type(problem).__name__}: {problem}") from problem
        return self._read(judgement, f"{name}'s reward", output)

    def _read(self, judgement: Any, who: str, output: WorkflowOutput) -> Verdict:
        if judgement is None:
            return Verdict(None, output.is_success, "no score: the judge did not decide")
        if isinstance(judgement, Verdict):
            verdict = Verdict(self._total(judgement.reward, who), judgement.success, judgement.reason)
        elif isinstance(judgement, (tuple, list)) and len(judgement) == 2:
            verdict = Verdict(self._total(judgement[0], who), _truth(judgement[1], who))
        elif isinstance(judgement, bool) or hasattr(judgement, "dtype") and judgement.dtype == bool:
            verdict = Verdict(float(judgement), bool(judgement))
        elif isinstance(judgement, Real):
            verdict = Verdict(float(judgement), None)
        else:
            raise JudgeFailure(
                f"{who}: expected a number, (reward, is_success), a Verdict or None, got {judgement!r:.200}"
            )
        if verdict.reward is None and not verdict.reason:
            verdict.reason = "no score: the judge did not decide"
        return self._checked(verdict, who)

    def _total(self, reward: Any, who: str) -> float | None:
        if isinstance(reward, (list, tuple)):
            if not reward:
                return None
            return sum(_number(part, who) * self._gamma**turn for turn, part in enumerate(reward))
        return None if reward is None else _number(reward, who)

    @staticmethod
    def _checked(verdict: Verdict, who: str) -> Verdict:
        if verdict.reward is None:
            verdict.reason = verdict.reason or "no score: an empty list of rewards"
        elif not math.isfinite(verdict.reward):
            raise JudgeFailure(f"{who} is {verdict.reward}; expected a finite number, or None for no score")
        return verdict


def _number(value: Any, who: str) -> float:
    if not isinstance(value, Real):
        raise JudgeFailure(f"{who} is {value!r:.200}, a {type(value).__name__}; expected a number")
    return float(value)


def _truth(value: Any, who: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if hasattr(value, "dtype") or isinstance(value, Real):
        return bool(value)
    raise JudgeFailure(f"{who}: is_success is {value!r:.200}, a {type(value).__name__}; expected a bool or None")


async def _called(function: Callable[..., Any], *args: Any) -> Any:
    """The function's result: awaited here if it is async, else computed in a thread of its own (a pool's threads
    would be used up by judges that hang)."""
    answer = function(*args) if inspect.iscoroutinefunction(function) else await _in_thread(function, *args)
    return await answer if inspect.isawaitable(answer) else answer


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, problem: BaseException | None) -> None:
        if not done.done():
            if problem is None:
                done.set_result(result)
            else:
                done.set_exception(problem)

    def work() -> None:
        result, problem = None, None
        try:
            result = function(*args)
        except Exception as raised:  # noqa: BLE001 - handed to the caller, who classifies it
            problem = raised
        except (SystemExit, KeyboardInterrupt) as raised:
            problem = JudgeFailure(f"the judge ended the program: {raised!r}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=work, name="ajet-judge", daemon=True).start()
    return await done
