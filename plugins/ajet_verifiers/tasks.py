"""VerifiersTasks: the tasks of a taskset, as a task reader (`task_reader.type`).

Invariant: a task is an index in the taskset's order; held-out tasks are the first ones and never trained on.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from ajet.schema.errors import TaskError
from ajet.schema.task import Task
from ajet_command.environment import select_inherited
from ajet_command.settings import get_base_folder
from ajet_verifiers.settings import CLEARED, VerifiersSettings

LIMIT_S = 600.0
"""Timeout for listing tasks; a taskset may download data first."""


class VerifiersTasks:
    """Reads a taskset; configured by `task_reader.type: ajet_verifiers.tasks->VerifiersTasks`."""

    def __init__(self, config: Any) -> None:
        """Read the section `verifiers`. Tasks are listed at the first request."""
        self._settings, self._config = VerifiersSettings.read(config), config
        self._rows: list[dict[str, Any]] = []

    def has(self, split: str) -> bool:
        """True for training, and for validation with held-out tasks."""
        return split == "train" or self._settings.validation > 0

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split.

        Raises:
            TaskError: the tasks cannot be listed.
            UserError: the taskset's environment cannot be created.
        """
        self._rows = self._rows or self._list_rows()
        held_out = self._settings.validation
        rows = self._rows[held_out:] if split == "train" else self._rows[:held_out]
        return [
            Task(
                task_id=f"{self._settings.taskset}-{row['index']}",
                main_query=row["prompt"],
                metadata={"index": row["index"], "id": row["id"]},
            )
            for row in rows
        ]

    def _list_rows(self) -> list[dict[str, Any]]:
        """List index, id and prompt of all needed tasks by a process of the taskset's environment. Raises TaskError."""
        settings, base = self._settings, get_base_folder(self._config)
        python = settings.as_command(self._config).venv(base)
        count = str(settings.train + settings.validation)
        # The first word is the placeholder of the environment's Python.
        _, *command = [*settings.build_command("tasks", base), "--count", count]
        merged = {**select_inherited(os.environ, settings.variables), **CLEARED, **settings.variables}
        environment = {name: value for name, value in merged.items() if value is not None}
        try:
            completed = subprocess.run(
                [str(python), *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT_S,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            raise self._make_error(f"listing did not finish within {LIMIT_S:.0f} s") from None
        except (OSError, ValueError) as error:  # a setting that no argument can hold
            raise self._make_error(str(error)) from None
        if completed.returncode:
            raise self._make_error("\n".join(completed.stderr.strip().splitlines()[-8:]))
        return [json.loads(line) for line in completed.stdout.splitlines()]

    def _make_error(self, why: str) -> TaskError:
        """Return the error for tasks that cannot be listed; `why` is shown to the user."""
        return TaskError(
            f"The tasks of the taskset {self._settings.taskset} cannot be listed.",
            where="verifiers.taskset",
            expected="the id of an installed taskset, or a module in the YAML's folder",
            do=why,
        )
