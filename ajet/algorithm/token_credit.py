"""Advantages of single tokens, from process rewards and from a critic. Rows are in sampled order.

A part is a piece of an attempt with a reward of its own: a step, an agent, a tool use or a text. `add_process_credit`
compares a part with the parts of the same name in its group, the way the algorithm compares attempts. The part's
advantage, times `process_weight`, is added to the attempt's advantage at each token of the part, and to no other token.

With a critic, the last trained token gets the attempt's reward, each token its KL penalty, and the last token of each
part the part's reward times `process_weight`. Invariant: with a critic, attempts are never compared and no reward is
given twice.

`gather_tokens` and `scatter_tokens` are exact inverses on trained tokens, independent of the split of an episode into
timelines: the order is call by call, and a call's reply has a single place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ajet.algorithm.contract import Algorithm, Row
from ajet.schema.batch import Sample
from ajet.schema.call import Floats
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError

CriticFunction = Callable[[list[Sample]], list[Floats]]
"""Map samples to the critic's [T] values before each trained token."""


def compute_token_rewards(
    episode: Episode, reward: float, penalties_T: Row, places: ReplyPlaces, algorithm: Algorithm
) -> tuple[Row, int]:
    """Return [T] rewards of an episode's trained tokens for a critic, and the number of process rewards.

    Args:
        reward: reward of the attempt, given to the last token.
        penalties_T: KL penalties, subtracted from each token's reward.
        places: for each call, where its reply lies in the row.
    """
    token_rewards: Row = -np.asarray(penalties_T, np.float64)
    if not token_rewards.size:
        return token_rewards, 0
    token_rewards[-1] += reward
    parts = algorithm.parts(episode) if algorithm.settings.process_weight else ()
    for part in parts:
        span_ends = []
        for span in part.tokens:
            if span.call in places:  # other calls have no trained tokens in this episode
                reply_start, reply_stop = places[span.call]
                span_start, span_end = reply_start + span.start, min(reply_start + span.stop, reply_stop)
                if span_start < span_end:
                    span_ends.append(span_end)
        # The reward goes to the part's last trained token, as an attempt's reward goes to its last token.
        if span_ends:
            token_rewards[max(span_ends) - 1] += algorithm.settings.process_weight * part.reward
    return token_rewards, len(parts)


def compute_value_advantages(
    algorithm: Algorithm, rewards_E_T: Sequence[Row], values_E_T: Sequence[Row]
) -> tuple[list[Row], ...]:
    """Compute the advantages and the critic's target returns by the algorithm.

    Raises UserError for wrong shapes or non-finite numbers.
    """
    computed = algorithm.of_values(rewards_E_T, values_E_T)
    expected_shapes = [row.shape for row in rewards_E_T]
    converted = [[np.asarray(row, np.float64) for row in rows] for rows in computed]
    for rows in converted:
        if [row.shape for row in rows] != expected_shapes or not all(np.isfinite(row).all() for row in rows):
            raise UserError(
                f"{algorithm.name}: of_values returned advantages or returns of a wrong shape, or not finite.",
                where=f"shapes {[row.shape for row in rows][:4]} for {expected_shapes[:4]}",
                expected="two lists, advantages and returns, with a finite number for each trained token",
            )
    return tuple(converted)


def compute_value_metrics(values_E_T: Sequence[Row], returns_E_T: Sequence[Row]) -> dict[str, float]:
    """Return critic metrics over the trained tokens of a batch.

    `critic/explained_variance` is 1 - Var(return - value) / Var(return).
    """
    values = np.concatenate(values_E_T) if values_E_T else np.zeros(0)
    if not values.size:
        return {}
    returns = np.concatenate(returns_E_T)
    metrics = {"critic/value_mean": float(values.mean()), "critic/return_mean": float(returns.mean())}
    spread = float(returns.var())
    if spread > 0:
        metrics["critic/explained_variance"] = 1 - float((returns - values).var()) / spread
    return metrics


ReplyPlaces = Mapping[int, tuple[int, int]]
"""Call index to [start, stop) of the call's reply in an episode's row of trained tokens."""


def add_process_credit(
    rows: Sequence[Row],
    episodes: Sequence[Episode],
    groups_E: Sequence[int],
    places_E: Sequence[ReplyPlaces],
    algorithm: Algorithm,
) -> int:
    """Add the advantages of process rewards to `rows` in place. Return the number of process rewards.

    Args:
        rows: [T] advantages per episode, in sampled order.
        groups_E: Group ids. Equal numbers mark the same group.
        places_E: for each episode and call, where the reply lies in the row.
    """
    weight = algorithm.settings.process_weight
    if not weight:
        return 0
    parts = [(index, part) for index, episode in enumerate(episodes) for part in algorithm.parts(episode)]
    # Parts of the same kind and name within a group form a class and are compared with each other.
    class_ids: dict[tuple[int, tuple[str, str]], int] = {}
    class_of_part = [class_ids.setdefault((groups_E[index], part.compared), len(class_ids)) for index, part in parts]
    values = (
        algorithm.of_parts(np.array([part.reward for _, part in parts], np.float64), class_of_part) if parts else ()
    )
    for (index, part), value in zip(parts, values, strict=True):
        for span in part.tokens:
            if span.call in places_E[index]:  # other calls have no trained token
                start, stop = places_E[index][span.call]
                rows[index][start + span.start : min(start + span.stop, stop)] += weight * value
    return len(parts)


SampledRun = tuple[int, int, slice]
"""A contiguous run of trained tokens: call index, sample index, slice within the sample."""


def list_sampled_runs(samples: Sequence[Sample]) -> list[SampledRun]:
    """Return all contiguous runs of trained tokens of an episode's samples, in the order of its calls."""
    runs = [
        (span.call, index, slice(span.start, span.stop))
        for index, sample in enumerate(samples)
        for span in sample.timeline.spans
    ]
    return sorted(runs, key=lambda run: run[0])


def gather_tokens(samples: Sequence[Sample], rows_S_T: Sequence[npt.NDArray[np.floating]]) -> Floats:
    """Collect the trained tokens' entries from per-sample rows into one [T_e] row in sampled order.

    Args:
        samples: all samples of one episode.
        rows_S_T: for each sample a [T] row over all its tokens.
    """
    parts = [rows_S_T[sample_index][positions] for _, sample_index, positions in list_sampled_runs(samples)]
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)


def scatter_tokens(samples: Sequence[Sample], row_T: Floats) -> list[Floats]:
    """Distribute a [T_e] row of trained tokens to one [T] row per sample, 0 at other tokens.

    This is the inverse of `gather_tokens`.
    """
    rows = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
    start = 0
    for _, sample_index, positions in list_sampled_runs(samples):
        stop = start + positions.stop - positions.start
        rows[sample_index][positions] = row_T[start:stop]
        start = stop
    return rows
