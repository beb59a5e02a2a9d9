"""The sections `data` and `context_tracker`: lengths, batch size, and how model calls become samples."""

from __future__ import annotations

import math
from typing import Literal

from ajet.config.schema.base import SERVE, Section, key, section


class CurriculumConfig(Section):
    """Selects the training tasks of an epoch by their earlier success rate."""

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

    def count_epoch_tasks(self, tasks: int) -> int:
        """Return the number of tasks in an epoch. `tasks`: the number of all tasks."""
        return max(1, math.ceil(self.share * tasks)) if self.prefer is not None else tasks


class DataConfig(Section):
    """Token limits of samples, and the batch size."""

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
    curriculum: CurriculumConfig = section(
        CurriculumConfig, "Which training tasks an epoch has, by how often they were solved before."
    )
    on_overlong: Literal["filter", "error"] = key(
        "filter", "A task whose prompt exceeds `max_prompt_length`: left out and counted, or an error."
    )


class TimelineMergingConfig(Section):
    """Conditions for merging two calls into a timeline."""

    ignore_tools: bool = key(True, "Calls may be merged although their tool lists differ.")


class ContextTrackerConfig(Section):
    """How model calls become samples to train on."""

    timeline_merging_policy: TimelineMergingConfig = section(
        TimelineMergingConfig, "When two calls belong to one timeline."
    )
    keep_thinking: bool = key(
        False, "Extend a conversation verbatim where the template would strip earlier thinking, instead of forking."
    )
    escape_controls: Literal["tool_results", "all", "none"] = key(
        "tool_results",
        "Whose content is shown to the model as plain text where it spells a control token of the chat template: what "
        "tools answered; everything that the model did not say; nothing.",
    )
    log_tool_format_check: bool = key(False, "Log every reply whose tool call has the wrong form.", training=False)
    log_tool_format_error_detail: bool = key(False, "Log those replies in full.", training=False)
    detect_timeline_snap: bool = key(
        False, "Warn when a conversation breaks off and starts anew within an episode.", training=False
    )
