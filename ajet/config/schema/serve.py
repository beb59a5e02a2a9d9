"""`serve`: what `ajet serve` does with what its clients bring."""

from __future__ import annotations

from typing import Literal

from ajet.config.schema.base import Section, key


class Serve(Section):
    """When a step is made of what clients bring, and how much of one task they may play at once."""

    batch_by: Literal["groups", "tasks", "episodes"] = key(
        "groups",
        "What `data.train_batch_size` counts: complete groups; different tasks with a complete group (further groups "
        "of these are in the same step); or scored episodes in complete groups, `train_batch_size * num_repeat` of "
        "them, however many each group has.",
    )
    batch_seconds: float | None = key(
        None,
        "So long after the first group that can be trained on, a step is made of those that are there; null waits for "
        "the whole batch.",
        gt=0,
    )
    max_per_task: int | None = key(
        None,
        "Episodes of one task that may be under way at once; who asks for one more gets another task, or is told to "
        "come back (429, `task_busy`) where it named this one. Null: `rollout.max_env_worker` alone bounds them.",
        ge=1,
    )
