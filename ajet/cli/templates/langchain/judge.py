"""The reward: 1 for the right number in the box, 0 for anything else. Why not a little for a box with a wrong number
in it? A model soon learns to print empty boxes for it."""

import re


def right(task, output):
    """`task.metadata` is the line of the task file, `output.metadata` what the workflow returned."""
    box = re.search(r"\\boxed\{([^}]*)\}", output.metadata["final_answer"])
    good = box is not None and box.group(1).strip() == task.metadata["answer"]
    return float(good), good
