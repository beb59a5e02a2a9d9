"""The addition task's sums in three splits, for settings that are chosen: 32 are looked at, 200 by nothing but the end.

Invariant: no sum is in two splits in either order of its numbers; `validation` is the addition task's own. What is
trained on is 141 sums in place of the addition task's 341, so that its numbers are not those of the addition task.
"""

from __future__ import annotations

import random
import runpy
from pathlib import Path

from ajet import Task

TESTED = 200
SUMS = Path(__file__).parent / "addition" / "sums.py"


class ThreeSplits:
    """A task reader: `train`, `validation`, `test`."""

    def __init__(self, config: object) -> None:
        sums = runpy.run_path(str(SUMS))["Sums"](config)
        others = {task.task_id: task for task in sums.tasks("train")}
        pairs = sorted({tuple(sorted(map(int, name.split("+")))) for name in others})
        random.Random(0).shuffle(pairs)
        both = [[others[name] for name in dict.fromkeys((f"{a}+{b}", f"{b}+{a}"))] for a, b in pairs]
        tested: list[Task] = []
        while len(tested) < TESTED:
            tested += both.pop()
        trained = [task for tasks in both for task in tasks]
        self._tasks = {"validation": sums.tasks("validation"), "test": tested, "train": trained}

    def tasks(self, split: str) -> list[Task]:
        """Of one split."""
        return self._tasks[split]
