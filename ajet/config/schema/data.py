"""`data`: lengths, batch size, and what happens to a prompt that is too long."""

from __future__ import annotations

import math
from typing import Literal

from ajet.config.schema.base import SERVE, Section, key, section


class Curriculum(Section):
    """Which training tasks an epoch has, by how often they were solved before."""

    prefer: Literal["uncertain", "easy", "hard"] | None = key(
        None,
        "uncertain: tasks that about half of the attempts solve; easy, hard: those that most or few solve; null: every "
        "task once an epoch.",
        needs=dict.fromkeys(("uncertain", "easy", "hard"), "grades"),
    )
    share: float = key(
        0.5,
        "Of all tasks, how many an epoch draws.",
        gt=0,
        le=1,
        when=("data.curriculum.prefer", "uncertain", "easy", "hard"),
    )
    floor: float = key(
        0.1,
        "Chance of the least preferred task, measured in that of the most preferred one.",
        gt=0,
        le=1,
        when=("data.curriculum.prefer", "uncertain", "easy", "hard"),
    )

    def tasks_an_epoch(self, tasks: int) -> int:
        """The number of tasks of an epoch, of so many in all."""
        return max(1, math.ceil(self.share * tasks)) if self.prefer is not None else tasks


class Data(Section):
    """Lengths and batch size."""

    max_prompt_length: int = key(3000, "Tokens before the first trained token, at most.", ge=1)
    max_response_length: int = key(15000, "Tokens of a timeline after its prompt, at most.", ge=1)
    train_batch_size: int = key(
        32,
        "Tasks of one training step; each is played `rollout.num_repeat` times.",
        ge=1,
    )
    shuffle: bool = key(
        True,
        "Shuffle the training tasks, anew each epoch, by `seed`.",
        idle={SERVE: None},
    )
    curriculum: Curriculum = section(
        Curriculum, "Which training tasks an epoch has, by how often they were solved before."
    )
    on_overlong: Literal["filter", "error"] = key(
        "filter", "A task whose prompt exceeds `max_prompt_length`: left out and counted, or an error."
    )
