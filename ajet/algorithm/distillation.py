"""On-policy distillation: what a teacher thinks of each token that the policy itself sampled is that token's advantage.

GKD, arXiv 2306.13649, with lambda = 1 and the reverse KL; On-Policy Distillation, Thinking Machines, 2025.
A_t = weight (log teacher_t - log p_t), both at temperature 1 and constants in the gradient. The derivative of
-A_t log p_t is, over what the policy samples in a place, that of KL(policy || teacher) there; what a token does to
later places is left out (a discount of 0, as in both). With `reward_weight` c above 0, c times GRPO's advantage is
added to each token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.algorithm.contract import Row
from ajet.algorithm.grpo import Grpo
from ajet.schema.episode import Group


class Distillation(Grpo):
    """The penalties that it is given are log p - log teacher."""

    formula = "of its token t: `weight` × (log π_teacher − log π), plus `reward_weight` × that of `grpo`"
    paper = "GKD, arXiv 2306.13649; [Thinking Machines, 2025](https://thinkingmachines.ai/blog/on-policy-distillation/)"
    needs = frozenset({"teacher"})

    def advantages(self, rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]) -> list[Row]:
        """A token's log-probability by the teacher less that by the policy, weighted. One attempt a task is enough."""
        teacher = self.settings.teacher
        gaps = [-np.asarray(penalties, np.float64) for penalties in penalties_E_T]
        if teacher.bound is not None:
            gaps = [np.clip(row, -teacher.bound, teacher.bound) for row in gaps]
        if not teacher.reward_weight:
            return [teacher.weight * row for row in gaps]
        compared = super().advantages(rewards_E, [np.zeros_like(row) for row in gaps], groups_E)
        return [teacher.weight * row + teacher.reward_weight * own for row, own in zip(gaps, compared, strict=True)]

    def learns_from(self, group: Group) -> bool:
        """A teacher has something to say of any attempt."""
        return bool(group.scored)
