"""Log-probability and entropy of given tokens from logits, in float32, with one [C, V] buffer kept for backward.

Invariant: equal to log_softmax(logits / temperature) gathered at the targets. The caller bounds C, so that no more
than a chunk's logits exist at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        scaled = logits.float() if temperature == 1.0 else logits.float().div_(temperature)
        log_probs = torch.log_softmax(scaled, -1)
        del scaled
        chosen = log_probs.gather(1, targets[:, None]).squeeze(1)
        probs = log_probs.exp()
        entropy = -torch.linalg.vecdot(probs, log_probs)
        ctx.save_for_backward(probs, targets)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        probs, targets = ctx.saved_tensors
        scale = grads[0] / ctx.temperature
        grad = probs.neg_()
        grad.scatter_add_(1, targets[:, None], torch.ones_like(targets, dtype=grad.dtype)[:, None])
        return grad.mul_(scale[:, None]).to(ctx.dtype), None, None


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """[C] float32 logprobs of `targets` [C] under softmax(logits / temperature), logits [C, V], and the [C]
    entropies (no gradient). May be differentiated once."""
    result: tuple[Tensor, Tensor] = _TokenLogprobs.apply(logits, targets, temperature)
    return result
