"""Sampling and repeats of a split's tasks.

Invariant: training and debug draw as the policy is defined (`rollout.temperature`, `top_p`, `top_k`); validation
draws greedily unless `val_kwargs.do_sample`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.engine.contract import Sampling

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.schema.episode import Split


def split_sampling(settings: AjetConfig, split: Split) -> Sampling:
    """Return the default sampling of a split's episodes."""
    rollout = settings.rollout
    longest = rollout.max_response_length_in_one_turn
    if split == "validation":
        val = rollout.val_kwargs
        return Sampling(longest, val.temperature if val.do_sample else 0.0, val.top_p, val.top_k)
    return Sampling(longest, rollout.temperature, rollout.top_p, rollout.top_k)


def split_repeats(settings: AjetConfig, split: Split) -> int:
    """Return how often a split's tasks are played, or the number of recorded replies to each."""
    if settings.sft.objective is not None and split == "train":
        return settings.sft.replies
    return settings.validation_repeats if split == "validation" else settings.rollout.num_repeat
