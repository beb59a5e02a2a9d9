"""EnvServiceJudge: takes the reward from the episode's environment service.

Invariant: the reward is the environment's unchanged score. A missing score is a failure of the environment, never 0.
"""

from __future__ import annotations

from ajet.schema.errors import JudgeFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge

SUCCESS = 1.0


class EnvServiceJudge(BaseJudge):
    """Requests the score of the episode's instance from /evaluate; a score of 1 or more is a success."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple[float, bool]:
        """Return (score, success). Raises EnvironmentFailure; JudgeFailure for an episode without an environment."""
        env = workflow_task.gym_env
        if env is None:
            raise JudgeFailure(
                "EnvServiceJudge needs the episode's environment, and the episode has none: set "
                "task_reader.type: env_service, or environment.use"
            )
        # With `sparse`: True, an environment may round partial credit to 0 or 1.
        score = float(env.evaluate(workflow_task.episode_uuid, params={"sparse": False}))
        return score, score >= SUCCESS
