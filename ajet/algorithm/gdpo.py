"""GDPO: several rewards, each normalised by itself.

Group reward-Decoupled Normalization Policy Optimization, arXiv 2601.05242: for each reward n A_n = (r_n - mean(r_n))
/ std(r_n) over the attempts at one task, A = sum of w_n A_n, and A / std(A) over the batch. (The batch's mean is 0
without being subtracted, since each group's is.) Where rewards are added up before they are normalised, as in GRPO,
(1, 0) and (0, 1) are the same attempt, and the reward that varies most owns the advantage.

The rewards are what each scorer gave (`Verdict.parts`); other numbers that a scorer or a judge told are recorded only,
unless `reward_weights` names them. An attempt that has a reward and not one of these, as one that a check ended, has
its reward in its place. What its length takes away (`overlong`) is one more of them. A penalty (KL in the reward) is
centred and not normalised: its coefficient, which a normalised one would not know, says what it costs.
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
"""The name of an attempt's reward: the only one of a group in which no attempt has parts that count."""
LENGTH = "overlong"
SECTION = "ajet.trainer_common.algorithm"


class Gdpo(Grpo):
    """`reward_weights` are the w_n, 1 for a scorer that it does not name."""

    formula = (
        "A / std(A) over the batch, A the sum over the scorers n of `reward_weights` × (r_n,i − mean(r_n)) / "
        "(std(r_n) + 1e-6)"
    )
    paper = "GDPO, arXiv 2601.05242"
    needs = frozenset({"group"})

    def require_fit(self, config: AjetConfig) -> None:
        """See there."""
        weights, scorers = self.settings.reward_weights, config.task_judge.scorers
        names = [each.name.rpartition("->")[2] for each in scorers]
        for name, each in zip(names, scorers, strict=True):
            if each.weight <= 0 and name not in weights:
                raise ConfigError(
                    f"The scorer {name} has the weight {each.weight:g} in task_judge.scorers, which says nothing here: "
                    "GDPO weighs what each scorer gave after it was normalised.",
                    where=f"{SECTION}.reward_weights",
                    expected=f"the weight of {name} there, too; 0: recorded only",
                )
        if len(scorers) > 1 and not config.task_judge.stages:
            _refuse_unknown(
                [name for name in weights if name.partition("/")[0] not in {*names, TOTAL_REWARD, LENGTH}], names
            )

    def of_episodes(
        self, episodes_E: Sequence[Episode], rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]
    ) -> list[Row]:
        """Advantages over several rewards, each normalised by itself; all 0 in a group in which no reward differs."""
        weights = self.settings.reward_weights
        groups = index_groups(groups_E)
        if len(groups) > 1:  # one alone may be of a task that has other scorers
            reported = list(dict.fromkeys(name for each in episodes_E for name in _read_parts(each)))
            named = [name for name in weights if name not in (TOTAL_REWARD, LENGTH)]
            if reported and not set(named) & set(reported):
                _refuse_unknown(named, reported)
        total = np.zeros(len(episodes_E))
        for members in groups:
            for name, values in self._collect_rewards([episodes_E[index] for index in members]).items():
                compared = equalize_rewards(values, self.settings.equal_rewards)
                total[members] += weights.get(name, 1.0) * self.of_group(compared)
            charged = np.array([penalties_E_T[index].sum() for index in members])
            if charged.any():
                total[members] -= charged - charged.mean()
        if total.any():
            total /= total.std(ddof=1) + EPSILON
        return [np.full(row.size, value) for row, value in zip(penalties_E_T, total, strict=True)]

    def _collect_rewards(self, episodes_G: Sequence[Episode]) -> dict[str, Row]:
        """[k] of the attempts at one task, by their names."""
        weights, overlong = self.settings.reward_weights, self.settings.overlong
        totals = np.array([each.reward for each in episodes_G], np.float64)
        names = {
            name: None
            for each in episodes_G
            for name in _read_parts(each)
            if name in _list_scorers(each) or name in weights
        }
        rewards = {
            name: np.array([
                reward if (own := _read_parts(each).get(name)) is None else own
                for each, reward in zip(episodes_G, totals, strict=True)
            ])
            for name in names
        }  # fmt: skip
        if not rewards or TOTAL_REWARD in weights:
            rewards[TOTAL_REWARD] = totals
        if overlong.length is not None:
            rewards[LENGTH] = np.array(
                [compute_length_reward(count_sampled_tokens(each), overlong) for each in episodes_G]
            )
        return rewards


def _read_parts(episode: Episode) -> dict[str, float | None]:
    return episode.verdict.parts if episode.verdict is not None else {}


def _list_scorers(episode: Episode) -> list[str]:
    return episode.verdict.scorer.split("+") if episode.verdict is not None else []


def _refuse_unknown(unknown: Sequence[str], names: Sequence[str]) -> None:
    if unknown:
        raise UserError(
            f"No attempt has the reward {unknown[0]}.",
            where=f"{SECTION}.reward_weights",
            expected=f"some of {', '.join(names)}: what task_judge.scorers or the judge gives",
        )
