"""Groups of episodes to a training batch: who gets how much credit.

Invariants: baselines are over the scored episodes of a group, however many there are; a sampled token becomes part
of a sample, is in no timeline (`Episode.untrained`), or is counted in the `Outcome` of its episode, which itself does
not change. A group is left out as `zero_variance` only where its loss is exactly 0 (equal rewards, which may differ by
`equal_rewards`; no KL term): it still counts in the weights of the others. With `dynamic_sampling` (DAPO, arXiv
2503.14476, section 3.2) such groups do not belong to the batch at all, KL or not, and do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ajet.algorithm import grpo, reinforce_plus_plus, rloo
from ajet.algorithm.weights import token_weights
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.episode import Episode, Group, Outcome, episodes_of

if TYPE_CHECKING:
    from ajet.config import AjetConfig

Logprobs = Callable[[list[Sample]], tuple[list[Floats], list[Floats]]]
"""Samples to their [T] logprobs under the policy and under the reference model."""
Row = npt.NDArray[np.float64]


@dataclass(slots=True)
class _Scored:
    """One scored episode on its way into the batch. `penalties` [T_e]: KL times its coefficient, in sampled order."""

    episode: Episode
    group: int
    samples: list[Sample]
    penalties: Row

    @property
    def length(self) -> int:
        return self.penalties.size


def has_signal(group: Group, equal: float = 0.0) -> bool:
    """False when the rewards of the group's scored episodes are all equal, which they are no further apart than
    `equal`: nothing to prefer (dynamic sampling)."""
    rewards = [episode.reward or 0.0 for episode in group.scored]
    return len(rewards) > 1 and max(rewards) - min(rewards) > equal


def credit(
    groups: Sequence[Group], config: AjetConfig, *, step: int = 0, reference: Logprobs | None = None
) -> TrainingBatch:
    """The batch, with the outcome of every episode. `reference` is asked only with `use_kl_in_reward`. Raises
    ValueError when it is then missing."""
    algorithm = config.trainer_common.algorithm
    scored = [_collect(episode, index) for index, group in enumerate(groups) for episode in group.scored]
    if algorithm.use_kl_in_reward:
        if reference is None:
            raise ValueError("use_kl_in_reward needs the logprobs of the policy and of the reference model")
        _penalise(scored, reference, algorithm.kl_in_reward_coef)
    advantages = _advantages(scored, config)

    silent = _silent_groups(scored, advantages)
    if algorithm.dynamic_sampling:
        silent = {index for index, group in enumerate(groups) if not has_signal(group, algorithm.equal_rewards)}
        counting = [item.length for item in scored if item.group not in silent]
    else:
        counting = [item.length for item in scored]
        if config.trainer_common.use_kl_loss:
            silent = set()
    weights = iter(token_weights(algorithm.loss_aggregation, counting, config.data.max_response_length))

    batch = TrainingBatch(step=step, samples=[], temperature=config.rollout.temperature)
    batch.outcomes = {e.uuid: _of_unscored(e) for e in episodes_of(groups) if not e.scored}
    for item, row in zip(scored, advantages, strict=True):
        weight = next(weights) if item.group not in silent or not algorithm.dynamic_sampling else 0.0
        if item.group in silent:
            left = {"zero_variance": item.length} if item.length else {}
            batch.outcomes[item.episode.uuid] = Outcome(untrained=left)
            continue
        batch.outcomes[item.episode.uuid] = Outcome(step, float(row.mean()) if row.size else 0.0)
        _write(item, row, weight)
        batch.samples.extend(item.samples)
    batch.metrics = _metrics(groups, scored, batch, silent, algorithm.equal_rewards)
    return batch


def _collect(episode: Episode, group: int) -> _Scored:
    samples = [
        Sample(timeline, episode.uuid, group, np.zeros(timeline.ids.size, np.float32), 0.0)
        for timeline in episode.timelines
        if timeline.sampled
    ]
    return _Scored(episode, group, samples, np.zeros(sum(sample.timeline.sampled for sample in samples)))


def _of_unscored(episode: Episode) -> Outcome:
    left = episode.uncounted
    reason = "no_score" if episode.status == "completed" else "failed"
    return Outcome(untrained={reason: left} if left > 0 else {})


def _sampled_order(item: _Scored) -> list[tuple[Sample, slice]]:
    """The runs of trained tokens of an episode, call by call."""
    runs = [
        (span.call, sample, slice(span.start, span.stop)) for sample in item.samples for span in sample.timeline.spans
    ]
    return [(sample, where) for _, sample, where in sorted(runs, key=lambda run: run[0])]


def _penalise(scored: Sequence[_Scored], logprobs: Logprobs, coefficient: float) -> None:
    """Fill `penalties` with coefficient * k1 and keep the reference's logprobs for a KL term in the loss."""
    samples = [sample for item in scored for sample in item.samples]
    policy, reference = logprobs(samples)
    gaps: dict[int, Floats] = {}
    for sample, own, other in zip(samples, policy, reference, strict=True):
        sample.reference = other
        gaps[id(sample)] = own - other
    for item in scored:
        runs = [gaps[id(sample)][where] for sample, where in _sampled_order(item)]
        if runs:
            item.penalties = coefficient * np.concatenate(runs).astype(np.float64)


def _advantages(scored: Sequence[_Scored], config: AjetConfig) -> list[Row]:
    """[T_e] per scored episode, in sampled order."""
    algorithm = config.trainer_common.algorithm
    rewards = np.array([item.episode.reward for item in scored], np.float64)
    groups: dict[int, list[int]] = {}
    for index, item in enumerate(scored):
        groups.setdefault(item.group, []).append(index)
    for members in groups.values():
        if np.ptp(rewards[members]) <= algorithm.equal_rewards:
            rewards[members] = rewards[members[0]]
    if algorithm.adv_estimator == "reinforce_plus_plus":
        return reinforce_plus_plus.advantages(rewards, [item.penalties for item in scored])
    returns = rewards - np.array([item.penalties.sum() for item in scored])
    rows: list[Row] = [np.zeros(0)] * len(scored)
    for members in groups.values():
        if algorithm.adv_estimator == "rloo":
            values = rloo.advantages(returns[members])
        else:
            values = grpo.advantages(returns[members], norm_by_std=algorithm.norm_adv_by_std)
        for index, value in zip(members, values, strict=True):
            rows[index] = np.full(scored[index].length, value)
    return rows


def _silent_groups(scored: Sequence[_Scored], advantages: Sequence[Row]) -> set[int]:
    """Groups none of whose tokens has an advantage."""
    speaking = {item.group for item, row in zip(scored, advantages, strict=True) if row.any()}
    return {item.group for item in scored} - speaking


def _write(item: _Scored, row: Row, weight: float) -> None:
    start = 0
    for sample, where in _sampled_order(item):
        stop = start + where.stop - where.start
        sample.advantages[where] = row[start:stop]
        start = stop
    for sample in item.samples:
        sample.weight = weight


def _metrics(
    groups: Sequence[Group], scored: Sequence[_Scored], batch: TrainingBatch, silent: set[int], equal: float
) -> dict[str, float]:
    trained = [abs(each.advantage) for each in batch.outcomes.values() if each.advantage is not None]
    penalties = np.concatenate([item.penalties for item in scored]) if scored else np.zeros(0)
    metrics: dict[str, float] = {
        "credit/groups": len(groups),
        "credit/zero_variance_groups": sum(not has_signal(group, equal) for group in groups),
        "credit/left_out_groups": len(silent),
        "credit/samples": len(batch.samples),
        "credit/advantage_abs_mean": float(np.mean(trained)) if trained else 0.0,
    }
    if penalties.any():
        metrics["credit/kl_penalty_mean"] = float(penalties.mean())
    return metrics
