"""Credit of tokens beyond the attempt's own: of parts of an attempt, and by a critic; rows in sampled order.

`add_process_credit`: a part (a step, an agent, a use of a tool or a text) is compared with the parts of its group that
have the same name, by the algorithm itself, as attempts are compared with each other; its advantage, times
`process_weight`, is added to each of its tokens, on top of the attempt's, and no other token is touched. With a critic
an attempt is given its reward at its last trained token, less the KL penalties of each, and, times `process_weight`,
the rewards of its parts at the last token of each. Invariant: nothing is compared between attempts then, and nothing is
given twice. `gather_tokens` and `scatter_tokens` undo each other on trained tokens, bit for bit, however an episode is
cut into timelines: the order is call by call, and a call's reply has one place.
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
"""Samples to the critic's [T] values before each of their trained tokens."""


def compute_token_rewards(
    episode: Episode, reward: float, penalties_T: Row, places: ReplyPlaces, algorithm: Algorithm
) -> tuple[Row, int]:
    """[T] the reward of each trained token, in sampled order, and how many parts of the episode had one."""
    row: Row = -np.asarray(penalties_T, np.float64)
    if not row.size:
        return row, 0
    row[-1] += reward
    parts = algorithm.parts(episode) if algorithm.settings.process_weight else ()
    for part in parts:
        spans = [(*places[span.call], span) for span in part.tokens if span.call in places]
        ends = [
            min(start + span.stop, stop) for start, stop, span in spans if span.start < min(span.stop, stop - start)
        ]
        if ends:  # else none of its tokens is trained
            row[max(ends) - 1] += algorithm.settings.process_weight * part.reward
    return row, len(parts)


def compute_value_advantages(
    algorithm: Algorithm, rewards_E_T: Sequence[Row], values_E_T: Sequence[Row]
) -> tuple[list[Row], ...]:
    """The advantages and the returns that the algorithm says. Raises UserError for some that are none."""
    computed = algorithm.of_values(rewards_E_T, values_E_T)
    expected_shapes = [row.shape for row in rewards_E_T]
    converted = [[np.asarray(row, np.float64) for row in rows] for rows in computed]
    for rows in converted:
        if [row.shape for row in rows] != expected_shapes or not all(np.isfinite(row).all() for row in rows):
            raise UserError(
                f"{algorithm.name}: of_values gave advantages or returns that no episode can be trained with.",
                where=f"shapes {[row.shape for row in rows][:4]} for {expected_shapes[:4]}",
                expected="two lists: of advantages and of returns, a finite number for each trained token",
            )
    return tuple(converted)


def compute_value_metrics(values_E_T: Sequence[Row], returns_E_T: Sequence[Row]) -> dict[str, float]:
    """Over the trained tokens of a batch. `critic/explained_variance`: 1 - Var(return - value) / Var(return)."""
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
"""Where each call's reply lies, [start, stop) of an episode's row of trained tokens, by the call's number."""


def add_process_credit(
    rows: Sequence[Row],
    episodes: Sequence[Episode],
    groups_E: Sequence[int],
    places_E: Sequence[ReplyPlaces],
    algorithm: Algorithm,
) -> int:
    """Adds to `rows` ([T] per episode, in the order of its trained tokens) and returns how many parts there were. Equal
    numbers in `groups_E` mark one group."""
    weight = algorithm.settings.process_weight
    if not weight:
        return 0
    parts = [(index, part) for index, episode in enumerate(episodes) for part in algorithm.parts(episode)]
    classes: dict[tuple[int, tuple[str, str]], int] = {}
    marks = [classes.setdefault((groups_E[index], part.compared), len(classes)) for index, part in parts]
    values = algorithm.of_parts(np.array([part.reward for _, part in parts], np.float64), marks) if parts else ()
    for (index, part), value in zip(parts, values, strict=True):
        for span in part.tokens:
            if span.call in places_E[index]:  # else none of the call's tokens is trained
                start, stop = places_E[index][span.call]
                rows[index][start + span.start : min(start + span.stop, stop)] += weight * value
    return len(parts)


SampledRun = tuple[int, int, slice]
"""Trained tokens with nothing between them: their call, which sample they are in, and where."""


def list_sampled_runs(samples: Sequence[Sample]) -> list[SampledRun]:
    """The sampled runs of one episode's samples, in the order of its calls."""
    runs = [
        (span.call, at, slice(span.start, span.stop))
        for at, sample in enumerate(samples)
        for span in sample.timeline.spans
    ]
    return sorted(runs, key=lambda run: run[0])


def gather_tokens(samples: Sequence[Sample], rows_S_T: Sequence[npt.NDArray[np.floating]]) -> Floats:
    """[T_e] what `rows_S_T`, [T] for each sample of one episode, say of its trained tokens."""
    parts = [rows_S_T[at][where] for _, at, where in list_sampled_runs(samples)]
    return np.concatenate(parts).astype(np.float32) if parts else np.zeros(0, np.float32)


def scatter_tokens(samples: Sequence[Sample], row_T: Floats) -> list[Floats]:
    """The other way: [T] for each sample, 0 where nothing was trained."""
    rows = [np.zeros(sample.timeline.ids.size, np.float32) for sample in samples]
    start = 0
    for _, at, where in list_sampled_runs(samples):
        stop = start + where.stop - where.start
        rows[at][where] = row_T[start:stop]
        start = stop
    return rows
