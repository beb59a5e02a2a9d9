"""Groups of episodes to a training batch: who gets how much credit.

Invariants: baselines are over the scored episodes of a group, however many there are; a sampled token becomes part
of a sample, is in no timeline (`Episode.untrained`), or is counted in the `Outcome` of its episode, which itself does
not change. A group is left out as `zero_variance` only where its loss is exactly 0 (none of its tokens has an advantage
in this batch; no KL term, no critic): it still counts in the weights of the others. With `dynamic_sampling` (DAPO,
arXiv 2503.14476, section 3.2) groups with nothing to learn from (`Algorithm.learns_from`) do not belong to the batch at
all, KL or not, and do not count: neither in the weights nor in what is compared or normalised over the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ajet.algorithm.contract import (
    Algorithm,
    Row,
    length_of,
    length_reward,
    members_of,
    shaped_rewards,
    without_rounding,
)
from ajet.algorithm.own_algorithm import explain_failures, require_finite
from ajet.algorithm.registry import opened
from ajet.algorithm.token_credit import (
    Places,
    Values,
    add_process_credit,
    by_values,
    gathered,
    given,
    sampled_runs,
    scattered,
    value_metrics,
)
from ajet.algorithm.weights import token_weights
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.episode import Episode, Group, Outcome, UntrainedReason, list_episodes
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.config.schema.algorithm import AlgorithmConfig as AlgorithmSettings
    from ajet.config.schema.algorithm import OverlongConfig

Logprobs = Callable[[list[Sample]], tuple[list[Floats], list[Floats]]]
"""Samples to their [T] logprobs under the policy and under the reference model."""


@dataclass(slots=True)
class _Scored:
    """One scored episode on its way into the batch. `penalties` [T_e]: KL times its coefficient, in sampled order."""

    episode: Episode
    group: int
    samples: list[Sample]
    penalties: Row
    values: Floats | None = None
    """[T_e] the critic's, likewise."""
    reference_gap: Floats | None = None
    """[T_e] log policy - log reference, likewise."""

    @property
    def length(self) -> int:
        return self.penalties.size

    def outcome(self, step: int | None = None, advantage: float | None = None, **untrained: int) -> Outcome:
        """The episode's outcome, with its tokens' values and gaps to the reference model."""
        return Outcome(step, advantage, untrained, values=self.values, reference_gap=self.reference_gap)


def credit(
    groups: Sequence[Group],
    config: AjetConfig,
    algorithm: Algorithm | None = None,
    *,
    step: int = 0,
    reference: Logprobs | None = None,
    critic: Values | None = None,
) -> TrainingBatch:
    """The batch, with the outcome of every episode. `algorithm` None is the one that `config` names. `reference` is
    asked only with `use_kl_in_reward`, `critic` where the algorithm needs one. Raises ValueError when it is then
    missing, UserError for credit that is none."""
    settings = config.trainer_common.algorithm
    algorithm = algorithm or opened(config)
    scored = [_collect(episode, index) for index, group in enumerate(groups) for episode in group.scored]
    if settings.use_kl_in_reward:
        if reference is None:
            raise ValueError("use_kl_in_reward needs the logprobs of the policy and of the reference model")
        _penalise(scored, reference, settings.kl_in_reward_coef)
    nothing = {index for index, group in enumerate(groups) if not algorithm.learns_from(group)}
    unseen = nothing if settings.dynamic_sampling else set()
    seen = [item for item in scored if item.group not in unseen]
    found, parts, valued = _credited(seen, algorithm, settings, critic)
    rows = iter(found)
    advantages = [np.zeros(item.length) if item.group in unseen else next(rows) for item in scored]
    if settings.dynamic_sampling:
        silent = nothing
    elif config.trainer_common.use_kl_loss or "critic" in algorithm.needs:
        silent = set()
    else:
        silent = _without_advantage(scored, advantages)
    balanced = {uuid for group in groups for uuid in left_out(group)} if settings.balance_sample else set()
    batch = TrainingBatch(step=step, samples=[], temperature=config.rollout.temperature)
    batch.outcomes = {e.uuid: _of_unscored(e) for e in list_episodes(groups) if not e.scored}
    weights = _weights(scored, config, silent, balanced)
    for item, row, weight in zip(scored, advantages, weights, strict=True):
        if item.episode.uuid in balanced or item.group in silent:
            reason = "zero_variance" if item.group in silent else "balanced"
            batch.outcomes[item.episode.uuid] = item.outcome(**({reason: item.length} if item.length else {}))
            continue
        batch.outcomes[item.episode.uuid] = item.outcome(step, float(row.mean()) if row.size else 0.0)
        _write(item, row, weight)
        batch.samples.extend(item.samples)
    batch.metrics = {
        "credit/groups": len(groups),
        "credit/zero_variance_groups": len(nothing),
        "credit/left_out_groups": len(silent),
        **({"credit/parts": parts} if parts else {}),
        **({"credit/balanced_episodes": len(balanced)} if settings.balance_sample else {}),
        **_length_metrics(scored, settings.overlong),
        **_metrics(scored, batch, taught="teacher" in algorithm.needs),
        **valued,
    }
    return batch


def _credited(
    scored: list[_Scored], algorithm: Algorithm, settings: AlgorithmSettings, critic: Values | None
) -> tuple[list[Row], int, dict[str, float]]:
    """[T_e] advantages per scored episode, in sampled order; how many parts had a reward; metrics of a critic."""
    if "teacher" in algorithm.needs:
        for item in scored:
            item.penalties = _untaught(item)
    valued: dict[str, float] = {}
    if "critic" in algorithm.needs:
        advantages, parts, valued = _of_critic(scored, algorithm, critic)
    else:
        advantages = _advantages(scored, algorithm, settings.equal_rewards)
        parts = add_process_credit(
            advantages,
            [item.episode for item in scored],
            [item.group for item in scored],
            [_places(item) for item in scored],
            algorithm,
        )
    if settings.adv_scaling != 1:
        advantages = [row * settings.adv_scaling for row in advantages]
    return advantages, parts, valued


def _weights(
    scored: Sequence[_Scored], config: AjetConfig, silent: Collection[int], balanced: Collection[str]
) -> list[float]:
    """The weight of a token of each episode, over those that count: all but the balanced ones and, with dynamic
    sampling, those of silent groups; 0 for the others."""
    settings = config.trainer_common.algorithm
    unseen = silent if settings.dynamic_sampling else ()
    counts = [item.episode.uuid not in balanced and item.group not in unseen for item in scored]
    lengths = [item.length for item, counted in zip(scored, counts, strict=True) if counted]
    weights = iter(token_weights(settings.loss_aggregation, lengths, config.data.max_response_length))
    return [next(weights) if counted else 0.0 for counted in counts]


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


def _places(item: _Scored) -> Places:
    places, start = {}, 0
    for call, _, where in sampled_runs(item.samples):
        stop = start + where.stop - where.start
        places[call] = start, stop
        start = stop
    return places


def _penalise(scored: Sequence[_Scored], logprobs: Logprobs, coefficient: float) -> None:
    """Fill `penalties` with coefficient * k1 and keep the reference's logprobs for a KL term in the loss."""
    samples = [sample for item in scored for sample in item.samples]
    policy, reference = logprobs(samples)
    gaps: dict[int, Floats] = {}
    for sample, own, other in zip(samples, policy, reference, strict=True):
        sample.reference = other
        gaps[id(sample)] = own - other
    for item in scored:
        item.reference_gap = gathered(item.samples, [gaps[id(sample)] for sample in item.samples])
        item.penalties = coefficient * item.reference_gap.astype(np.float64)


def _untaught(item: _Scored) -> Row:
    """[T_e] log policy - log teacher, as both were recorded. Raises ValueError where the teacher was not asked."""
    gaps = []
    for index, at, where in sampled_runs(item.samples):
        call = item.episode.calls[index]
        start = where.start - call.prefix - call.suffix_ids.size
        if call.teacher is None or np.isnan(told := call.teacher[start : start + where.stop - where.start]).any():
            raise ValueError(f"episode {item.episode.uuid}: no teacher was asked about its call {index}")
        gaps.append(item.samples[at].timeline.logprobs_unit[where].astype(np.float64) - told)
    return np.concatenate(gaps) if gaps else np.zeros(0)


def _advantages(scored: Sequence[_Scored], algorithm: Algorithm, equal: float) -> list[Row]:
    """[T_e] per scored episode, in sampled order."""
    episodes = [item.episode for item in scored]
    rewards = shaped_rewards(episodes, algorithm.settings.overlong)
    groups = [item.group for item in scored]
    for members in members_of(groups):
        rewards[members] = without_rounding(rewards[members], equal)
    with explain_failures(algorithm):
        rows = algorithm.of_episodes(episodes, rewards, [item.penalties for item in scored], groups)
        found = [np.array(row, np.float64) for row in rows]
    wanted = [(item.length,) for item in scored]
    require_finite(algorithm, found, rewards)
    if [row.shape for row in found] != wanted:
        raise UserError(
            f"{algorithm.name} gave advantages that no episode can be trained with.",
            where=f"shapes {[row.shape for row in found][:4]} for {wanted[:4]}",
            expected="a finite number for each trained token of each episode",
        )
    return found


def _of_critic(
    scored: Sequence[_Scored], algorithm: Algorithm, critic: Values | None
) -> tuple[list[Row], int, dict[str, float]]:
    """[T_e] advantages per scored episode, in sampled order; how many parts had a reward; metrics. What was expected,
    and what is to be, is written into the samples."""
    if critic is None:
        raise ValueError(f"{algorithm.name} needs the values that a critic gives each token")
    samples = [sample for item in scored for sample in item.samples]
    before = {id(sample): row for sample, row in zip(samples, critic(samples), strict=True)}
    for sample in samples:
        sample.values = before[id(sample)]
    rewards = shaped_rewards([item.episode for item in scored], algorithm.settings.overlong)
    told = [
        given(item.episode, float(reward), item.penalties, _places(item), algorithm)
        for item, reward in zip(scored, rewards, strict=True)
    ]
    for item in scored:
        item.values = gathered(item.samples, [before[id(sample)] for sample in item.samples])
    values = [np.asarray(item.values, np.float64) for item in scored]
    advantages, returns = by_values(algorithm, [row for row, _ in told], values)
    for item, row in zip(scored, returns, strict=True):
        for sample, told_T in zip(item.samples, scattered(item.samples, row.astype(np.float32)), strict=True):
            sample.returns = told_T
    return advantages, sum(parts for _, parts in told), value_metrics(values, returns)


def _without_advantage(scored: Sequence[_Scored], advantages: Sequence[Row]) -> set[int]:
    """Groups none of whose tokens has an advantage."""
    speaking = {item.group for item, row in zip(scored, advantages, strict=True) if row.any()}
    return {item.group for item in scored} - speaking


def _write(item: _Scored, row: Row, weight: float) -> None:
    for sample, row_T in zip(item.samples, scattered(item.samples, row.astype(np.float32)), strict=True):
        sample.advantages, sample.weight = row_T, weight


def _length_metrics(scored: Sequence[_Scored], overlong: OverlongConfig) -> dict[str, float]:
    if overlong.length is None or not scored:
        return {}
    lost = [length_reward(length_of(item.episode), overlong) for item in scored]
    return {
        "credit/overlong_penalty_mean": -float(np.mean(lost)),
        "credit/overlong_fraction": float(np.mean(np.sign(lost) != 0)),
    }


def _metrics(scored: Sequence[_Scored], batch: TrainingBatch, *, taught: bool) -> dict[str, float]:
    trained = [abs(each.advantage) for each in batch.outcomes.values() if each.advantage is not None]
    penalties = np.concatenate([item.penalties for item in scored]) if scored else np.zeros(0)
    metrics: dict[str, float] = {
        "credit/samples": len(batch.samples),
        "credit/advantage_abs_mean": float(np.mean(trained)) if trained else 0.0,
    }
    if taught and penalties.size:
        metrics["distillation/reverse_kl"] = float(penalties.mean())
    elif penalties.any():
        metrics["credit/kl_penalty_mean"] = float(penalties.mean())
    return metrics


def discarded(groups: Iterable[Group], reason: UntrainedReason = "oversampled") -> dict[str, Outcome]:
    """Outcomes, by uuid, of groups that are not trained on, because the batch had no room for them or they are
    `stale`: the tokens of their timelines are counted as such."""
    found = {}
    for episode in list_episodes(groups):
        left = episode.uncounted
        found[episode.uuid] = Outcome(untrained={reason: left} if left else {}, discarded=reason)
    return found


BALANCE_ZERO, BALANCE_OTHER = 1, 2
"""How many more of each are trained than there are of the fewer."""


def left_out(group: Group) -> set[str]:
    """Return the uuids of scored attempts left out, so that about as many with reward 0 as with another are trained.

    AgentRL's `balance_sample` (AgentCPM-Explore, AgentRL/src/rollout, 2026): with n the smaller of the two numbers, at
    most n + 1 attempts of reward 0 and n + 2 of the others. A hash of an attempt's identity (task, place in the
    training order, repeat) draws them, so that a resumed run and every backbone draw the same. All stay in the
    baseline.
    """
    zero = [episode for episode in group.scored if episode.reward == 0]
    other = [episode for episode in group.scored if episode.reward != 0]
    fewer = min(len(zero), len(other))
    return {
        episode.uuid
        for kind, more in ((zero, BALANCE_ZERO), (other, BALANCE_OTHER))
        for episode in _shuffled(group, kind)[fewer + more :]
    }


def _shuffled(group: Group, episodes: Sequence[Episode]) -> list[Episode]:
    def drawn(episode: Episode) -> bytes:
        return hashlib.blake2b(f"{group.task.task_id}/{group.order}/{episode.repeat}".encode()).digest()

    return sorted(episodes, key=drawn)
