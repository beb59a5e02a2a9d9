"""The judge: 1 for the right number in a box, 0 for anything else."""

from ajet import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge
from ajet.task_judge.extraction import boxed_answer


class BoxedSum(BaseJudge):
    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple[float, bool]:
        answer = boxed_answer(workflow_output.metadata["final_answer"] or "")
        right = answer is not None and answer.strip() == str(workflow_task.task.metadata["answer"])
        return float(right), right
