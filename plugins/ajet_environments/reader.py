"""The task reader `env_service`: an environment service lists task ids, and creates an episode from an id.

Invariant: a split has the service's tasks in the service's order. An unreachable service is one UserError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.environment.services import EnvService
from ajet.schema.commands import format_command
from ajet.schema.errors import EnvironmentFailure, TaskError
from ajet.schema.task import Task
from ajet.task_reader.contract import TaskSplit
from ajet_environments.services.reachable import advise_start

if TYPE_CHECKING:
    from ajet.config import Experiment

KEY = "ajet.task_reader.env_service"


class EnvServiceReader:
    """Reads tasks from an environment service. `workflow_task.gym_env` later runs the episode of a task."""

    judge = None

    def __init__(self, experiment: Experiment) -> None:
        section = experiment.ajet.task_reader.env_service
        self._service = EnvService(section.env_url, section.env_type)
        self._splits: dict[TaskSplit, str | None] = {
            "train": section.training_split,
            "validation": section.validation_split,
        }

    def has(self, split: TaskSplit) -> bool:
        """True if the YAML names this split."""
        return bool(self._splits[split])

    def tasks(self, split: TaskSplit) -> Sequence[Task]:
        """Request the task ids of a split from the service and return one `Task` per id. Raises TaskError."""
        name = self._splits[split]
        key = f"{KEY}.{'training' if split == 'train' else 'validation'}_split"
        if not name:
            raise TaskError(f"No split is set for the {split} tasks.", where=key)
        service = self._service
        try:
            task_ids = service.task_ids(name)
        except EnvironmentFailure as problem:
            raise TaskError(
                f"The tasks cannot be read from the environment service: {problem}",
                where=f"{KEY}.env_url ({service.url})",
                expected=f"an environment service at this address that has the environment {service.env_type!r}",
                do=f"{advise_start()}, and test it with `{format_command('env', 'check', service.url)}`",
            ) from problem
        if not task_ids:
            raise TaskError(
                f"The environment service lists no tasks in its split {name!r}.",
                where=f"{key}: {name}",
                expected=f"a split of {service.env_type!r} that {service.url} has",
            )
        env_type = service.env_type
        return [Task(main_query=f"{env_type} {task_id}", task_id=task_id, env_type=env_type) for task_id in task_ids]
