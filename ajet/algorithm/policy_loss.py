"""The clipped policy gradient of one token.

PPO, arXiv 1707.06347, section 3: max(-A r, -A clip(r, 1 - low, 1 + high)), r the ratio of the policy to the one
before the update. Separate bounds: DAPO (clip-higher), arXiv 2503.14476, section 3.1. Dual clip: arXiv 1912.09729,
section 3: where A < 0 the loss is at most -A * dual.
"""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(
    logprobs_T: Tensor,
    old_T: Tensor,
    advantages_T: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    clip_dual: float | None = None,
) -> tuple[Tensor, Tensor]:
    """[T] losses, differentiable in `logprobs_T`, and [T] booleans: where a bound cut the gradient off.

    With `old_T` equal to `logprobs_T` the ratio is 1 and the gradient is that of REINFORCE, -A grad log p.
    """
    ratio = (logprobs_T - old_T).exp()
    free = -advantages_T * ratio
    bounded = -advantages_T * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(free, bounded)
    clipped = bounded > free
    if clip_dual is not None:
        ceiling = -advantages_T * clip_dual
        beyond = (advantages_T < 0) & (loss > ceiling)
        loss = torch.where(beyond, ceiling, loss)
        clipped = clipped | beyond
    return loss, clipped
