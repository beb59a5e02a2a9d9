"""The judge: 1 for the right date after the right lookup, 0 for anything else."""

import re

from ajet import WorkflowOutput, WorkflowTask
from ajet.task_judge.base_judge import BaseJudge


class RightDate(BaseJudge):
    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput) -> tuple[float, bool]:
        found = workflow_output.metadata
        date = rf"\b{workflow_task.task.metadata['arrives']}\b"  # 1 May is not in "11 May"
        right = found["looked_up"] and re.search(date, found["final_answer"]) is not None
        return float(right), right
