"""BaseJudge: what users subclass to say how good an attempt was.

Invariant: one instance serves a whole run and is called from several threads, so it keeps nothing about an attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, TypeAlias

from ajet.schema.episode import Verdict
from ajet.schema.task import WorkflowOutput, WorkflowTask

Judgement: TypeAlias = "Verdict | tuple[float | list[float] | None, bool | None] | float | bool | None"
"""(reward, is_success), or a Verdict with a reason, or None: no score. A number alone is the reward, and nobody says
whether it is a success; True and False are both: 1 and a success, 0 and none."""


class BaseJudge(ABC):
    """Subclass it, write `compute_reward`, and name the class in `task_judge.judge_protocol` (a function will do there,
    too: `def reward(task, output)`)."""

    def __init__(self, config: Any) -> None:
        """`config`: the composed config, with attribute access."""
        self.config = config

    @abstractmethod
    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> Judgement | Awaitable[Judgement]:
        """Judge one attempt whose workflow set no reward.

        A plain function (run in a thread of its own, so it may block) or `async def`. What it raises is a failure of
        the judge: the episode is recorded and not trained on. Return None, or a reward of None, where it cannot
        decide: that is no score, which is not a score of 0.
        """
