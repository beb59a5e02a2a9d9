"""GDPO: each of several rewards is normalised separately.

Group reward-Decoupled Normalization Policy Optimization, arXiv 2601.05242: for each reward n, A_n = (r_n - mean(r_n)) /
std(r_n) over the attempts at a task, A = sum of w_n A_n, and A / std(A) over the batch. (The mean over the batch is 0
without subtraction, because each group's mean is 0.) If rewards are summed before normalisation, as in GRPO, the
rewards (1, 0) and (0, 1) are indistinguishable, and the reward with the largest variance dominates the advantage.

The rewards are the outputs of each scorer (`Verdict.parts`). Other numbers reported by a scorer or judge are only
recorded, unless `reward_weights` names them. If an attempt lacks a scorer's reward, for example because a check ended
the attempt, its total reward is used instead. The length penalty (`overlong`) is a further reward. KL penalties are
centred but not normalised: normalisation would cancel their coefficient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ajet.algorithm.contract import Row, compute_length_reward, count_sampled_tokens, equalize_rewards, index_groups
from ajet.algorithm.grpo import EPSILON, Grpo
from ajet.schema.episode import Episode
from ajet.schema.errors import ConfigError, UserError

if TYPE_CHECKING:
    from ajet.config import AjetConfig

TOTAL_REWARD = "reward"
"""Name of an attempt's total reward. Groups without counted parts use the total reward alone."""
LENGTH = "overlong"
SECTION = "ajet.trainer_common.algorithm"


class Gdpo(Grpo):
    """Normalise each scorer's reward separately, and sum them with `reward_weights` (1 by default)."""

    formula = (
        "A / std(A) over the batch, A the sum over the scorers n of `reward_weights` × (r_n,i − mean(r_n)) / "
        "(std(r_n) + 1e-6)"
    )
    paper = "GDPO, arXiv 2601.05242"
    needs = frozenset({"group"})

    def require_fit(self, config: AjetConfig) -> None:
        """Raise ConfigError for conflicting scorer weights, and UserError for unknown names in `reward_weights`."""
        weights, scorers = self.settings.reward_weights, config.task_judge.scorers
        names = [scorer.name.rpartition("->")[2] for scorer in scorers]
        for name, scorer in zip(names, scorers, strict=True):
            if scorer.weight <= 0 and name not in weights:
                raise ConfigError(
                    f"The scorer {name} has the weight {scorer.weight:g} in task_judge.scorers, which GDPO ignores: "
                    "GDPO weighs the normalised rewards of the scorers.",
                    where=f"{SECTION}.reward_weights",
                    expected=f"a weight for {name} in this setting; 0: recorded only",
                )
        if len(scorers) > 1 and not config.task_judge.stages:
            _refuse_unknown(
                [name for name in weights if name.partition("/")[0] not in {*names, TOTAL_REWARD, LENGTH}], names
            )

    def of_episodes(
        self, episodes_E: Sequence[Episode], rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]
    ) -> list[Row]:
        """Return advantages over several separately normalised rewards. A group with equal rewards gets 0."""
        weights = self.settings.reward_weights
        groups = index_groups(groups_E)
        if len(groups) > 1:  # a single group may belong to a task with other scorers
            reported = list(dict.fromkeys(name for episode in episodes_E for name in _read_parts(episode)))
            named_parts = [name for name in weights if name not in (TOTAL_REWARD, LENGTH)]
            if reported and not set(named_parts) & set(reported):
                _refuse_unknown(named_parts, reported)
        total = np.zeros(len(episodes_E))
        for members in groups:
            for name, values in self._collect_rewards([episodes_E[index] for index in members]).items():
                values_G = equalize_rewards(values, self.settings.equal_rewards)
                total[members] += weights.get(name, 1.0) * self.of_group(values_G)
            penalty_sums = np.array([penalties_E_T[index].sum() for index in members])
            if penalty_sums.any():
                total[members] -= penalty_sums - penalty_sums.mean()
        if total.any():
            total /= total.std(ddof=1) + EPSILON
        return [np.full(row.size, value) for row, value in zip(penalties_E_T, total, strict=True)]

    def _collect_rewards(self, episodes_G: Sequence[Episode]) -> dict[str, Row]:
        """Return the [k] rewards of the attempts at a task, by reward name.

        Counted are the parts of scorers and those named in `reward_weights`. An attempt without a part has its total
        reward there.
        """
        weights, overlong = self.settings.reward_weights, self.settings.overlong
        totals = np.array([episode.reward for episode in episodes_G], np.float64)
        names = {
            name: None
            for episode in episodes_G
            for name in _read_parts(episode)
            if name in _list_scorers(episode) or name in weights
        }
        rewards = {
            name: np.array([
                reward if (part_reward := _read_parts(episode).get(name)) is None else part_reward
                for episode, reward in zip(episodes_G, totals, strict=True)
            ])
            for name in names
        }  # fmt: skip
        if not rewards or TOTAL_REWARD in weights:
            rewards[TOTAL_REWARD] = totals
        if overlong.length is not None:
            rewards[LENGTH] = np.array(
                [compute_length_reward(count_sampled_tokens(episode), overlong) for episode in episodes_G]
            )
        return rewards


def _read_parts(episode: Episode) -> dict[str, float | None]:
    """Return the parts of an episode's reward by name, None for a part without a score."""
    return episode.verdict.parts if episode.verdict is not None else {}


def _list_scorers(episode: Episode) -> list[str]:
    """Return the names of the scorers that judged an episode, joined by "+" in its verdict."""
    return episode.verdict.scorer.split("+") if episode.verdict is not None else []


def _refuse_unknown(unknown: Sequence[str], names: Sequence[str]) -> None:
    """Raise UserError if `reward_weights` has a name that no attempt can have. `names` are the possible ones."""
    if unknown:
        raise UserError(
            f"Attempts have no reward named {unknown[0]}.",
            where=f"{SECTION}.reward_weights",
            expected=f"some of {', '.join(names)}: the scorers of task_judge.scorers or the numbers of the judge",
        )
