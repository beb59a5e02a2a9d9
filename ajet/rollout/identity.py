"""Identity: which episode one is, before there is one.

Invariant: names are made from the place in the run alone, so that playing a step again writes no second episode.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from ajet.schema.episode import Split
from ajet.schema.task import Task, WorkflowTask

NAMESPACE = uuid.UUID("6f1f2d3c-8a35-5b0e-9c47-1f7a5c0e7d11")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which episode it is."""

    run: str
    split: Split
    step: int
    task: Task
    order: int
    index: int
    """The task's place within its play."""
    repeat: int

    @property
    def uuid(self) -> str:
        """An id that is the same for the same attempt of the same run, so that playing a step again writes no second
        episode."""
        return uuid.uuid5(NAMESPACE, f"{self._of_group()}/{self.repeat}").hex

    @property
    def group(self) -> str:
        """The group's id, the same for all its attempts and for those that are played again."""
        return uuid.uuid5(NAMESPACE, self._of_group()).hex

    def _of_group(self) -> str:
        return f"{self.run}/{self.split}/{self.step}/{self.order}"


def workflow_task(identity: Identity) -> WorkflowTask:
    """The task as `execute` and the judge receive it."""
    task = identity.task
    return WorkflowTask(
        task=task,
        episode_uuid=identity.uuid,
        task_id=task.task_id,
        env_type=task.env_type,
        task_batch_index=identity.index,
        task_thread_index=identity.repeat,
        task_tag=f"T{task.task_id}#R{identity.repeat}",
        step=identity.step,
    )
