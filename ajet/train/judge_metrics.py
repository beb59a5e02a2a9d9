"""What judging took in one play, and whether what should not matter did.

Invariant: numbers of the verdicts as they are recorded; a bias is a correlation over at least `LEAST` verdicts, and
missing where there are fewer, or nothing to correlate with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import StatisticsError, correlation, fmean

from ajet.schema.episode import Episode

LEAST = 8
"""Verdicts that a correlation is made of."""
SUMMED = ("calls", "cost", "refused", "unreadable", "disagreed")


def judge_metrics(episodes: Iterable[Episode], prefix: str) -> dict[str, float]:
    """Sums of what was spent and went wrong, means of all else that judges say of their verdicts, and biases."""
    verdicts = [episode.verdict for episode in episodes if episode.verdict is not None]
    told: dict[str, list[float]] = {}
    for verdict in verdicts:
        for name, value in verdict.metrics.items():
            told.setdefault(name, []).append(value)
    metrics = {
        f"{prefix}/judge/{name}": sum(values) if name in SUMMED else fmean(values) for name, values in told.items()
    }
    lengths = [
        (float(verdict.details["answer_chars"]), verdict.reward)
        for verdict in verdicts
        if verdict.reward is not None and isinstance(verdict.details.get("answer_chars"), int)
    ]
    places = [
        (-float(shown), float(place))
        for verdict in verdicts
        for ranking in [verdict.details.get("ranking")]
        if isinstance(ranking, dict)
        for shown, place in zip(ranking.get("shown", ()), ranking.get("places", ()), strict=False)
    ]
    if (bias := correlated(lengths)) is not None:
        metrics[f"{prefix}/judge/length_bias"] = bias
    if (bias := correlated(places)) is not None:
        metrics[f"{prefix}/judge/position_bias"] = bias
    return metrics


def correlated(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Pearson's correlation; None for too few, and where one of them is always the same."""
    if len(pairs) < LEAST:
        return None
    try:
        return correlation(*zip(*pairs, strict=True))
    except StatisticsError:
        return None
