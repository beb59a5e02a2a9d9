"""The data set that verl loads: numbered rows without a task for training, and the validation tasks.

A training row is a ticket, the trainer's claim on one group. Invariant: a ticket holds only its number, so verl's
loader counts from 0 in each launch. The run's own process assigns the task when the ticket is used
(plugins/ajet_ray/tickets.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset

from ajet.task_reader import open_reader
from ajet.task_reader.overlong import drop_overlong
from ajet_ray.shipped_experiment import KEY, restore_experiment

if TYPE_CHECKING:
    from ajet.schema.task import Task

ENDLESS = 1 << 40
"""Number of tickets, larger than any run needs."""


class TaskRows(Dataset):
    """The data set class that verl creates for each split (`data.custom_cls`).

    Args:
        data_files: the split, train or validation, in the place of verl's file names.
        config: verl's `data` section, which contains the packed experiment.
    """

    def __init__(self, data_files: str, tokenizer: Any, processor: Any, config: Any, max_samples: int = -1) -> None:
        """Open the split of `data_files`.

        For training the rows are tickets: numbers by which the rollout leases the next task. For validation they are
        the tasks that fit the prompt limit.

        verl also passes `processor` and `max_samples`, which are not needed.
        """
        self._tickets = data_files != "validation"
        self._tasks: Sequence[Task] = ()
        if not self._tickets:
            experiment = restore_experiment(config[KEY])
            reader = open_reader(experiment)
            if reader.has("validation"):
                self._tasks = drop_overlong(reader.tasks("validation"), experiment.ajet.data, tokenizer)

    def __len__(self) -> int:
        """Return the number of rows: practically endless for tickets."""
        return ENDLESS if self._tickets else len(self._tasks)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row for verl: a ticket with its number, or a validation task."""
        return {
            "raw_prompt": [{"role": "user", "content": ""}],  # verl measures the length by this column
            "index": index,
            "split": "train" if self._tickets else "validation",
            "task": None if self._tickets else self._tasks[index].model_dump(),
            "dummy": torch.zeros(1, dtype=torch.uint8),  # a batch needs a tensor
        }
