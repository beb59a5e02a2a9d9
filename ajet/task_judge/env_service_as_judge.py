"""EnvServiceJudge: the environment that a task lives in says how it went.

Invariant: it never invents a score. Environment services are not part of this version, and choosing it says so.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ajet.schema.errors import ConfigError
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge


class EnvServiceJudge(BaseJudge):
    """Will ask the environment service's /evaluate; refuses until there are environment services."""

    def __init__(self, config: Any) -> None:
        raise self._refusal()

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> NoReturn:
        """Raises ConfigError."""
        raise self._refusal()

    @staticmethod
    def _refusal() -> ConfigError:
        return ConfigError(
            "EnvServiceJudge asks an environment service, and environment services are not part of this version.",
            where="task_judge.judge_protocol",
        )
