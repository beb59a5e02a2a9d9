"""GSPO: the ratio of the complete reply is clipped.

Group Sequence Policy Optimization, arXiv 2507.18071, equation 5: s = exp(mean over the reply's tokens of log p - log
old), loss max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)). Written per token as in section 4.3 (GSPO-token), s_t =
sg(s) p_t / sg(p_t): with equal advantages within a reply, value and gradient equal the sequence loss, and tokens of a
reply may also have different advantages. The bounds are two orders of magnitude smaller than token bounds; the paper
uses 3e-4 and 4e-4. A reply is a single answer of the policy: each turn of a conversation has a separate ratio.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss


class GspoLoss(PolicyLoss):
    """max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high))."""

    formula = "max(−A·s, −A·clip(s, 1 − clip_low, 1 + clip_high)), s = exp(mean of log ρ over the token's reply)"
    paper = "GSPO, arXiv 2507.18071, equation 5 and section 4.3"
    over_replies = True

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses by the ratio of each token's reply, and [T] booleans, True where its bound cut off the
        gradient.
        """
        if tokens.drift is None:
            raise ValueError("GSPO needs the mean log ratio of each reply (drift)")
        # The value is the reply's ratio; the gradient is that of the token's own log-probability (GSPO-token).
        ratio = (tokens.drift + tokens.logprobs - tokens.logprobs.detach()).exp()
        unclipped = -tokens.advantages * ratio
        bounded = -tokens.advantages * ratio.clamp(1 - self.settings.clip_low, 1 + self.settings.clip_high)
        return torch.maximum(unclipped, bounded), bounded > unclipped
