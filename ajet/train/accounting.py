"""Count the tokens of a step, and compute the metrics of its episodes.

Invariants: for every episode of every step, sampled = trained + the sum over the reasons. A difference is a bug in ajet
and stops the run. A success rate covers all attempts except failures of ajet itself, so an agent cannot improve its
rate by failing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import StatisticsError, correlation, fmean
from typing import TYPE_CHECKING

from loguru import logger

from ajet.context_tracker import snaps
from ajet.record.held_out import Measurement
from ajet.record.intervals import half_width, wilson
from ajet.rollout.checks import find_wrong_toolcall
from ajet.schema.episode import NO_OUTCOME, Episode, Group, Outcome, list_episodes

if TYPE_CHECKING:
    from ajet.config.schema.data import ContextTrackerConfig


def check_tokens(episodes: Iterable[Episode], outcomes: Mapping[str, Outcome], trained: Mapping[str, int]) -> None:
    """Raise AssertionError with the episode's name if a sampled token is neither trained nor counted."""
    for episode in episodes:
        counted = episode.untrained_with(outcomes.get(episode.uuid, NO_OUTCOME))
        trained_tokens = trained.get(episode.uuid, 0)
        assert episode.sampled_tokens == trained_tokens + sum(counted.values()), (
            f"episode {episode.uuid}: sampled {episode.sampled_tokens} tokens, trained {trained_tokens}, "
            f"counted {dict(counted)}"
        )


def episode_metrics(
    episodes: Iterable[Episode], prefix: str, outcomes: Mapping[str, Outcome] | None = None
) -> dict[str, float]:
    """Return reward, success, failures by boundary, forks by reason and lengths of episodes.

    Success covers all episodes except failures of ajet itself. The other averages cover scored episodes.

    Args:
        prefix: First part of the metrics' names, such as "train/".
        outcomes: What the step's update did with each episode, by uuid. None: no update, as in a validation.
    """
    episodes = list(episodes)
    scored = [episode for episode in episodes if episode.scored]
    calls = [call for episode in episodes for call in episode.calls]
    metrics: dict[str, float] = {
        f"{prefix}/episodes": len(episodes),
        f"{prefix}/scored": len(scored),
        f"{prefix}/failed": sum(episode.status == "failed" for episode in episodes),
        f"{prefix}/aborted": sum(episode.status == "aborted" for episode in episodes),
        f"{prefix}/no_score": sum(episode.status == "completed" and episode.reward is None for episode in episodes),
        f"{prefix}/calls": len(calls),
        f"{prefix}/sampled_tokens": sum(episode.sampled_tokens for episode in episodes),
        f"{prefix}/forks": sum(call.fork is not None for call in calls),
    }
    if scored:
        metrics[f"{prefix}/reward"] = fmean(episode.reward or 0.0 for episode in scored)
        metrics[f"{prefix}/reply_tokens"] = fmean(episode.sampled_tokens for episode in scored)
        metrics[f"{prefix}/turns"] = fmean(sum(call.is_delivered for call in episode.calls) for episode in scored)
    counted = [episode for episode in episodes if not episode.left_out]
    if len(counted) < len(episodes):
        metrics[f"{prefix}/left_out"] = len(episodes) - len(counted)
    if _knows_success(counted):
        metrics[f"{prefix}/success_rate"] = fmean(episode.succeeded for episode in counted)
    for boundary, count in Counter(episode.failure.boundary for episode in episodes if episode.failure).items():
        metrics[f"{prefix}/failed/{boundary}"] = count
    if cut_replies := sum(call.is_cut for call in calls):
        metrics[f"{prefix}/cut_replies"] = cut_replies
    for fork, count in Counter(call.fork for call in calls if call.fork).items():
        metrics[f"{prefix}/fork_rate/{fork}"] = count / len(calls)
    for check, count in Counter(check for episode in episodes for check in episode.checks).items():
        metrics[f"{prefix}/checks/{check}"] = count
    untrained = (episode.untrained_with((outcomes or {}).get(episode.uuid, NO_OUTCOME)) for episode in episodes)
    for reason, count in sum(untrained, Counter[str]()).items():
        metrics[f"{prefix}/untrained/{reason}"] = count
    metrics.update(_scorer_metrics(episodes, prefix))
    workflow_values = _collect_values(episode.metrics for episode in scored)
    metrics.update({f"{prefix}/workflow/{name}": fmean(values) for name, values in workflow_values.items()})
    return metrics | judge_metrics(episodes, prefix)


def _scorer_metrics(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Return how many episodes each choice of scorers had, and the mean of each scorer's scores."""
    verdicts = [episode.verdict for episode in episodes if episode.verdict is not None and episode.verdict.scorer]
    metrics: dict[str, float] = {}
    for name, count in Counter(verdict.scorer for verdict in verdicts).items():
        metrics[f"{prefix}/scored_by/{name}"] = count
    for name in dict.fromkeys(name for verdict in verdicts for name in verdict.parts):
        scores = [score for verdict in verdicts if (score := verdict.parts.get(name)) is not None]
        if scores:
            metrics[f"{prefix}/scorer/{name}"] = fmean(scores)
    return metrics


def _knows_success(counted: Sequence[Episode]) -> bool:
    """Return True if a success rate has a meaning: an episode was judged for success, or all episodes failed."""
    judged = any(episode.verdict is not None and episode.verdict.success is not None for episode in counted)
    return judged or (bool(counted) and all(episode.failure is not None for episode in counted))


def pass_metrics(groups: Sequence[Group], prefix: str) -> dict[str, float]:
    """Return pass@n (some attempt at a task succeeds) and all@n (every attempt succeeds).

    n is the largest number of counted attempts at a task. Only tasks with n counted attempts enter: fewer attempts
    would lower pass@n and raise all@n.
    """
    successes_by_task = _list_successes(groups)
    n = len(successes_by_task[0]) if successes_by_task else 0
    if n < 2:
        return {}
    return {
        f"{prefix}/pass@{n}": fmean(map(any, successes_by_task)),
        f"{prefix}/all@{n}": fmean(map(all, successes_by_task)),
    }


def _list_successes(groups: Sequence[Group]) -> list[list[bool]]:
    """Return one list per task with the success of each counted attempt.

    Tasks with fewer counted attempts than the task with most are omitted.
    """
    successes_by_task = [[episode.succeeded for episode in group.episodes if not episode.left_out] for group in groups]
    longest = max(map(len, successes_by_task), default=0)
    return [successes for successes in successes_by_task if len(successes) == longest > 0]


def interval_metrics(groups: Sequence[Group], prefix: str) -> dict[str, float]:
    """Return 95 % intervals of success rate, pass@n and reward.

    The sample size is the number of tasks: attempts at the same task are not independent.
    """
    metrics: dict[str, float] = {}
    counted = [episode for episode in list_episodes(groups) if not episode.left_out]
    tasks = sum(any(not episode.left_out for episode in group.episodes) for group in groups)
    if _knows_success(counted):
        low, high = wilson(fmean(episode.succeeded for episode in counted), tasks)
        metrics[f"{prefix}/success_low"], metrics[f"{prefix}/success_high"] = low, high
    for name, rate in pass_metrics(groups, prefix).items():
        metrics[f"{name}_low"], metrics[f"{name}_high"] = wilson(rate, len(_list_successes(groups)))
    means = [fmean(episode.reward or 0.0 for episode in group.scored) for group in groups if group.scored]
    error = half_width(means)
    if error is not None:
        metrics[f"{prefix}/reward_error"] = error
    return metrics


def group_by_order(episodes: Iterable[Episode]) -> list[Group]:
    """Return one group per task for episodes in any order, sorted by the position in the training order."""
    groups: dict[int, Group] = {}
    for episode in episodes:
        groups.setdefault(episode.order, Group(episode.task, episode.order, [])).episodes.append(episode)
    return [groups[order] for order in sorted(groups)]


def validation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics of a validation with a group per task."""
    metrics = episode_metrics(list_episodes(groups), "validation") | pass_metrics(groups, "validation")
    metrics |= interval_metrics(groups, "validation")
    metrics["validation/tasks"] = len(groups)
    return metrics


def measurement_of(groups: Sequence[Group]) -> Measurement:
    """Return the rewards of a validation in the form that is compared with other validations."""
    attempts: dict[str, tuple[float | None, ...]] = {}
    for group in groups:
        rewards = [episode.reward if episode.scored else None for episode in group.episodes if not episode.left_out]
        if rewards:
            attempts[group.task.task_id] = (*attempts.get(group.task.task_id, ()), *rewards)
    episodes = list_episodes(groups)
    return Measurement(attempts, sum(episode.left_out for episode in episodes) / max(1, len(episodes)))


LEAST = 8
"""Minimum number of verdicts for a correlation."""
SUMMED = ("calls", "cost", "refused", "unreadable", "disagreed")


def judge_metrics(episodes: Iterable[Episode], prefix: str) -> dict[str, float]:
    """Return sums of judge costs and errors, means of all other reported numbers, and biases.

    A bias is a correlation over at least `LEAST` verdicts. With fewer verdicts or a constant side, the bias is missing.
    """
    verdicts = [episode.verdict for episode in episodes if episode.verdict is not None]
    reported = _collect_values(verdict.metrics for verdict in verdicts)
    metrics = {
        f"{prefix}/judge/{name}": sum(values) if name in SUMMED else fmean(values) for name, values in reported.items()
    }
    length_pairs = [
        (float(verdict.details["answer_chars"]), verdict.reward)
        for verdict in verdicts
        if verdict.reward is not None and isinstance(verdict.details.get("answer_chars"), int)
    ]
    position_pairs = [
        (-float(rank), float(true_rank))
        for verdict in verdicts
        for ranking in [verdict.details.get("ranking")]
        if isinstance(ranking, dict)
        for rank, true_rank in zip(ranking.get("shown", ()), ranking.get("places", ()), strict=False)
    ]
    if (bias := correlate(length_pairs)) is not None:
        metrics[f"{prefix}/judge/length_bias"] = bias
    if (bias := correlate(position_pairs)) is not None:
        metrics[f"{prefix}/judge/position_bias"] = bias
    return metrics


def _collect_values(rows: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the values of all mappings by name."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return values


def correlate(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation, or None for too few pairs or a constant side."""
    if len(pairs) < LEAST:
        return None
    try:
        return correlation(*zip(*pairs, strict=True))
    except StatisticsError:
        return None


def log_formats(episodes: Iterable[Episode], settings: ContextTrackerConfig) -> None:
    """Warn of calls that fork instead of extending a call, and of tool calls of a wrong form.

    The settings `detect_timeline_snap` and `log_tool_format_check` switch the two warnings on.
    """
    for episode in episodes:
        name = f"task {episode.task.task_id}, attempt {episode.repeat}"
        if settings.detect_timeline_snap:
            for snap in snaps(episode.calls):
                logger.warning("{}: {}", name, snap)
        if settings.log_tool_format_check:
            for call in episode.calls:
                reply = episode.messages[call.reply] if call.reply is not None else {}
                rules = find_wrong_toolcall(reply)
                if rules:
                    detail = f": {reply}" if settings.log_tool_format_error_detail else ""
                    logger.warning(
                        "{}: the tool call in model call {} has an invalid form ({}){}", name, call.index, rules, detail
                    )
