"""Token weights (DESIGN decision 8), and the split of samples into optimizer steps.

The loss of a batch is the sum over trained tokens of weight * l_t. With T_e the trained tokens of episode e over all
its timelines, E the number of episodes and L_max the longest reply allowed:

    token         sum of l_t / sum of T_e               (DAPO, arXiv 2503.14476, section 3.3)
    sequence      mean over e of sum(l_t) / T_e         (GRPO, arXiv 2402.03300, section 4.1.1)
    sequence-sum  mean over e of sum(l_t) / L_max       (Dr.GRPO, arXiv 2503.20783, section 3.2)

Weights belong to episodes, so splitting a timeline changes neither loss nor gradient. Optimizer steps are counted in
groups and episodes, never in rows: every sample is in exactly one mini batch, and a group stays complete if there are
enough groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ajet.schema.batch import Sample

Aggregation = Literal["token", "sequence", "sequence-sum"]


def compute_token_weights(aggregation: Aggregation, lengths_E: Sequence[int], max_length: int) -> list[float]:
    """Return the loss weight of a token of each episode, shape [E].

    "token" averages over all tokens, "sequence" over episodes and then their tokens, "sequence-sum" sums an episode's
    tokens and divides by `max_length`.

    Args:
        lengths_E: Number of trained tokens of all counted episodes, also of those without tokens or without a signal.
        max_length: Largest number of reply tokens allowed, read for "sequence-sum" only.
    """
    episodes, tokens = len(lengths_E), sum(lengths_E)
    if aggregation == "token":
        return [1.0 / max(tokens, 1)] * episodes
    if aggregation == "sequence":
        return [1.0 / (episodes * max(length, 1)) for length in lengths_E]
    return [1.0 / (max(episodes, 1) * max_length)] * episodes


def compute_mini_batch_scale(aggregation: Aggregation, batch: Sequence[Sample], part: Sequence[Sample]) -> float:
    """Return the factor on token weights when the samples of `part` alone make an optimizer step.

    The scaled weights average over the part in the same way as the original weights do over the batch.
    """
    if aggregation == "token":
        return _count_tokens(batch) / max(_count_tokens(part), 1)
    return _count_episodes(batch) / max(_count_episodes(part), 1)


def _count_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.timeline.sampled for sample in samples)


def _count_episodes(samples: Sequence[Sample]) -> int:
    return len({sample.episode for sample in samples})


def split_mini_batches(samples: Sequence[Sample], count: int) -> list[list[int]]:
    """Return the sample indices of each optimizer step, in order and of nearly equal size.

    The units are complete groups, because their samples share prefixes, or complete episodes if there are fewer groups
    than steps.
    """
    units: dict[Any, list[int]] = {}
    for index, sample in enumerate(samples):
        units.setdefault(sample.group, []).append(index)
    if len(units) < count:
        units = {}
        for index, sample in enumerate(samples):
            units.setdefault(sample.episode, []).append(index)
    unit_list = list(units.values())
    count = min(count, len(unit_list))
    edges = [round(number * len(unit_list) / count) for number in range(count + 1)] if count else []
    return [sum(unit_list[start:stop], []) for start, stop in zip(edges, edges[1:], strict=False)]
