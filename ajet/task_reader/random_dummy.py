"""Tasks with only a number, for worlds generated from a seed (a frozen lake, a game).

Invariant: the numbers of both splits are distinct and depend only on the seed; a larger size appends numbers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.schema.task import Task
from ajet.task_reader.contract import TaskSplit

if TYPE_CHECKING:
    from ajet.config import Experiment

HALF = 2**30


class RandomDummyReader:
    """`random_dummy`: `metadata["random_number"]` in [0, 2**30) for training, [2**30, 2**31) for validation."""

    judge = None

    def __init__(self, experiment: Experiment) -> None:
        section = experiment.ajet.task_reader.random_dummy
        self._sizes = {"train": section.size, "validation": section.validation_size}
        self._seed = experiment.ajet.seed

    def has(self, split: TaskSplit) -> bool:
        """Return True if the split has tasks."""
        return self._sizes[split] > 0

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return the configured number of tasks with distinct random numbers, the same on each call."""
        rng = random.Random(f"{self._seed}/{split}")
        numbers: dict[int, None] = {}  # a set in the order of drawing
        while len(numbers) < self._sizes[split]:
            numbers[rng.randrange(HALF) + (HALF if split == "validation" else 0)] = None
        return [
            Task(main_query=f"Random task {number}", task_id=f"random-{number}", metadata={"random_number": number})
            for number in numbers
        ]
