"""Reads tasks from JSON lines, data sets, benchmarks, reasoning-gym, seeds, or a user's reader.

Input: the experiment. Output: `Task`s by split in a repeatable order, and for some sources a judge. `TaskOrder` maps
training positions to tasks. Invariant: every row becomes exactly one task with a unique id, raises an error that names
the row, or is skipped, counted and logged.
"""

from ajet.task_reader.contract import TaskReader, TaskSplit
from ajet.task_reader.order import TaskOrder
from ajet.task_reader.registry import OpenedReader, count_local_tasks, open_reader

__all__ = ["OpenedReader", "TaskOrder", "TaskReader", "TaskSplit", "count_local_tasks", "open_reader"]
