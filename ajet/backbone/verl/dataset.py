"""The data set that verl reads: our tasks in our order, one row a task.

Invariant: row i is task i of the order that every backbone trains in, over all epochs, so verl's own loader only
counts; what it saves in a checkpoint, how many rows were taken, is where the order continues.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from ajet.backbone.verl.carried import KEY, restored
from ajet.task_reader import TaskOrder, open_reader
from ajet.task_reader.overlong import within_prompt_length

ENDLESS = 1 << 40
"""Rows for training: as many as anybody asks for."""


class TaskRows(Dataset):
    """`data.custom_cls`. `data_files` names the split: train or validation."""

    def __init__(self, data_files: str, tokenizer: Any, processor: Any, config: Any, max_samples: int = -1) -> None:
        experiment = restored(config[KEY])
        settings = experiment.ajet
        self.split = "validation" if data_files == "validation" else "train"
        reader = open_reader(experiment)
        self._order: TaskOrder | None = None
        if self.split == "train" or reader.has("validation"):
            tasks = within_prompt_length(reader.tasks(self.split), settings.data, tokenizer)  # type: ignore[arg-type]
            shuffle = settings.data.shuffle and self.split == "train"
            self._order = TaskOrder(tasks, seed=settings.seed, shuffle=shuffle)

    def __len__(self) -> int:
        if self._order is None:
            return 0
        return ENDLESS if self.split == "train" else len(self._order)

    def __getitem__(self, order: int) -> dict[str, Any]:
        if self._order is None:
            raise IndexError(order)
        task = self._order.task(order)
        return {
            "raw_prompt": [{"role": "user", "content": task.main_query}],  # verl counts by it
            "index": order,
            "split": self.split,
            "task": task.model_dump(),
            "dummy": torch.zeros(1, dtype=torch.uint8),  # a batch needs a tensor
        }
