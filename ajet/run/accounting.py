"""Where every sampled token went, and the numbers of a step that people look at.

Invariant: sampled = trained + the sum over the reasons, for every episode of every step; a difference is a bug in
ajet and stops the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from ajet.schema.batch import TrainingBatch
from ajet.schema.episode import Episode, Group, UntrainedReason


def check_tokens(groups: Sequence[Group], batch: TrainingBatch) -> None:
    """Raises AssertionError, naming the episode, when a sampled token is neither trained nor counted."""
    trained = Counter[str]()
    for sample in batch.samples:
        trained[sample.episode] += sample.timeline.sampled
    for group in groups:
        for episode in group.episodes:
            counted = sum(episode.untrained.values())
            assert episode.sampled_tokens == trained[episode.uuid] + counted, (
                f"episode {episode.uuid}: sampled {episode.sampled_tokens} tokens, trained {trained[episode.uuid]}, "
                f"counted {dict(episode.untrained)}"
            )


def count_discarded(groups: Iterable[Group], reason: UntrainedReason = "oversampled") -> None:
    """Groups that are not trained on, because the batch had no room for them or they are `stale`: their sampled tokens
    are counted as such."""
    for group in groups:
        for episode in group.episodes:
            left = episode.sampled_tokens - sum(episode.untrained.values())
            if left:
                episode.untrained[reason] += left


def episode_metrics(episodes: Iterable[Episode], prefix: str) -> dict[str, float]:
    """Reward, success, failures by boundary, forks by reason, lengths: averages over the episodes of one play."""
    episodes = list(episodes)
    scored = [episode for episode in episodes if episode.scored]
    calls = [call for episode in episodes for call in episode.calls]
    metrics: dict[str, float] = {
        f"{prefix}/episodes": len(episodes),
        f"{prefix}/scored": len(scored),
        f"{prefix}/failed": sum(episode.status == "failed" for episode in episodes),
        f"{prefix}/aborted": sum(episode.status == "aborted" for episode in episodes),
        f"{prefix}/no_score": sum(e.status == "completed" and e.reward is None for e in episodes),
        f"{prefix}/calls": len(calls),
        f"{prefix}/sampled_tokens": sum(episode.sampled_tokens for episode in episodes),
        f"{prefix}/forks": sum(call.fork is not None for call in calls),
    }
    if scored:
        metrics[f"{prefix}/reward"] = fmean(episode.reward or 0.0 for episode in scored)
        judged = [e.verdict.success for e in scored if e.verdict is not None and e.verdict.success is not None]
        if judged:
            metrics[f"{prefix}/success_rate"] = fmean(judged)
        metrics[f"{prefix}/reply_tokens"] = fmean(episode.sampled_tokens for episode in scored)
        metrics[f"{prefix}/turns"] = fmean(len(episode.calls) for episode in scored)
    for boundary, count in Counter(e.failure.boundary for e in episodes if e.failure).items():
        metrics[f"{prefix}/failed/{boundary}"] = count
    for fork, count in Counter(call.fork for call in calls if call.fork).items():
        metrics[f"{prefix}/fork_rate/{fork}"] = count / len(calls)
    for check, count in Counter(check for e in episodes for check in e.checks).items():
        metrics[f"{prefix}/checks/{check}"] = count
    for reason, count in sum((episode.untrained for episode in episodes), Counter[str]()).items():
        metrics[f"{prefix}/untrained/{reason}"] = count
    own: dict[str, list[float]] = {}
    for episode in scored:
        for name, value in episode.metrics.items():
            own.setdefault(name, []).append(value)
    metrics.update({f"{prefix}/workflow/{name}": fmean(values) for name, values in own.items()})
    return metrics


def staleness_metrics(episodes: Iterable[Episode], version: int) -> dict[str, float]:
    """How many policy versions lie between the weights that sampled what is trained on and the present ones."""
    lows = [run.low for e in episodes if e.scored for call in e.calls if call.trained for run in call.versions]
    if not lows:
        return {}
    return {"train/staleness_max": version - min(lows), "train/staleness_mean": version - fmean(lows)}


def pass_metrics(groups: Sequence[Group], prefix: str) -> dict[str, float]:
    """pass@n (any attempt of a task succeeds) and all@n (every attempt does), over groups with a judged success."""
    rows = [[bool(e.verdict and e.verdict.success) for e in group.scored] for group in groups]
    rows = [row for row in rows if row]
    n = max((len(row) for row in rows), default=0)
    if n < 2:
        return {}
    return {f"{prefix}/pass@{n}": fmean(any(row) for row in rows), f"{prefix}/all@{n}": fmean(all(row) for row in rows)}
