"""The sections `data` and `context_tracker`: lengths, batch size, and how model calls become samples."""

from __future__ import annotations

import math
from typing import Literal

from ajet.config.schema.base import SERVE, Section, key, section


class CurriculumConfig(Section):
    """Selects the training tasks of an epoch by their earlier success rate."""

    prefer: Literal["uncertain", "easy", "hard"] | None = key(
        None,
        "uncertain: tasks that about half of the attempts solve; easy, hard: tasks that most or few attempts "
        "solve; null: every task once per epoch.",
        needs=dict.fromkeys(("uncertain", "easy", "hard"), "grades"),
    )
    share: float = key(
        0.5,
        "Share of all tasks that one epoch draws.",
        gt=0,
        le=1,
        when=("data.curriculum.prefer", "uncertain", "easy", "hard"),
    )
    floor: float = key(
        0.1,
        "Probability of the least preferred task, relative to the most preferred one.",
        gt=0,
        le=1,
        when=("data.curriculum.prefer", "uncertain", "easy", "hard"),
    )

    def count_epoch_tasks(self, tasks: int) -> int:
        """Return the number of tasks in an epoch, given the number of all training tasks."""
        return max(1, math.ceil(self.share * tasks)) if self.prefer is not None else tasks


class DataConfig(Section):
    """Token limits of samples, and the batch size."""

    max_prompt_length: int = key(3000, "Largest number of tokens before the first trained token.", ge=1)
    max_response_length: int = key(15000, "Largest number of tokens after the prompt.", ge=1)
    train_batch_size: int = key(
        32,
        "Number of tasks of one training step; each has `rollout.num_repeat` attempts.",
        ge=1,
    )
    shuffle: bool = key(
        True,
        "Shuffle the training tasks anew in each epoch, by `seed`.",
        idle={SERVE: None},
    )
    curriculum: CurriculumConfig = section(
        CurriculumConfig, "Which training tasks an epoch contains, by how often they were solved before."
    )
    on_overlong: Literal["filter", "error"] = key(
        "filter",
        "What to do with a task whose prompt exceeds `max_prompt_length`: leave it out and count it, or end "
        "with an error.",
    )


class TimelineMergingConfig(Section):
    """Conditions for merging two calls into a timeline."""

    ignore_tools: bool = key(True, "Merge calls into one sequence although their tool lists differ.")


class ContextTrackerConfig(Section):
    """How model calls become samples to train on."""

    timeline_merging_policy: TimelineMergingConfig = section(
        TimelineMergingConfig, "Rules for joining two calls into one timeline (token sequence)."
    )
    keep_thinking: bool = key(
        False,
        "Continue a conversation token by token where the chat template would remove earlier thinking. "
        "Otherwise the call begins a new sequence.",
    )
    escape_controls: Literal["tool_results", "all", "none"] = key(
        "tool_results",
        "Content in which text that looks like a control token of the chat template is passed to the model as "
        "plain text: results of tools; everything that the model did not write; nothing.",
    )
    log_tool_format_check: bool = key(False, "Log every reply whose tool call has an invalid form.", training=False)
    log_tool_format_error_detail: bool = key(False, "Log those replies completely.", training=False)
    detect_timeline_snap: bool = key(
        False, "Warn if a conversation breaks off and begins anew within an episode.", training=False
    )
