"""EnvServiceJudge: the environment that an episode was played in says how it went.

Invariant: the reward is the environment's own score, as it is. A score that does not come is the environment's failure
and the episode's, never a 0.
"""

from __future__ import annotations

from ajet.schema.errors import JudgeFailure
from ajet.schema.task import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge

SUCCESS = 1.0


class EnvServiceJudge(BaseJudge):
    """Asks the service's /evaluate about the episode's instance; a score of 1 or more is a success."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple[float, bool]:
        """Raises EnvironmentFailure; JudgeFailure for an episode without an environment."""
        env = workflow_task.gym_env
        if env is None:
            raise JudgeFailure(
                "EnvServiceJudge asks the environment that the episode was played in, and it was played in none: set "
                "task_reader.type: env_service, or environment.use"
            )
        score = float(env.evaluate(workflow_task.episode_uuid, params={"sparse": False}))
        return score, score >= SUCCESS
