"""GSPO: the ratio that is clipped is that of the whole reply.

Group Sequence Policy Optimization, arXiv 2507.18071, equation 5: s = exp(mean over the reply's tokens of log p -
log old), loss max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)). Written for each token as its section 4.3 has it
(GSPO-token), s_t = sg(s) p_t / sg(p_t): with one advantage a reply its value and gradient are those of the sequence's
loss, and tokens of one reply may have different advantages. Its bounds are two orders smaller than those of tokens; the
paper's are 3e-4 and 4e-4. A reply is one answer of the policy: in a talk of several turns each has a ratio of its own.
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
        if tokens.drift is None:
            raise ValueError("the ratio of a reply needs the mean of its logprobs")
        ratio = (tokens.drift + tokens.logprobs - tokens.logprobs.detach()).exp()
        free = -tokens.advantages * ratio
        bounded = -tokens.advantages * ratio.clamp(1 - self.settings.clip_low, 1 + self.settings.clip_high)
        return torch.maximum(free, bounded), bounded > free
