"""What one token's loss counts (DESIGN decision 8), and which samples make which optimizer step.

The loss of a batch is the sum over trained tokens of weight * l_t. With T_e the trained tokens of episode e over all
its timelines, E the number of episodes and L_max the longest reply allowed:
    token         sum of l_t / sum of T_e               (DAPO, arXiv 2503.14476, section 3.3)
    sequence      mean over e of sum(l_t) / T_e         (GRPO, arXiv 2402.03300, section 4.1.1)
    sequence-sum  mean over e of sum(l_t) / L_max       (Dr.GRPO, arXiv 2503.20783, section 3.2)
Weights belong to episodes, so splitting a timeline changes neither loss nor gradient. Optimizer steps are counted in
groups and episodes, never in rows: every sample is in exactly one mini batch, and a group stays complete wherever there
are groups enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ajet.schema.batch import Sample

Aggregation = Literal["token", "sequence", "sequence-sum"]


def compute_token_weights(aggregation: Aggregation, lengths_E: Sequence[int], max_length: int) -> list[float]:
    """[E] the weight of each token of each episode; `lengths_E` are the T_e of all episodes that count, those
    without a token or without a signal included."""
    episodes, tokens = len(lengths_E), sum(lengths_E)
    if aggregation == "token":
        return [1.0 / max(tokens, 1)] * episodes
    if aggregation == "sequence":
        return [1.0 / (episodes * max(length, 1)) for length in lengths_E]
    return [1.0 / (max(episodes, 1) * max_length)] * episodes


def compute_mini_batch_scale(aggregation: Aggregation, batch: Sequence[Sample], part: Sequence[Sample]) -> float:
    """What the weights of `part` are multiplied by when it alone makes an optimizer step: then they are decision 8's
    over the part, as they were over the whole."""
    if aggregation == "token":
        return _count_tokens(batch) / max(_count_tokens(part), 1)
    return _count_episodes(batch) / max(_count_episodes(part), 1)


def _count_tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.timeline.sampled for sample in samples)


def _count_episodes(samples: Sequence[Sample]) -> int:
    return len({sample.episode for sample in samples})


def split_mini_batches(samples: Sequence[Sample], count: int) -> list[list[int]]:
    """Indices of the samples of each optimizer step: whole groups (they share prefixes), or whole episodes when
    there are fewer groups than steps; in order, of nearly equal numbers."""
    units: dict[Any, list[int]] = {}
    for index, sample in enumerate(samples):
        units.setdefault(sample.group, []).append(index)
    if len(units) < count:
        units = {}
        for index, sample in enumerate(samples):
            units.setdefault(sample.episode, []).append(index)
    members = list(units.values())
    count = min(count, len(members))
    edges = [round(part * len(members) / count) for part in range(count + 1)] if count else []
    return [sum(members[start:stop], []) for start, stop in zip(edges, edges[1:], strict=False)]
