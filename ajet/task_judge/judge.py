"""Judge: turns a workflow's output, or the return value of a judge or scorer, into a verdict.

Invariant: a reward in a verdict is a finite number. A judge that raises, or returns any other value, is a JudgeFailure;
an undecided judge gives no score, never 0. Blocking user code never blocks the event loop.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Protocol

from ajet.config.scope import strip_scope
from ajet.environment.loop import in_thread
from ajet.schema.advice import advise_on
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, JudgeFailure, RewardFailure
from ajet.schema.process_reward import ProcessReward
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask

_SHOWN = 200
"""Maximum characters of a wrong value in an error."""
UNDECIDED = "no score: the judge returned None"
_OF_A_MAPPING = ("score", "success", "reason")


def read_verdict(judgement: Any, source_name: str, *, gamma: float = 1.0, success: bool | None = None) -> Verdict:
    """Convert a judge's return value to a verdict.

    Args:
        judgement: a number, (reward, success), a list of rewards per turn, a mapping, a Verdict, or None.
        source_name: name of the reward for errors.
        gamma: discount of a list of rewards.
        success: the workflow's success, used if the judge did not decide.

    Raises:
        JudgeFailure: the value is no reward.
    """
    judgement = _to_python_scalar(judgement)
    if judgement is None:
        return Verdict(None, success, UNDECIDED)
    if isinstance(judgement, Verdict):
        verdict = replace(judgement, reward=discount_rewards(judgement.reward, source_name, gamma))
        verdict.turns = turn_rewards(judgement.reward, source_name) or judgement.turns
    elif isinstance(judgement, Mapping) and "score" in judgement:
        verdict = _read_mapping(judgement, source_name, gamma)
    elif _is_pair(judgement):
        verdict = Verdict(discount_rewards(judgement[0], source_name, gamma), _success_of_pair(judgement, source_name))
        verdict.turns = turn_rewards(judgement[0], source_name)
    elif isinstance(judgement, list):
        verdict = Verdict(
            discount_rewards(judgement, source_name, gamma), None, turns=turn_rewards(judgement, source_name)
        )
    elif _is_truth(judgement):
        verdict = Verdict(float(judgement), bool(judgement))
    elif isinstance(judgement, Real):
        verdict = Verdict(float(judgement), None)
    else:
        raise JudgeFailure(f"{source_name}: {_explain_unread(judgement)}")
    if verdict.reward is None and not verdict.reason:
        verdict.reason = UNDECIDED
    return check_verdict(verdict, source_name)


def _explain_unread(judgement: Any) -> str:
    """Return an error text for a judge's return value that is no reward: what it is, and what is expected."""
    if isinstance(judgement, Mapping):
        keys = ", ".join(str(key) for key in judgement)[:_SHOWN] or "no key"
        return f'it returned a dict without "score" (its keys are {keys}); return {{"score": 1.0, …}}'
    if isinstance(judgement, str):
        advice = "return float(…)" if _is_number(judgement) else "return a number"
        return f"it returned the text {judgement!r:.{_SHOWN}}; {advice}"
    return (
        f"it returned {judgement!r:.{_SHOWN}}, a {type(judgement).__name__}; expected a number, (reward, is_success), "
        'a list of numbers, a Verdict, a dict with "score", or None'
    )


def _is_number(text: str) -> bool:
    """Return True if a text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def discount_rewards(reward: Any, source_name: str, gamma: float) -> float | None:
    """Return a reward as one number: a list of rewards per turn becomes r_0 + gamma * r_1 + …

    None means no score. Raises JudgeFailure.
    """
    if isinstance(reward, (list, tuple)):
        if not reward:
            return None
        return sum(_require_number(turn_reward, source_name) * gamma**turn for turn, turn_reward in enumerate(reward))
    return None if reward is None else _require_number(reward, source_name)


def turn_rewards(reward: Any, source_name: str) -> tuple[float, ...]:
    """Return the rewards per turn if the reward is a list or tuple, else ().

    Raises JudgeFailure for other entries than numbers.
    """
    return (
        tuple(_require_number(turn_reward, source_name) for turn_reward in reward)
        if isinstance(reward, (list, tuple))
        else ()
    )


def attach_process(verdict: Verdict, parts: Sequence[Any], source_name: str) -> Verdict:
    """Set the verdict's process rewards (rewards of parts of the attempt) and return the verdict.

    Raises:
        JudgeFailure: a part is no ProcessReward.
    """
    for process_reward in parts:
        if not isinstance(process_reward, ProcessReward):
            raise JudgeFailure(
                f"{source_name}: `process` contains {process_reward!r:.200}; expected objects such as "
                "ProcessReward(reward=…, step=…)"
            )
    verdict.process = tuple(parts)
    return verdict


def check_verdict(verdict: Verdict, source_name: str) -> Verdict:
    """Return the verdict if all its numbers are finite, else raise JudgeFailure.

    A verdict without a reward gets a reason if it has none.
    """
    scorer_rewards = [(name, value) for name, value in verdict.parts.items() if value is not None]
    for name, value in (*verdict.metrics.items(), *scorer_rewards):
        if not isinstance(value, Real) or not math.isfinite(value):
            raise JudgeFailure(f"{source_name}: {name} is {value!r:.200}; expected a finite number")
    if verdict.reward is None:
        verdict.reason = verdict.reason or "no score: the judge returned an empty list of rewards"
    elif not math.isfinite(verdict.reward):
        raise JudgeFailure(f"{source_name} is {verdict.reward}; expected a finite number, or None for no score")
    return verdict


def _read_mapping(mapping: Mapping[str, Any], source_name: str, gamma: float) -> Verdict:
    """Convert a mapping with `score` and optional `success` and `reason` to a verdict.

    Further numbers become the verdict's `parts`, as in verl's reward functions.
    """
    score = mapping["score"]
    success = _read_success(mapping.get("success"), source_name)
    if _is_truth(score):  # a score of True or False also decides the success
        success = bool(score) if success is None else success
    other_numbers = {str(name): float(value) for name, value in mapping.items()
               if name not in _OF_A_MAPPING and isinstance(value, Real) and math.isfinite(value)}  # fmt: skip
    return Verdict(
        discount_rewards(score, source_name, gamma),
        success,
        str(mapping.get("reason") or ""),
        parts=dict(other_numbers),
    )


def _is_pair(judgement: Any) -> bool:
    """True for (reward, success): a tuple of two, or a list with a bool or None in second place.

    A list of two numbers is two rewards of turns.
    """
    if not isinstance(judgement, (tuple, list)) or len(judgement) != 2:
        return False
    return isinstance(judgement, tuple) or judgement[1] is None or _is_truth(judgement[1])


def _success_of_pair(pair: Sequence[Any], source_name: str) -> bool | None:
    """Return the second value of (reward, is_success). Raises JudgeFailure unless it is a bool or None."""
    success = _to_python_scalar(pair[1])
    if success is None or isinstance(success, bool):
        return success
    order = f": `return {success!r:.40}, {pair[0]!r:.40}`" if _is_truth(pair[0]) else ""
    raise JudgeFailure(
        f"{source_name}: it returned ({pair[0]!r:.80}, {success!r:.80}); a pair must be (reward, is_success), in this "
        f"order, with True, False or None as its second value{order}. Return several rewards as a list, a single "
        "reward as a number"
    )


def _to_python_scalar(value: Any) -> Any:
    """Convert a scalar of numpy or torch; return other values unchanged."""
    is_scalar = hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "ndim", None) == 0
    return value.item() if is_scalar else value


def _is_truth(value: Any) -> bool:
    """Return True for a bool of Python, numpy or torch."""
    return isinstance(_to_python_scalar(value), bool)


def _require_number(value: Any, source_name: str) -> float:
    """Return a reward as a float. Raises JudgeFailure for other values than numbers."""
    value = _to_python_scalar(value)
    if not isinstance(value, Real):
        raise JudgeFailure(f"{source_name} is {value!r:.200}, a {type(value).__name__}; expected a number")
    return float(value)


def _read_success(value: Any, source_name: str) -> bool | None:
    """Return a success as a bool, also from 0 or 1; None stays None. Raises JudgeFailure for other values."""
    value = _to_python_scalar(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Real) and value in (0, 1):
        return bool(value)
    raise JudgeFailure(
        f"{source_name}: is_success is {value!r:.200}, a {type(value).__name__}; expected a bool or None"
    )


async def call_user_function(function: Callable[..., Any], *args: Any) -> Any:
    """Call a user's function and return its result: await it if async, else run it in a thread of its own.

    A thread pool would fill up with hanging judges. Code that ends the program ends only its own call.
    """
    result = (
        function(*args) if inspect.iscoroutinefunction(function) else await in_thread(_contain_exit, function, *args)
    )
    return await result if inspect.isawaitable(result) else result


def _contain_exit(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function, and turn its attempt to end the program into a JudgeFailure."""
    try:
        return function(*args)
    except (SystemExit, KeyboardInterrupt) as raised:
        raise JudgeFailure(f"the judge tried to end the program: {raised!r}") from raised


class Judging(Protocol):
    """Interface of judges written by users or brought by a task reader (`BaseJudge`)."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        """Return a reward, (reward, is_success), a Verdict or None; may be awaitable."""
        ...


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """An attempt as a judge reads it: the task and the workflow's output."""

    task: WorkflowTask
    output: WorkflowOutput


class Ranking(Protocol):
    """Interface of judges that rank the attempts at one task against each other."""

    async def compare(self, attempts: Mapping[int, JudgeInput], seed: str) -> dict[int, Verdict]:
        """Return a verdict for each attempt, under the same keys as in `attempts`.

        Args:
            attempts: input of each attempt, by its index.
            seed: fixes the order in which attempts are shown to a model.

        Raises:
            JudgeFailure: the attempts cannot be ranked.
        """
        ...

    async def awake(self) -> None:
        """Check that a ranking model is reachable. Raises JudgeFailure."""
        ...


class Judge:
    """Decides the verdict of an attempt: the workflow's own reward, or else the configured judge's."""

    def __init__(self, judging: Judging | None, *, gamma: float = 1.0, ranks: Ranking | None = None) -> None:
        """Wrap the configured judges.

        Args:
            judging: judges single attempts; None for no judge.
            gamma: discount of rewards per turn, r_0 + gamma * r_1 + …
            ranks: ranks the attempts at a task; None for no ranking.
        """
        self._user_judge, self._gamma = judging, gamma
        self.ranks = ranks

    def __str__(self) -> str:
        """Return the judge's description for the log."""
        if self.ranks is not None:
            return f"{self.ranks}, by rank within a group of attempts; each attempt alone outside of a group"
        if self._user_judge is None:
            return "none: the workflow sets the reward"
        if self.said:
            return self.said
        return f"{strip_scope(type(self._user_judge).__module__)}.{type(self._user_judge).__qualname__}"

    @property
    def said(self) -> str:
        """The description that the user's judge has in its attribute `said`, or ""."""
        return str(getattr(self._user_judge, "said", ""))

    @property
    def judges(self) -> bool:
        """True if a judge is configured."""
        return self._user_judge is not None

    async def compare(self, attempts: Mapping[int, JudgeInput], seed: str) -> dict[int, Verdict]:
        """Rank the attempts at one task by `ranks`, and return their verdicts under the same keys.

        Args:
            attempts: input of each attempt, by its index.
            seed: fixes the order in which attempts are shown to a model.

        Raises:
            JudgeFailure: the attempts cannot be ranked.
        """
        assert self.ranks is not None
        try:
            return await self.ranks.compare(attempts, seed)
        except BoundaryError:
            raise
        except Exception as error:
            raise JudgeFailure(f"{self} raised {type(error).__name__}: {error}") from error

    async def awake(self) -> None:
        """Check that a ranking model is reachable. Raises JudgeFailure."""
        assert self.ranks is not None
        try:
            await self.ranks.awake()
        except BoundaryError:
            raise
        except Exception as error:
            raise JudgeFailure(f"{self} raised {type(error).__name__}: {error}") from error

    def let_go(self) -> None:
        """Close connections and processes of ajet's own judges and scorers; the next use opens them again.

        Repeated calls have no effect.
        """
        for judge in (self._user_judge, self.ranks):
            if (let_go := getattr(judge, "let_go", None)) is not None:
                let_go()

    def require_for(self, tasks: Iterable[Task]) -> None:
        """Refuse tasks that the judge does not support, such as a row with an unknown scorer. Raises TaskError."""
        require = getattr(self._user_judge, "require_for", None)
        if require is not None:
            require(tasks)

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        """Return the verdict of an attempt: from the workflow's own reward, else from the configured judge.

        Without either the verdict has no reward.

        Raises:
            RewardFailure: the workflow's own reward is invalid.
            JudgeFailure: the judge failed.
            BoundaryError: as raised by the judge.
        """
        if output.reward is not None:
            source_name = "the workflow's reward"
            try:
                verdict = Verdict(discount_rewards(output.reward, source_name, self._gamma), output.is_success)
                verdict.turns = turn_rewards(output.reward, source_name)
                return attach_process(check_verdict(verdict, source_name), output.process, source_name)
            except JudgeFailure as error:
                raise RewardFailure(str(error)) from None
        if output.undecided:  # the workflow decided that there is no score
            return attach_process(Verdict(None, output.is_success, UNDECIDED), output.process, "the workflow's verdict")
        if self._user_judge is None:
            reason = "no score: the workflow set no reward, and no judge is set"
            return Verdict(None, output.is_success, reason)
        judge_name = type(self._user_judge).__name__
        try:
            judgement = await call_user_function(self._user_judge.compute_reward, workflow_task, output)
        except BoundaryError:
            raise
        except Exception as error:
            advice = advise_on(error, workflow_task.task, output)
            message = f"{judge_name} raised {type(error).__name__}: {error}"
            raise JudgeFailure(f"{message} ({advice})" if advice else message) from error
        written_at = getattr(self._user_judge, "written_at", "")
        source_name = f"{judge_name}'s reward ({written_at})" if written_at else f"{judge_name}'s reward"
        verdict = read_verdict(judgement, source_name, gamma=self._gamma, success=output.is_success)
        return attach_process(verdict, [*verdict.process, *output.process], f"{judge_name}'s verdict")
