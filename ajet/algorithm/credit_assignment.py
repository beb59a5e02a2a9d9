"""Assigns credit: converts groups of episodes into a training batch with an advantage and a weight per token.

A timeline is a token sequence of an episode: model calls merged where each continues the one before. Invariants:
baselines cover all scored episodes of a group. A sampled token becomes part of a sample, belongs to no timeline
(`Episode.untrained`), or is counted in the `Outcome` of its episode. Episodes are never modified.

A group is skipped as `zero_variance` only if its loss is exactly 0: no token has an advantage in the batch, and there
is no other term: KL, critic, observations or a teacher's distribution. The group still counts in the weights of the
other groups. With `dynamic_sampling` (DAPO, arXiv 2503.14476, section 3.2), groups without a signal
(`Algorithm.learns_from`) do not belong to the batch at all, with or without KL. Neither token weights nor statistics
over the batch include these groups.
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
    compute_length_reward,
    count_sampled_tokens,
    equalize_rewards,
    index_groups,
    shape_rewards,
)
from ajet.algorithm.echo import weigh_observations
from ajet.algorithm.registry import explain_failures, open_algorithm, require_finite
from ajet.algorithm.token_credit import (
    CriticFunction,
    ReplyPlaces,
    add_process_credit,
    compute_token_rewards,
    compute_value_advantages,
    compute_value_metrics,
    gather_tokens,
    list_sampled_runs,
    scatter_tokens,
)
from ajet.algorithm.weights import compute_token_weights
from ajet.schema.batch import Sample, TrainingBatch
from ajet.schema.call import Floats
from ajet.schema.episode import Episode, Group, Outcome, UntrainedReason, list_episodes
from ajet.schema.errors import UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig
    from ajet.config.schema.algorithm import AlgorithmConfig as AlgorithmSettings
    from ajet.config.schema.algorithm import OverlongConfig

LogprobPairs = Callable[[list[Sample]], tuple[list[Floats], list[Floats]]]
"""Map samples to their [T] logprobs under the policy and under the reference model."""


@dataclass(slots=True)
class _ScoredEpisode:
    """A scored episode with its samples and per-token inputs, while the batch is built.

    `penalties` [T_e]: KL times its coefficient. `values` [T_e]: the critic's values. `reference_gap` [T_e]: log policy
    - log reference. All rows are in sampled order, with T_e the trained tokens of the episode.
    """

    episode: Episode
    group: int
    samples: list[Sample]
    penalties: Row
    values: Floats | None = None
    reference_gap: Floats | None = None

    @property
    def length(self) -> int:
        return self.penalties.size

    def build_outcome(self, step: int | None = None, advantage: float | None = None, **untrained: int) -> Outcome:
        """Build the episode's outcome, including critic values and gaps to the reference model."""
        return Outcome(step, advantage, untrained, values=self.values, reference_gap=self.reference_gap)


def assign_credit(
    groups: Sequence[Group],
    config: AjetConfig,
    algorithm: Algorithm | None = None,
    *,
    step: int = 0,
    reference: LogprobPairs | None = None,
    critic: CriticFunction | None = None,
) -> TrainingBatch:
    """Build the training batch of a step, with an outcome for every episode.

    Args:
        groups: All attempts of the step, grouped by task.
        algorithm: None opens the algorithm named by `config`.
        step: Number of the training step, recorded in the outcomes.
        reference: Computes logprobs of policy and reference model; called only with `use_kl_in_reward`, and for
            self-distillation with the policy that knows the answer as the reference.
        critic: Computes values; called only if the algorithm needs a critic.

    Raises:
        ValueError: A required `reference` or `critic` is missing.
        UserError: The algorithm returned invalid advantages.
    """
    settings = config.trainer_common.algorithm
    algorithm = algorithm or open_algorithm(config)
    scored = [_build_scored_episode(episode, index) for index, group in enumerate(groups) for episode in group.scored]
    is_privileged = "privileged" in algorithm.needs
    if settings.use_kl_in_reward or is_privileged:
        if reference is None:
            raise ValueError("use_kl_in_reward and self-distillation need logprobs of the policy and of a reference")
        _apply_kl_penalties(scored, reference, 1.0 if is_privileged else settings.kl_in_reward_coef)
        if is_privileged:
            for item in scored:
                for sample in item.samples:
                    sample.reference = None  # a KL term in the loss compares with the reference model
    uninformative = {index for index, group in enumerate(groups) if not algorithm.learns_from(group)}
    excluded = uninformative if settings.dynamic_sampling else set()
    included = [item for item in scored if item.group not in excluded]
    included_advantages, parts, critic_metrics = _compute_advantages(included, algorithm, settings, critic)
    rows = iter(included_advantages)
    # Excluded groups were not passed to the algorithm, so that batch statistics do not include them.
    advantages = [np.zeros(item.length) if item.group in excluded else next(rows) for item in scored]
    if settings.dynamic_sampling:
        skipped = uninformative
    elif config.trainer_common.use_kl_loss or algorithm.needs & {"critic", "observations", "distribution"}:
        skipped = set()
    else:
        skipped = _find_groups_without_advantage(scored, advantages)
    balanced = {uuid for group in groups for uuid in find_surplus_attempts(group)} if settings.balance_sample else set()
    batch = TrainingBatch(step=step, samples=[], temperature=config.rollout.temperature)
    trained: list[_ScoredEpisode] = []
    batch.outcomes = {e.uuid: _build_unscored_outcome(e) for e in list_episodes(groups) if not e.scored}
    weights = _weigh_episodes(scored, config, skipped, balanced)
    for item, row, weight in zip(scored, advantages, weights, strict=True):
        if item.episode.uuid in balanced or item.group in skipped:
            reason = "zero_variance" if item.group in skipped else "balanced"
            batch.outcomes[item.episode.uuid] = item.build_outcome(**({reason: item.length} if item.length else {}))
            continue
        batch.outcomes[item.episode.uuid] = item.build_outcome(step, float(row.mean()) if row.size else 0.0)
        _write_advantages(item, row, weight)
        batch.samples.extend(item.samples)
        trained.append(item)
    observed = 0
    if "observations" in algorithm.needs:
        calls, samples = [item.episode.calls for item in trained], [item.samples for item in trained]
        observed = weigh_observations(calls, samples, settings.observation_weight)
    batch.metrics = {
        "credit/groups": len(groups),
        "credit/zero_variance_groups": len(uninformative),
        "credit/left_out_groups": len(skipped),
        **({"credit/parts": parts} if parts else {}),
        **({"credit/observed_tokens": observed} if observed else {}),
        **({"credit/balanced_episodes": len(balanced)} if settings.balance_sample else {}),
        **_compute_length_metrics(scored, settings.overlong),
        **_compute_credit_metrics(scored, batch, has_teacher=bool(algorithm.needs & {"teacher", "privileged"})),
        **critic_metrics,
    }
    return batch


def _compute_advantages(
    scored: list[_ScoredEpisode], algorithm: Algorithm, settings: AlgorithmSettings, critic: CriticFunction | None
) -> tuple[list[Row], int, dict[str, float]]:
    """Return [T_e] advantages per scored episode, the number of process rewards, and critic metrics.

    Advantages are in sampled order.
    """
    if "teacher" in algorithm.needs:
        for item in scored:
            item.penalties = _compute_teacher_gap(item)
    critic_metrics: dict[str, float] = {}
    if "critic" in algorithm.needs:
        advantages, parts, critic_metrics = _compute_critic_advantages(scored, algorithm, critic)
    else:
        groups = [0 if algorithm.across_tasks else item.group for item in scored]
        advantages = _compute_reward_advantages(scored, groups, algorithm, settings.equal_rewards)
        parts = add_process_credit(
            advantages,
            [item.episode for item in scored],
            groups,
            [_locate_replies(item) for item in scored],
            algorithm,
        )
    if settings.adv_scaling != 1:
        advantages = [row * settings.adv_scaling for row in advantages]
    return advantages, parts, critic_metrics


def _weigh_episodes(
    scored: Sequence[_ScoredEpisode], config: AjetConfig, skipped: Collection[int], balanced: Collection[str]
) -> list[float]:
    """Return one loss weight per episode, which holds for each of its tokens.

    The weight is 0 for attempts left out by `balance_sample`, and with dynamic sampling for the episodes of groups
    without a signal.

    Args:
        skipped: indexes of groups that are not trained.
        balanced: ids of attempts left out by `balance_sample`.
    """
    settings = config.trainer_common.algorithm
    excluded = skipped if settings.dynamic_sampling else ()
    counts = [item.episode.uuid not in balanced and item.group not in excluded for item in scored]
    lengths = [item.length for item, counted in zip(scored, counts, strict=True) if counted]
    weights = iter(compute_token_weights(settings.loss_aggregation, lengths, config.data.max_response_length))
    return [next(weights) if counted else 0.0 for counted in counts]


def _build_scored_episode(episode: Episode, group: int) -> _ScoredEpisode:
    samples = [
        Sample(timeline, episode.uuid, group, np.zeros(timeline.ids.size, np.float32), 0.0)
        for timeline in episode.timelines
        if timeline.sampled
    ]
    return _ScoredEpisode(episode, group, samples, np.zeros(sum(sample.timeline.sampled for sample in samples)))


def _build_unscored_outcome(episode: Episode) -> Outcome:
    tokens = episode.uncounted
    reason = "no_score" if episode.status == "completed" else "failed"
    return Outcome(untrained={reason: tokens} if tokens > 0 else {})


def _locate_replies(item: _ScoredEpisode) -> ReplyPlaces:
    places, start = {}, 0
    for call, _, positions in list_sampled_runs(item.samples):
        stop = start + positions.stop - positions.start
        places[call] = start, stop
        start = stop
    return places


def _apply_kl_penalties(scored: Sequence[_ScoredEpisode], logprobs: LogprobPairs, coefficient: float) -> None:
    """Set the KL penalties of all episodes to coefficient * k1, and store reference logprobs in the samples.

    A KL term in the loss reads these reference logprobs.

    Args:
        logprobs: returns logprobs of policy and reference model.
    """
    samples = [sample for item in scored for sample in item.samples]
    policy, reference = logprobs(samples)
    gaps: dict[int, Floats] = {}
    for sample, policy_logprobs, other in zip(samples, policy, reference, strict=True):
        sample.reference = other
        gaps[id(sample)] = policy_logprobs - other
    for item in scored:
        item.reference_gap = gather_tokens(item.samples, [gaps[id(sample)] for sample in item.samples])
        item.penalties = coefficient * item.reference_gap.astype(np.float64)


def _compute_teacher_gap(item: _ScoredEpisode) -> Row:
    """Return [T_e] recorded log policy - log teacher. Raise ValueError if teacher logprobs are missing."""
    gaps = []
    for index, sample_index, positions in list_sampled_runs(item.samples):
        call = item.episode.calls[index]
        # The teacher scored the reply alone, while the slice counts from the start of the sample.
        start = positions.start - call.prefix - call.suffix_ids.size
        if (
            call.teacher is None
            or np.isnan(teacher_logprobs := call.teacher[start : start + positions.stop - positions.start]).any()
        ):
            raise ValueError(f"episode {item.episode.uuid}: call {index} has no teacher logprobs")
        gaps.append(item.samples[sample_index].timeline.logprobs_unit[positions].astype(np.float64) - teacher_logprobs)
    return np.concatenate(gaps) if gaps else np.zeros(0)


def _compute_reward_advantages(
    scored: Sequence[_ScoredEpisode], groups: Sequence[int], algorithm: Algorithm, equal: float
) -> list[Row]:
    """Return [T_e] advantages per scored episode, in sampled order."""
    episodes = [item.episode for item in scored]
    rewards = shape_rewards(episodes, algorithm.settings.overlong)
    for members in index_groups(groups):
        rewards[members] = equalize_rewards(rewards[members], equal)
    with explain_failures(algorithm):
        rows = algorithm.of_episodes(episodes, rewards, [item.penalties for item in scored], groups)
        advantages = [np.array(row, np.float64) for row in rows]
    expected_shapes = [(item.length,) for item in scored]
    require_finite(algorithm, advantages, rewards)
    if [row.shape for row in advantages] != expected_shapes:
        raise UserError(
            f"{algorithm.name} returned advantages of the wrong shape.",
            where=f"shapes {[row.shape for row in advantages][:4]} for {expected_shapes[:4]}",
            expected="a finite number for each trained token of each episode",
        )
    return advantages


def _compute_critic_advantages(
    scored: Sequence[_ScoredEpisode], algorithm: Algorithm, critic: CriticFunction | None
) -> tuple[list[Row], int, dict[str, float]]:
    """Return [T_e] advantages per scored episode, the number of process rewards, and critic metrics.

    Also writes the critic's old values and its target returns into the samples.
    """
    if critic is None:
        raise ValueError(
            f"trainer_common.algorithm.adv_estimator: {algorithm.name} needs a critic that values each token"
        )
    samples = [sample for item in scored for sample in item.samples]
    before = {id(sample): row for sample, row in zip(samples, critic(samples), strict=True)}
    for sample in samples:
        sample.values = before[id(sample)]
    rewards = shape_rewards([item.episode for item in scored], algorithm.settings.overlong)
    token_rewards = [
        compute_token_rewards(item.episode, float(reward), item.penalties, _locate_replies(item), algorithm)
        for item, reward in zip(scored, rewards, strict=True)
    ]
    for item in scored:
        item.values = gather_tokens(item.samples, [before[id(sample)] for sample in item.samples])
    values = [np.asarray(item.values, np.float64) for item in scored]
    advantages, returns = compute_value_advantages(algorithm, [row for row, _ in token_rewards], values)
    for item, row in zip(scored, returns, strict=True):
        for sample, returns_T in zip(item.samples, scatter_tokens(item.samples, row.astype(np.float32)), strict=True):
            sample.returns = returns_T
    return advantages, sum(parts for _, parts in token_rewards), compute_value_metrics(values, returns)


def _find_groups_without_advantage(scored: Sequence[_ScoredEpisode], advantages: Sequence[Row]) -> set[int]:
    """Return the groups whose tokens all have advantage 0."""
    informative = {item.group for item, row in zip(scored, advantages, strict=True) if row.any()}
    return {item.group for item in scored} - informative


def _write_advantages(item: _ScoredEpisode, row: Row, weight: float) -> None:
    for sample, row_T in zip(item.samples, scatter_tokens(item.samples, row.astype(np.float32)), strict=True):
        sample.advantages, sample.weight = row_T, weight


def _compute_length_metrics(scored: Sequence[_ScoredEpisode], overlong: OverlongConfig) -> dict[str, float]:
    if overlong.length is None or not scored:
        return {}
    length_rewards = [compute_length_reward(count_sampled_tokens(item.episode), overlong) for item in scored]
    return {
        "credit/overlong_penalty_mean": -float(np.mean(length_rewards)),
        "credit/overlong_fraction": float(np.mean(np.sign(length_rewards) != 0)),
    }


def _compute_credit_metrics(
    scored: Sequence[_ScoredEpisode], batch: TrainingBatch, *, has_teacher: bool
) -> dict[str, float]:
    trained = [abs(outcome.advantage) for outcome in batch.outcomes.values() if outcome.advantage is not None]
    penalties = np.concatenate([item.penalties for item in scored]) if scored else np.zeros(0)
    metrics: dict[str, float] = {
        "credit/samples": len(batch.samples),
        "credit/advantage_abs_mean": float(np.mean(trained)) if trained else 0.0,
    }
    if has_teacher and penalties.size:
        metrics["distillation/reverse_kl"] = float(penalties.mean())
    elif penalties.any():
        metrics["credit/kl_penalty_mean"] = float(penalties.mean())
    return metrics


def build_discarded_outcomes(groups: Iterable[Group], reason: UntrainedReason = "oversampled") -> dict[str, Outcome]:
    """Return an outcome per episode id for groups that were discarded before training.

    Args:
        reason: "oversampled" for surplus groups, or "stale". The groups' tokens are counted under it.
    """
    outcomes = {}
    for episode in list_episodes(groups):
        tokens = episode.uncounted
        outcomes[episode.uuid] = Outcome(untrained={reason: tokens} if tokens else {}, discarded=reason)
    return outcomes


BALANCE_ZERO, BALANCE_OTHER = 1, 2
"""Attempts trained beyond the size of the smaller class, for reward 0 and for other rewards."""


def find_surplus_attempts(group: Group) -> set[str]:
    """Return the uuids of scored attempts to leave out, to balance attempts with reward 0 against the others.

    AgentRL's `balance_sample` (AgentCPM-Explore, AgentRL/src/rollout, 2026): with n the size of the smaller class, at
    most n + 1 attempts of reward 0 and n + 2 others are trained. A hash of an attempt's identity (task, place in the
    training order, repeat) decides the draw, so a resumed run and every backbone draw the same attempts. All attempts
    stay in the baseline.
    """
    zero = [episode for episode in group.scored if episode.reward == 0]
    other = [episode for episode in group.scored if episode.reward != 0]
    fewer = min(len(zero), len(other))
    return {
        episode.uuid
        for kind, more in ((zero, BALANCE_ZERO), (other, BALANCE_OTHER))
        for episode in _shuffle_episodes(group, kind)[fewer + more :]
    }


def _shuffle_episodes(group: Group, episodes: Sequence[Episode]) -> list[Episode]:
    def draw_order(episode: Episode) -> bytes:
        return hashlib.blake2b(f"{group.task.task_id}/{group.order}/{episode.repeat}".encode()).digest()

    return sorted(episodes, key=draw_order)
