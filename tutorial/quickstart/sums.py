"""The tasks: sums of two numbers from 1 to 20; 32 problems are held out, and never trained on."""

import random

from ajet import Task

HELD_OUT = 32


class Sums:
    """A task reader: any class with `tasks(split)`."""

    judge = None

    def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
        pairs = [(a, b) for a in range(1, 21) for b in range(1, 21)]
        random.Random(config.ajet.seed).shuffle(pairs)
        self._pairs = {"validation": pairs[:HELD_OUT], "train": pairs[HELD_OUT:]}

    def tasks(self, split: str) -> list[Task]:
        return [
            Task(task_id=f"{a}+{b}", main_query=f"What is {a} + {b}?", metadata={"answer": a + b})
            for a, b in self._pairs[split]
        ]
