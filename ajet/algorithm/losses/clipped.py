"""The clipped ratio, used by default for `policy_loss`.

PPO, arXiv 1707.06347, section 3, with the bounds of `ajet.algorithm.loss_terms`. With `old_policy: proximal` and an
importance weight the loss is decoupled PPO (Batch size-invariance for policy optimization, arXiv 2110.00641, section 3;
AReaL, arXiv 2505.24298): the ratio compares with the policy before the update, and the weight compares that policy with
the sampling policy.
"""

from __future__ import annotations

from torch import Tensor

from ajet.algorithm.loss_terms import policy_loss
from ajet.algorithm.losses.contract import LossInputs, PolicyLoss


class ClippedLoss(PolicyLoss):
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), for A < 0 at most -A clip_dual."""

    formula = "max(−A·ρ, −A·clip(ρ, 1 − clip_low, 1 + clip_high)), for A < 0 at most −A·clip_dual"
    paper = (
        "PPO, arXiv 1707.06347, section 3; DAPO's clip-higher, arXiv 2503.14476, section 3.1; dual clip, arXiv "
        "1912.09729, section 3"
    )

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, and [T] booleans, True where a bound cut off the gradient."""
        low, high, dual = self.settings.clip_low, self.settings.clip_high, self.settings.clip_dual
        return policy_loss(tokens.logprobs, tokens.old, tokens.advantages, clip_low=low, clip_high=high, clip_dual=dual)
