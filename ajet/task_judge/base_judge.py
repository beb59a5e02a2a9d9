"""BaseJudge: the base class of user-defined judges.

Invariant: one instance serves a complete run from several threads, so an instance stores no data of an attempt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, TypeAlias

from ajet.schema.episode import Verdict
from ajet.schema.task import WorkflowOutput, WorkflowTask

Judgement: TypeAlias = "Verdict | tuple[float | list[float] | None, bool | None] | float | bool | None"
"""(reward, is_success), a Verdict with a reason, or None for no score. A bare number is a reward without a success
verdict; True and False are reward and success."""


class BaseJudge(ABC):
    """Base class of judges: write `compute_reward` and name the class in `task_judge.judge_protocol`.

    A function `def reward(task, output)` works too.
    """

    def __init__(self, config: Any) -> None:
        """Store the composed config, with attribute access, as `self.config`."""
        self.config = config

    @abstractmethod
    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> Judgement | Awaitable[Judgement]:
        """Judge one attempt without a workflow reward.

        A plain function runs in its own thread and may block; `async def` works too. An exception is a judge failure:
        the episode is recorded, not trained on. None, or a reward of None, means no score, not a score of 0.
        """
