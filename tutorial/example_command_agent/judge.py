"""The judge: 1 for the right price in the box, 0 for anything else."""

from ajet import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge
from ajet.task_judge.extraction import boxed_answer


class RightPrice(BaseJudge):
    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple[float, bool]:
        answer = boxed_answer(workflow_output.metadata["final_answer"])
        right = answer is not None and answer.strip() == str(workflow_task.task.metadata["answer"])
        return float(right), right
