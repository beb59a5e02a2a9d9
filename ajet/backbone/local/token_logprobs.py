"""Log-probability and entropy of given tokens from logits, in float32, with one [C, V] buffer kept for backward.

Invariant: equal to log_softmax(logits / temperature) gathered at the targets. The caller bounds C, so that no more
than a chunk's logits exist at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 8
"""How many rows of log-probabilities are kept beside their exponentials for the entropy."""


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        if temperature == 1.0:
            table = torch.log_softmax(logits, -1, dtype=torch.float32)
        else:
            table = torch.log_softmax(logits.float().div_(temperature), -1)
        chosen = table.gather(1, targets[:, None]).squeeze(1)
        entropy = torch.empty_like(chosen)
        for rows, out in zip(table.split(ROWS), entropy.split(ROWS), strict=True):
            log_probs = rows.clone()
            torch.linalg.vecdot(rows.exp_(), log_probs, out=out)
        entropy.neg_()
        ctx.save_for_backward(table, targets)
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


def truncated_logprobs(
    logits: Tensor, targets: Tensor, temperature: float, top_p: float, top_k: int, *, slack: float
) -> tuple[Tensor, Tensor]:
    """[C] float32 the lowest and the highest logprob that `targets` [C] can have under softmax(logits / temperature)
    cut by top-k, then top-p, where rounding may move the mass at top-p's border by `slack`. `top_k` -1 and `top_p` 1
    do not truncate. No gradient."""
    table = torch.log_softmax(logits.float() / temperature, -1)
    chosen = table.gather(1, targets[:, None]).squeeze(1)
    ordered = table.sort(-1, descending=True).values
    if 0 < top_k < ordered.shape[1]:
        ordered = ordered[:, :top_k]
    share = ordered.softmax(-1)
    before = share.cumsum(-1) - share
    bounds = []
    for mass in (top_p + slack, top_p - slack):
        outside = before >= mass if top_p < 1 else torch.zeros_like(before, dtype=torch.bool)
        outside[:, 0] = False
        bounds.append(chosen - ordered.masked_fill(outside, float("-inf")).logsumexp(-1))
    return bounds[0], bounds[1]
