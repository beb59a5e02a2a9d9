"""The judge: 1 for the right number in the box, 0 for anything else. Why not a little for a box with a wrong number in
it? A model soon learns to print empty boxes for it."""

import re

from ajet import WorkflowOutput, WorkflowTask
from ajet.task_judge import BaseJudge


class RightAnswer(BaseJudge):
    """A plain function `(task, output)` would do, too; a class can hold what is costly to make."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput):
        """The reward, and whether the task is solved. None would be: cannot be decided."""
        box = re.search(r"\\boxed\{([^}]*)\}", workflow_output.metadata["final_answer"])
        good = box is not None and box.group(1).strip() == workflow_task.task.metadata["answer"]
        return float(good), good
