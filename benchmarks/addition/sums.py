"""The tasks: sums of two numbers from 1 to 20; 32 problems are held out, and trained on in neither order of their
numbers (4 + 9 tells what 9 + 4 is)."""

import random

from ajet import Task

HELD_OUT = 32


class Sums:
    """A task reader: any class with `tasks(split)`."""

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        draw = random.Random(0)  # the same problems whatever the run's seed, so that runs can be compared
        held_out = [(draw.randint(1, 20), draw.randint(1, 20)) for _ in range(HELD_OUT)]
        kept_back = {frozenset(pair) for pair in held_out}
        others = [(a, b) for a in range(1, 21) for b in range(1, 21) if frozenset((a, b)) not in kept_back]
        self._pairs = {"validation": held_out, "train": others}

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(task_id=f"{a}+{b}", main_query=f"What is {a} + {b}?", metadata={"answer": a + b})
            for a, b in self._pairs[split]
        ]
