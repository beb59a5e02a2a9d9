"""On-policy distillation: the advantage of a sampled token is the teacher's logprob minus the policy's.

GKD, arXiv 2306.13649, with lambda = 1 and the reverse KL; On-Policy Distillation, Thinking Machines, 2025. A_t = weight
(log teacher_t - log p_t), both at temperature 1 and constants in the gradient. In expectation over the policy's samples
at a position, the gradient of -A_t log p_t equals the gradient of KL(policy || teacher) there. The effect of a token on
later positions is ignored (a discount of 0, as in both papers). With `reward_weight` c above 0, each token also gets c
times GRPO's advantage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ajet.algorithm.contract import Row
from ajet.algorithm.grpo import Grpo
from ajet.schema.episode import Group


class Distillation(Grpo):
    """Trains the policy towards a teacher's distribution. `penalties_E_T` holds log policy - log teacher."""

    formula = "of its token t: `weight` × (log π_teacher − log π), plus `reward_weight` × that of `grpo`"
    paper = "GKD, arXiv 2306.13649; [Thinking Machines, 2025](https://thinkingmachines.ai/blog/on-policy-distillation/)"
    needs = frozenset({"teacher"})

    def advantages(self, rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]) -> list[Row]:
        """Return the weighted gap log teacher - log policy per token. A single attempt at a task is enough."""
        teacher = self.settings.teacher
        gaps = [-np.asarray(penalties, np.float64) for penalties in penalties_E_T]
        if teacher.bound is not None:
            gaps = [np.clip(row, -teacher.bound, teacher.bound) for row in gaps]
        if not teacher.reward_weight:
            return [teacher.weight * row for row in gaps]
        reward_rows = super().advantages(rewards_E, [np.zeros_like(row) for row in gaps], groups_E)
        return [
            teacher.weight * row + teacher.reward_weight * reward_row
            for row, reward_row in zip(gaps, reward_rows, strict=True)
        ]

    def learns_from(self, group: Group) -> bool:
        """Return True for a group with a scored attempt. Equal rewards do not matter: the teacher judges each token."""
        return bool(group.scored)
