"""Builds training batches from given replies (`ajet sft`), with a weight per token.

Invariants: every token to be learned is in exactly one sample, whatever the score of its reply. All other tokens are
already counted by reason (`Episode.untrained`), so given = trained + the sum over reasons. No result depends on a
reward: replies were selected beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ajet.algorithm.losses.dpo import DpoLoss
from ajet.algorithm.token_credit import gather_tokens
from ajet.algorithm.weights import compute_token_weights
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.episode import Group, Outcome, list_episodes

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.schema.episode import Episode

Scores = Callable[[list[Sample]], tuple[list[Floats], list[Floats]]]
"""Map samples to their [T] logprobs under the policy and under the reference model."""
TEMPERATURE = 1.0
"""Training temperature of the replies, equal to the sampling temperature 1 at which a trained model is used."""


def build_likelihood_batch(groups: Sequence[Group], config: AjetConfig, *, step: int) -> TrainingBatch:
    """Build a batch of all given replies, weighed by `sft.loss_aggregation`."""
    episodes = list_episodes(groups)
    lengths = [_count_trained_tokens(episode) for episode in episodes]
    weights = compute_token_weights(config.sft.loss_aggregation, lengths, max_length=1)
    batch = _make_batch(step)
    group_of_episode = {id(episode): index for index, group in enumerate(groups) for episode in group.episodes}
    for episode, weight in zip(episodes, weights, strict=True):
        batch.samples += _make_samples(episode, group_of_episode[id(episode)], 1.0, weight)
        batch.outcomes[episode.uuid] = Outcome(step, 1.0)
    return batch


def build_pairs_batch(groups: Sequence[Group], config: AjetConfig, scores: Scores, *, step: int) -> TrainingBatch:
    """Build a batch of preference pairs whose gradient is that of the mean DPO loss.

    Each trained token of a pair gets the slope of the pair's loss as its advantage, with the opposite sign in the
    rejected reply.

    Args:
        groups: One pair each; the first episode is the chosen reply.
        scores: Returns the samples' [T] logprobs under the policy and under the reference model.
    """
    share = 1 / len(groups)
    sides = [
        [_make_samples(episode, index, 0.0, share) for episode in group.episodes] for index, group in enumerate(groups)
    ]
    samples = [sample for pair in sides for side in pair for sample in side]
    policy, reference = scores(samples)
    gaps = {
        id(sample): policy_logprobs.astype(np.float64) - reference_logprobs
        for sample, policy_logprobs, reference_logprobs in zip(samples, policy, reference, strict=True)
    }
    gap_sums = {id(sample): float(gaps[id(sample)][sample.timeline.mask].sum()) for sample in samples}
    chosen_gaps, rejected_gaps = (
        np.array([sum(gap_sums[id(sample)] for sample in pair[side]) for pair in sides], np.float64) for side in (0, 1)
    )
    pairs = DpoLoss(config.sft.beta, config.sft.label_smoothing)(chosen_gaps, rejected_gaps)
    batch = _make_batch(step)
    for group, pair, slope in zip(groups, sides, pairs.slope, strict=True):
        for episode, side, sign in zip(group.episodes, pair, (1.0, -1.0), strict=True):
            for sample in side:
                sample.advantages[:] = sign * slope
            batch.samples += side
            reference_gap = gather_tokens(side, [gaps[id(sample)] for sample in side])
            batch.outcomes[episode.uuid] = Outcome(step, float(sign * slope), reference_gap=reference_gap)
    batch.metrics |= {
        "loss": float(pairs.loss.mean()),
        "dpo/accuracy": float((pairs.margin > 0).mean()),
        "dpo/margin": float(pairs.margin.mean()),
        "dpo/chosen": float(config.sft.beta * chosen_gaps.mean()),
        "dpo/rejected": float(config.sft.beta * rejected_gaps.mean()),
    }
    return batch


def list_samples(groups: Sequence[Group]) -> list[Sample]:
    """Return all samples of the groups with weight 0, to be scored instead of trained."""
    return [
        sample
        for index, group in enumerate(groups)
        for episode in group.episodes
        for sample in _make_samples(episode, index, 1.0, 0.0)
    ]


def _make_batch(step: int) -> TrainingBatch:
    """Return an empty batch of written replies."""
    return TrainingBatch(step=step, samples=[], temperature=TEMPERATURE, written=True)


def _count_trained_tokens(episode: Episode) -> int:
    return sum(timeline.sampled for timeline in episode.timelines)


def _make_samples(episode: Episode, group: int, advantage: float, weight: float) -> list[Sample]:
    """Return a sample for each timeline of an episode with trained tokens.

    Args:
        group: Index of the episode's group.
        advantage: The advantage of all tokens.
        weight: The loss weight of each token.
    """
    return [
        Sample(timeline, episode.uuid, group, np.full(timeline.ids.size, advantage, np.float32), weight)
        for timeline in episode.timelines
        if timeline.sampled
    ]
