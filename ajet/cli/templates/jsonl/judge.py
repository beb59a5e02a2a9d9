"""The judge: reward 1 for the right number in the box, 0 for anything else.

A box with a wrong number gets no partial reward: a model would soon learn to print empty boxes.
"""

import re

from ajet import WorkflowOutput, WorkflowTask
from ajet.task_judge import BaseJudge


class RightAnswer(BaseJudge):
    """A plain function `(task, output)` works, too. A class can hold objects that are costly to create."""

    def compute_reward(self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput):
        """Return (reward, success), or None if the answer cannot be judged."""
        box = re.search(r"\\boxed\{([^}]*)\}", workflow_output.metadata["final_answer"])
        good = box is not None and box.group(1).strip() == workflow_task.task.metadata["answer"]
        return float(good), good
