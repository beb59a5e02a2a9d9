"""GDPO: several rewards, each normalised by itself.

Group reward-Decoupled Normalization Policy Optimization, arXiv 2601.05242: for each reward n A_n = (r_n - mean(r_n))
/ std(r_n) over the attempts at one task, A = sum of w_n A_n, and A / std(A) over the batch. (The batch's mean is 0
without being subtracted, since each group's is.) Where rewards are added up before they are normalised, as in GRPO,
(1, 0) and (0, 1) are the same attempt, and the reward that varies most owns the advantage.

The rewards are what each scorer of `task_judge.scorers` gave (`Verdict.parts`); an attempt that has a reward and no
parts, as one that a check ended, has it in each. A penalty (KL in the reward) is one more of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.algorithm.contract import Row, members_of, without_rounding
from ajet.algorithm.grpo import EPSILON, Grpo
from ajet.schema.episode import Episode
from ajet.schema.errors import UserError

WHOLE = "reward"
"""The name of the only reward, where no attempt has parts."""


class Gdpo(Grpo):
    """`reward_weights` are the w_n, 1 where none is named."""

    needs = frozenset({"group"})

    def of_episodes(
        self, episodes_E: Sequence[Episode], rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]
    ) -> list[Row]:
        """All 0 in a group in which no reward differs."""
        total = np.zeros(len(episodes_E))
        for name, values in self._rewards(episodes_E, rewards_E).items():
            for members in members_of(groups_E):
                told = without_rounding(values[members], self.settings.equal_rewards)
                total[members] += self.settings.reward_weights.get(name, 1.0) * self.of_group(told)
        charged = -np.array([penalties.sum() for penalties in penalties_E_T])
        for members in members_of(groups_E):
            total[members] += self.of_group(charged[members])
        if total.any():
            total /= total.std(ddof=1) + EPSILON
        return [np.full(row.size, value) for row, value in zip(penalties_E_T, total, strict=True)]

    def _rewards(self, episodes_E: Sequence[Episode], rewards_E: Row) -> dict[str, Row]:
        parts = [each.verdict.parts if each.verdict is not None else {} for each in episodes_E]
        names = list(dict.fromkeys(name for each in parts for name in each))
        unknown = sorted(set(self.settings.reward_weights) - {*names, WHOLE})
        if unknown and names:
            raise UserError(
                f"No attempt has the reward {unknown[0]}.",
                where="ajet.trainer_common.algorithm.reward_weights",
                expected=f"some of {', '.join(names)}: the names in task_judge.scorers",
            )
        if not names:
            return {WHOLE: rewards_E}
        lengths = rewards_E - np.array([each.reward for each in episodes_E], np.float64)
        found = {
            name: np.array([
                whole if (own := told.get(name)) is None else own
                for told, whole in zip(parts, rewards_E, strict=True)
            ])
            for name in names
        }  # fmt: skip
        return {**found, "length": lengths} if lengths.any() else found
