"""The task reader `harbor`: task folders of Harbor.

Invariant: a task's id is the name of its folder, and the order is that of the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.config.schema.base import Section, key, section
from ajet.config.schema.extended import PluginKeys
from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet.task_reader.contract import TaskSplit, require_place
from ajet_containers.harbor.task import HarborTask, is_task_folder

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.task_reader.harbor"


class HarborFolders(Section):
    """Folders of Harbor tasks."""

    path: str | None = key(None, "A task folder, or a folder of task folders, for training.", kind="path")
    validation: str | None = key(None, "The same for validation; null: no held-out tasks.", kind="path")


class HarborKeys(PluginKeys):
    """The section of the reader `harbor`."""

    harbor: HarborFolders = section(
        HarborFolders, "Task folders of Harbor, schema 1.4.", when=("task_reader.type", "harbor")
    )


class HarborReader:
    """Reads task folders; `metadata.folder` is the task's folder."""

    judge = None

    def __init__(self, experiment: Experiment) -> None:
        folders = HarborKeys.of(experiment.ajet).harbor
        self._base = experiment.base
        self._paths: dict[TaskSplit, str | None] = {"train": folders.path, "validation": folders.validation}

    def has(self, split: TaskSplit) -> bool:
        """True if the YAML names a folder for this split."""
        return bool(self._paths[split])

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Return the tasks of a split, sorted by folder name.

        Raises:
            TaskError: no folder is set, it contains no tasks, or a task cannot be used.
        """
        key_name = f"{KEY}.{'path' if split == 'train' else 'validation'}"
        path = self._paths[split]
        if not path:
            raise TaskError(f"No folder is set for the {split} tasks.", where=key_name)
        top = require_place(path, self._base, key=key_name, what="folder of Harbor tasks").absolute()
        folders = [top] if is_task_folder(top) else sorted(filter(is_task_folder, top.iterdir()))
        if not folders:
            raise TaskError(f"The folder {top} has no tasks.", where=key_name, expected="folders with a task.toml")
        harbor_tasks = [HarborTask.read(folder) for folder in folders]
        return [
            Task(
                main_query=harbor_task.instruction,
                task_id=harbor_task.folder.name,
                metadata={"folder": str(harbor_task.folder)},
            )
            for harbor_task in harbor_tasks
        ]
