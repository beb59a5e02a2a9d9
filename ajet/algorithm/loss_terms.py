"""Terms of a token's loss, as tensors: clipped policy gradient, KL estimates, a critic's squared error.

`number_replies`, `sum_by_reply` and `average_by_reply` compute statistics of complete replies. Invariant: a reply is a
contiguous run of trained tokens of a timeline, the same on every backbone, independent of the split of timelines into
rows and passes.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
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
    """Compute [T] losses, differentiable in `logprobs_T`, and [T] booleans: True where a bound cut off the gradient.

    PPO, arXiv 1707.06347, section 3: max(-A r, -A clip(r, 1 - low, 1 + high)), r the ratio of the policy to the policy
    before the update. Separate bounds: DAPO (clip-higher), arXiv 2503.14476, section 3.1. Dual clip: arXiv 1912.09729,
    section 3: where A < 0 the loss is at most -A * dual.

    With `old_T` equal to `logprobs_T` the ratio is 1, and the gradient is REINFORCE's, -A grad log p.
    """
    ratio = (logprobs_T - old_T).exp()
    unclipped = -advantages_T * ratio
    bounded = -advantages_T * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(unclipped, bounded)
    clipped = bounded > unclipped
    if clip_dual is not None:
        ceiling = -advantages_T * clip_dual
        exceeds_ceiling = (advantages_T < 0) & (loss > ceiling)
        loss = torch.where(exceeds_ceiling, ceiling, loss)
        clipped = clipped | exceeds_ceiling
    return loss, clipped


Estimator = Literal["k1", "k2", "k3", "low_var_kl", "kl", "abs", "mse"]
ROUNDING = 0.01
"""Nats. Smaller differences count as rounding between two passes over equal weights in rows packed differently."""
LARGEST_EXPONENT = 20.0
"""The largest exponent of exp(-d), so that a single outlier token cannot make the loss infinite."""


def estimate_kl(logprobs_T: Tensor, reference_T: Tensor, estimator: Estimator) -> Tensor:
    """Estimate [T] KL(policy || reference) at each token, differentiable in `logprobs_T`.

    Schulman, Approximating KL Divergence (2020), http://joschu.net/blog/kl-approx.html, with d = log policy - log
    reference of the sampled token: k1 = d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance), k3 =
    exp(-d) - 1 + d (unbiased, never negative). Other systems' names: kl is k1, mse is k2, low_var_kl is k3; abs is |d|,
    smooth below `ROUNDING` (`smooth_abs`). Raises ValueError for an unknown name.
    """
    gap = logprobs_T - reference_T
    if estimator in ("k1", "kl"):
        return gap
    if estimator in ("k2", "mse"):
        return 0.5 * gap.square()
    if estimator in ("k3", "low_var_kl"):
        return torch.exp((-gap).clamp(max=LARGEST_EXPONENT)) - 1 + gap
    if estimator == "abs":
        return smooth_abs(gap)
    raise ValueError(f"unknown KL estimator {estimator!r}")


def smooth_abs(gap_T: Tensor) -> Tensor:
    """Compute [T] |gap| - ROUNDING / 2, and gap^2 / (2 ROUNDING) up to `ROUNDING` (Huber, 1964, divided by ROUNDING).

    The derivative of |gap| is 1 or -1 for every gap except 0, so rounding between equal weights would cause a full-size
    gradient. Below `ROUNDING` the derivative of `smooth_abs` is gap / ROUNDING.
    """
    return F.smooth_l1_loss(gap_T, torch.zeros_like(gap_T), reduction="none", beta=ROUNDING)


def value_loss(values_T: Tensor, old_T: Tensor, returns_T: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Compute [T] losses, differentiable in `values_T`, and [T] booleans: True where the bound cut off the gradient.

    PPO as implemented since OpenAI's baselines (The 37 Implementation Details of PPO, 2022, detail 9) and in verl: 0.5
    max((v - R)^2, (clip(v, v_old - c, v_old + c) - R)^2), R the return, c = `critic.cliprange_value`.

    Args:
        old_T: The values before the update.
    """
    loss = (values_T - returns_T) ** 2
    if clip is None:
        return 0.5 * loss, torch.zeros_like(loss, dtype=torch.bool)
    clipped = (torch.minimum(torch.maximum(values_T, old_T - clip), old_T + clip) - returns_T) ** 2
    return 0.5 * torch.maximum(loss, clipped), clipped.detach() > loss.detach()


def number_replies(mask_T: Tensor) -> Tensor:
    """Return [..., T] the number of the reply to which each token in `mask_T` belongs.

    A reply is a run of consecutive trained tokens of one row. Values outside the mask have no meaning.
    """
    previous_mask = torch.zeros_like(mask_T)
    previous_mask[..., 1:] = mask_T[..., :-1]
    begins_reply = (mask_T & ~previous_mask).reshape(-1)
    return begins_reply.long().cumsum(0).reshape(mask_T.shape)


def sum_by_reply(values_K: Tensor, replies_K: Tensor) -> Tensor:
    """Return [K] per trained token: the sum over its reply."""
    _, reply_index = torch.unique(replies_K, return_inverse=True)
    totals = torch.zeros(
        int(reply_index.max()) + 1 if reply_index.numel() else 0, dtype=values_K.dtype, device=values_K.device
    )
    return totals.index_add(0, reply_index, values_K)[reply_index]


def average_by_reply(values_K: Tensor, replies_K: Tensor) -> Tensor:
    """Return [K] per trained token: the mean over its reply."""
    return sum_by_reply(values_K, replies_K) / sum_by_reply(torch.ones_like(values_K), replies_K)
