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
        """The number of trained tokens of the episode."""
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
            for scored_episode in scored:
                for sample in scored_episode.samples:
                    sample.reference = None  # a KL term in the loss compares with the reference model
    uninformative = {index for index, group in enumerate(groups) if not algorithm.learns_from(group)}
    excluded = uninformative if settings.dynamic_sampling else set()
    included = [scored_episode for scored_episode in scored if scored_episode.group not in excluded]
    included_advantages, parts, critic_metrics = _compute_advantages(included, algorithm, settings, critic)
    next_advantages = iter(included_advantages)
    # Excluded groups were not passed to the algorithm, so that batch statistics do not include them.
    advantages = [
        np.zeros(scored_episode.length) if scored_episode.group in excluded else next(next_advantages)
        for scored_episode in scored
    ]
    if settings.dynamic_sampling:
        skipped = uninformative
    elif config.trainer_common.use_kl_loss or algorithm.needs & {"critic", "observations", "distribution"}:
        skipped = set()
    else:
        skipped = _find_groups_without_advantage(scored, advantages)
    balanced = {uuid for group in groups for uuid in find_surplus_attempts(group)} if settings.balance_sample else set()
    batch = TrainingBatch(step=step, samples=[], temperature=config.rollout.temperature)
    trained: list[_ScoredEpisode] = []
    batch.outcomes = {
        episode.uuid: _build_unscored_outcome(episode) for episode in list_episodes(groups) if not episode.scored
    }
    weights = _weigh_episodes(scored, config, skipped, balanced)
    for scored_episode, advantages_T, weight in zip(scored, advantages, weights, strict=True):
        if scored_episode.episode.uuid in balanced or scored_episode.group in skipped:
            reason = "zero_variance" if scored_episode.group in skipped else "balanced"
            batch.outcomes[scored_episode.episode.uuid] = scored_episode.build_outcome(
                **({reason: scored_episode.length} if scored_episode.length else {})
            )
            continue
        batch.outcomes[scored_episode.episode.uuid] = scored_episode.build_outcome(
            step, float(advantages_T.mean()) if advantages_T.size else 0.0
        )
        _write_advantages(scored_episode, advantages_T, weight)
        batch.samples.extend(scored_episode.samples)
        trained.append(scored_episode)
    observed = 0
    if "observations" in algorithm.needs:
        calls, samples = (
            [scored_episode.episode.calls for scored_episode in trained],
            [scored_episode.samples for scored_episode in trained],
        )
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
        for scored_episode in scored:
            scored_episode.penalties = _compute_teacher_gap(scored_episode)
    critic_metrics: dict[str, float] = {}
    if "critic" in algorithm.needs:
        advantages, parts, critic_metrics = _compute_critic_advantages(scored, algorithm, critic)
    else:
        groups = [0 if algorithm.across_tasks else scored_episode.group for scored_episode in scored]
        advantages = _compute_reward_advantages(scored, groups, algorithm, settings.equal_rewards)
        parts = add_process_credit(
            advantages,
            [scored_episode.episode for scored_episode in scored],
            groups,
            [_locate_replies(scored_episode) for scored_episode in scored],
            algorithm,
        )
    if settings.adv_scaling != 1:
        advantages = [advantages_T * settings.adv_scaling for advantages_T in advantages]
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
    counts = [
        scored_episode.episode.uuid not in balanced and scored_episode.group not in excluded
        for scored_episode in scored
    ]
    lengths = [scored_episode.length for scored_episode, counted in zip(scored, counts, strict=True) if counted]
    weights = iter(compute_token_weights(settings.loss_aggregation, lengths, config.data.max_response_length))
    return [next(weights) if counted else 0.0 for counted in counts]


def _build_scored_episode(episode: Episode, group: int) -> _ScoredEpisode:
    """Return a scored episode with a sample for each timeline that has sampled tokens, still without advantages."""
    samples = [
        Sample(timeline, episode.uuid, group, np.zeros(timeline.ids.size, np.float32), 0.0)
        for timeline in episode.timelines
        if timeline.sampled
    ]
    return _ScoredEpisode(episode, group, samples, np.zeros(sum(sample.timeline.sampled for sample in samples)))


def _build_unscored_outcome(episode: Episode) -> Outcome:
    """Return the outcome of an episode without a score: its tokens count as untrained, by the reason."""
    tokens = episode.uncounted
    reason = "no_score" if episode.status == "completed" else "failed"
    return Outcome(untrained={reason: tokens} if tokens > 0 else {})


def _locate_replies(scored_episode: _ScoredEpisode) -> ReplyPlaces:
    """Return, for each call, where its trained tokens lie in the episode's row of trained tokens."""
    places, start = {}, 0
    for call, _, positions in list_sampled_runs(scored_episode.samples):
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
    samples = [sample for scored_episode in scored for sample in scored_episode.samples]
    policy, reference = logprobs(samples)
    gaps: dict[int, Floats] = {}
    for sample, policy_logprobs, reference_logprobs in zip(samples, policy, reference, strict=True):
        sample.reference = reference_logprobs
        gaps[id(sample)] = policy_logprobs - reference_logprobs
    for scored_episode in scored:
        scored_episode.reference_gap = gather_tokens(
            scored_episode.samples, [gaps[id(sample)] for sample in scored_episode.samples]
        )
        scored_episode.penalties = coefficient * scored_episode.reference_gap.astype(np.float64)


def _compute_teacher_gap(scored_episode: _ScoredEpisode) -> Row:
    """Return [T_e] recorded log policy - log teacher. Raise ValueError if teacher logprobs are missing."""
    gaps = []
    for index, sample_index, positions in list_sampled_runs(scored_episode.samples):
        call = scored_episode.episode.calls[index]
        # The teacher scored the reply alone, while the slice counts from the start of the sample.
        start = positions.start - call.prefix - call.suffix_ids.size
        if (
            call.teacher is None
            or np.isnan(teacher_logprobs := call.teacher[start : start + positions.stop - positions.start]).any()
        ):
            raise ValueError(f"episode {scored_episode.episode.uuid}: call {index} has no teacher logprobs")
        gaps.append(
            scored_episode.samples[sample_index].timeline.logprobs_unit[positions].astype(np.float64) - teacher_logprobs
        )
    return np.concatenate(gaps) if gaps else np.zeros(0)


def _compute_reward_advantages(
    scored: Sequence[_ScoredEpisode], groups: Sequence[int], algorithm: Algorithm, equal: float
) -> list[Row]:
    """Return [T_e] advantages per scored episode, in sampled order."""
    episodes = [scored_episode.episode for scored_episode in scored]
    rewards = shape_rewards(episodes, algorithm.settings.overlong)
    for members in index_groups(groups):
        rewards[members] = equalize_rewards(rewards[members], equal)
    with explain_failures(algorithm):
        computed = algorithm.of_episodes(
            episodes, rewards, [scored_episode.penalties for scored_episode in scored], groups
        )
        advantages = [np.array(row, np.float64) for row in computed]
    expected_shapes = [(scored_episode.length,) for scored_episode in scored]
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
    samples = [sample for scored_episode in scored for sample in scored_episode.samples]
    values_by_sample = {id(sample): row for sample, row in zip(samples, critic(samples), strict=True)}
    for sample in samples:
        sample.values = values_by_sample[id(sample)]
    rewards = shape_rewards([scored_episode.episode for scored_episode in scored], algorithm.settings.overlong)
    token_rewards = [
        compute_token_rewards(
            scored_episode.episode, float(reward), scored_episode.penalties, _locate_replies(scored_episode), algorithm
        )
        for scored_episode, reward in zip(scored, rewards, strict=True)
    ]
    for scored_episode in scored:
        scored_episode.values = gather_tokens(
            scored_episode.samples, [values_by_sample[id(sample)] for sample in scored_episode.samples]
        )
    values = [np.asarray(scored_episode.values, np.float64) for scored_episode in scored]
    advantages, returns = compute_value_advantages(algorithm, [row for row, _ in token_rewards], values)
    for scored_episode, row in zip(scored, returns, strict=True):
        for sample, returns_T in zip(
            scored_episode.samples, scatter_tokens(scored_episode.samples, row.astype(np.float32)), strict=True
        ):
            sample.returns = returns_T
    return advantages, sum(parts for _, parts in token_rewards), compute_value_metrics(values, returns)


def _find_groups_without_advantage(scored: Sequence[_ScoredEpisode], advantages: Sequence[Row]) -> set[int]:
    """Return the groups whose tokens all have advantage 0."""
    informative = {
        scored_episode.group
        for scored_episode, advantages_T in zip(scored, advantages, strict=True)
        if advantages_T.any()
    }
    return {scored_episode.group for scored_episode in scored} - informative


def _write_advantages(scored_episode: _ScoredEpisode, row: Row, weight: float) -> None:
    """Write the advantages and the weight of an episode's tokens into its samples.

    Args:
        row: the advantages [T_e] in sampled order.
        weight: the loss weight of each token.
    """
    for sample, row_T in zip(
        scored_episode.samples, scatter_tokens(scored_episode.samples, row.astype(np.float32)), strict=True
    ):
        sample.advantages, sample.weight = row_T, weight


def _compute_length_metrics(scored: Sequence[_ScoredEpisode], overlong: OverlongConfig) -> dict[str, float]:
    """Return the mean length penalty and the share of penalised episodes, {} without a penalty on length."""
    if overlong.length is None or not scored:
        return {}
    length_rewards = [
        compute_length_reward(count_sampled_tokens(scored_episode.episode), overlong) for scored_episode in scored
    ]
    return {
        "credit/overlong_penalty_mean": -float(np.mean(length_rewards)),
        "credit/overlong_fraction": float(np.mean(np.sign(length_rewards) != 0)),
    }


def _compute_credit_metrics(
    scored: Sequence[_ScoredEpisode], batch: TrainingBatch, *, has_teacher: bool
) -> dict[str, float]:
    """Return the number of samples, the mean absolute advantage, and the mean KL penalty or gap to the teacher."""
    trained = [abs(outcome.advantage) for outcome in batch.outcomes.values() if outcome.advantage is not None]
    penalties = np.concatenate([scored_episode.penalties for scored_episode in scored]) if scored else np.zeros(0)
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
    zero_reward = [episode for episode in group.scored if episode.reward == 0]
    other_reward = [episode for episode in group.scored if episode.reward != 0]
    smaller_size = min(len(zero_reward), len(other_reward))
    return {
        episode.uuid
        for attempts, surplus in ((zero_reward, BALANCE_ZERO), (other_reward, BALANCE_OTHER))
        for episode in _shuffle_episodes(group, attempts)[smaller_size + surplus :]
    }


def _shuffle_episodes(group: Group, episodes: Sequence[Episode]) -> list[Episode]:
    """Return the episodes in an order that depends on task, position and repeat only: every process draws the same."""

    def draw_order(episode: Episode) -> bytes:
        return hashlib.blake2b(f"{group.task.task_id}/{group.order}/{episode.repeat}".encode()).digest()

    return sorted(episodes, key=draw_order)
