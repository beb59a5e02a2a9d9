"""GKD: the divergence to a teacher over the complete vocabulary, or over the teacher's likeliest tokens.

Generalized Knowledge Distillation, arXiv 2306.13649, equation 4 with lambda = 1 and the reverse KL. At each sampled
position of every turn the loss is weight * sum over v of p(v) (log p(v) - log q(v)), p the policy and q the teacher,
with a gradient to every token of the vocabulary. `distillation` estimates the same from the sampled token alone.

With `teacher.top_k` = k the sum is over the teacher's k likeliest tokens and the remainder of the vocabulary as one
token. This is at most the full divergence, and equal to it where p and q agree in proportion on the remainder. Without
the remainder the sum could be lowered by moving probability out of the k tokens. With `reward_weight` c above 0, each
token also has c times GRPO's advantage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ajet.algorithm.contract import Row
from ajet.algorithm.grpo import Grpo
from ajet.schema.episode import Group

if TYPE_CHECKING:
    from torch import Tensor


class Gkd(Grpo):
    """Trains the policy towards a teacher's distribution at every sampled position."""

    formula = (
        "`reward_weight` × that of `grpo`; and the loss `weight` × KL(π, π_teacher) over the vocabulary, or the "
        "teacher's `top_k` tokens and the remainder as one"
    )
    paper = "GKD, arXiv 2306.13649, equation 4"
    needs = frozenset({"distribution"})

    def advantages(self, rewards_E: Row, penalties_E_T: Sequence[Row], groups_E: Sequence[int]) -> list[Row]:
        """Return the advantages of the rewards, 0 without `reward_weight`."""
        weight = self.settings.teacher.reward_weight
        if not weight:
            return [np.zeros(penalties.size) for penalties in penalties_E_T]
        return [weight * row for row in super().advantages(rewards_E, penalties_E_T, groups_E)]

    def learns_from(self, group: Group) -> bool:
        """Return True for every group with a scored attempt, because the teacher has a distribution for all."""
        return bool(group.scored)


def compute_reverse_kl(policy_T_V: Tensor, teacher_T_V: Tensor, top_k: int | None) -> Tensor:
    """Return [T] KL(policy || teacher), differentiable in the policy's logits.

    Args:
        policy_T_V: The policy's logits.
        teacher_T_V: The teacher's logits.
        top_k: Number of the teacher's tokens that count separately. None: all.
    """
    policy_logprobs, teacher_logprobs = policy_T_V.float().log_softmax(-1), teacher_T_V.float().log_softmax(-1)
    if top_k is not None and top_k < policy_logprobs.shape[-1]:
        ids = teacher_logprobs.topk(top_k, -1).indices
        policy_logprobs, teacher_logprobs = (
            _join_remainder(policy_logprobs, ids),
            _join_remainder(teacher_logprobs, ids),
        )
    return (policy_logprobs.exp() * (policy_logprobs - teacher_logprobs)).sum(-1)


def _join_remainder(logprobs_T_V: Tensor, ids_T_K: Tensor) -> Tensor:
    """Return [T, K + 1] log-probabilities of the given tokens, and of all other tokens together."""
    import torch

    remainder = logprobs_T_V.scatter(-1, ids_T_K, float("-inf")).logsumexp(-1, keepdim=True)
    return torch.cat([logprobs_T_V.gather(-1, ids_T_K), remainder], -1)
