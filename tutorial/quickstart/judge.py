"""The judge: 1 for the right date after the right lookup, 0 for anything else."""

from ajet import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge


class RightDate(BaseJudge):
    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple[float, bool]:
        found = workflow_output.metadata
        right = found["looked_up"] and workflow_task.task.metadata["arrives"] in found["final_answer"]
        return float(right), right
