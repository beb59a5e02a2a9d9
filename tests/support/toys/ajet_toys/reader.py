"""Sums, as many as the YAML says under a name of its own."""

from __future__ import annotations

from ajet import Task


class ToyReader:
    judge = None

    def __init__(self, config):
        self._count = config.toy_sums.count

    def tasks(self, split):
        return [Task(task_id=str(number), main_query=f"What is {number} + 2?") for number in range(self._count)]
