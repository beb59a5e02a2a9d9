"""Where tasks come from: JSON lines, data sets, reasoning-gym, numbers, or a reader of the user's.

In: the experiment. Out: `Task`s by split, in a repeatable order, and, for sources that bring one, a judge. `TaskOrder`
says which of them stands at which position of training. Invariant: every row becomes exactly one task with an id of its
own, or an error that names the row, or is left out, counted and said; nothing collapses and nothing is lost silently.
"""

from ajet.task_reader.contract import TaskReader, TaskSplit
from ajet.task_reader.order import TaskOrder
from ajet.task_reader.registry import OpenedReader, count_local_tasks, open_reader

__all__ = ["OpenedReader", "TaskOrder", "TaskReader", "TaskSplit", "count_local_tasks", "open_reader"]
