"""Judge: turns a workflow's output into a verdict.

Invariant: a reward in a verdict is a finite number. A judge that raises or returns any other value is a JudgeFailure;
an undecided judge gives no score, never 0. Blocking user code never blocks the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ajet.config.scope import strip_scope
from ajet.schema.advice import advise_on
from ajet.schema.episode import Verdict
from ajet.schema.errors import BoundaryError, JudgeFailure, RewardFailure
from ajet.schema.task import Task, WorkflowOutput, WorkflowTask
from ajet.task_judge.judgement import (
    UNDECIDED,
    attach_process,
    call_user_function,
    check_verdict,
    discount_rewards,
    read_verdict,
    turn_rewards,
)


class Judging(Protocol):
    """The methods of a judge that is the user's, or a task reader's own: see BaseJudge."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> Any:
        """Return a reward, (reward, is_success), a Verdict or None; may be awaitable."""
        ...


@dataclass(frozen=True, slots=True)
class JudgeInput:
    """One attempt as a judge gets it: the task and the workflow's output."""

    task: WorkflowTask
    output: WorkflowOutput


class Ranking(Protocol):
    """A judge that ranks the attempts at one task."""

    async def compare(self, attempts: Mapping[int, JudgeInput], seed: str) -> dict[int, Verdict]:
        """Verdicts, by the same names. Raises JudgeFailure."""
        ...

    async def awake(self) -> None:
        """Raises JudgeFailure if no ranking model is reachable."""
        ...


class Judge:
    """Calls `judging` (None: no judge) if the workflow set no reward."""

    def __init__(self, judging: Judging | None, *, gamma: float = 1.0, ranks: Ranking | None = None) -> None:
        """`gamma` discounts a list of rewards, one per turn: r_0 + gamma * r_1 + …; `ranks`: judge of complete groups,
        if any."""
        self._judging, self._gamma = judging, gamma
        self.ranks = ranks

    def __str__(self) -> str:
        if self.ranks is not None:
            return f"{self.ranks}, by rank within a group of attempts; each attempt alone outside of a group"
        if self._judging is None:
            return "none: the workflow sets the reward"
        if self.said:
            return self.said
        return f"{strip_scope(type(self._judging).__module__)}.{type(self._judging).__qualname__}"

    @property
    def said(self) -> str:
        """The judge's own description; "" without one."""
        return str(getattr(self._judging, "said", ""))

    @property
    def judges(self) -> bool:
        """True if a judge is configured."""
        return self._judging is not None

    async def compare(self, attempts: Mapping[int, JudgeInput], seed: str) -> dict[int, Verdict]:
        """Return verdicts of the attempts at one task by the same keys; needs `ranks`. `seed`: order of presentation.
        Raises JudgeFailure."""
        assert self.ranks is not None
        try:
            return await self.ranks.compare(attempts, seed)
        except BoundaryError:
            raise
        except Exception as problem:
            raise JudgeFailure(f"{self} raised {type(problem).__name__}: {problem}") from problem

    async def awake(self) -> None:
        """Raises JudgeFailure if no ranking model is reachable."""
        assert self.ranks is not None
        try:
            await self.ranks.awake()
        except BoundaryError:
            raise
        except Exception as problem:
            raise JudgeFailure(f"{self} raised {type(problem).__name__}: {problem}") from problem

    def let_go(self) -> None:
        """Close connections and processes of ajet's own judges and scorers until the next use. Idempotent."""
        for each in (self._judging, self.ranks):
            if (let_go := getattr(each, "let_go", None)) is not None:
                let_go()

    def require_for(self, tasks: Iterable[Task]) -> None:
        """Refuse tasks with needs that the judge does not support. Raises TaskError."""
        require = getattr(self._judging, "require_for", None)
        if require is not None:
            require(tasks)

    async def verdict(self, workflow_task: WorkflowTask, output: WorkflowOutput) -> Verdict:
        """The workflow's own reward, else the judge's. Raises RewardFailure for the first, JudgeFailure, or the
        BoundaryError the judge raised."""
        if output.reward is not None:
            who = "the workflow's reward"
            try:
                verdict = Verdict(discount_rewards(output.reward, who, self._gamma), output.is_success)
                verdict.turns = turn_rewards(output.reward, who)
                return attach_process(check_verdict(verdict, who), output.process, who)
            except JudgeFailure as problem:
                raise RewardFailure(str(problem)) from None
        if output.undecided:
            return attach_process(Verdict(None, output.is_success, UNDECIDED), output.process, "the workflow's verdict")
        if self._judging is None:
            reason = "no score: the workflow set no reward, and no judge is set"
            return Verdict(None, output.is_success, reason)
        name = type(self._judging).__name__
        try:
            judgement = await call_user_function(self._judging.compute_reward, workflow_task, output)
        except BoundaryError:
            raise
        except Exception as problem:
            advice = advise_on(problem, workflow_task.task, output)
            message = f"{name} raised {type(problem).__name__}: {problem}"
            raise JudgeFailure(f"{message} ({advice})" if advice else message) from problem
        written_at = getattr(self._judging, "written_at", "")
        who = f"{name}'s reward ({written_at})" if written_at else f"{name}'s reward"
        verdict = read_verdict(judgement, who, gamma=self._gamma, success=output.is_success)
        return attach_process(verdict, [*verdict.process, *output.process], f"{name}'s verdict")
