"""The reward: 1 for the right number in the box, 0 for anything else.

A box with a wrong number gets no partial reward: a model would soon learn to print empty boxes.
"""

import re


def right(task, output):
    """Return (reward, success). `task.metadata` is the row of the task file, `output.metadata` the workflow's
    output.
    """
    box = re.search(r"\\boxed\{([^}]*)\}", output.metadata["final_answer"])
    good = box is not None and box.group(1).strip() == task.metadata["answer"]
    return float(good), good
