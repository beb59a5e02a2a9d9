"""Estimators of KL(policy || reference) from one sampled token.

Schulman, Approximating KL Divergence (2020), http://joschu.net/blog/kl-approx.html, with d = log policy - log
reference of the sampled token: k1 = d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance),
k3 = exp(-d) - 1 + d (unbiased, never negative). Other systems' names: kl is k1, mse is k2, low_var_kl is k3; abs
is |d|, smooth below `ROUNDING` (`smooth_abs`).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "low_var_kl", "kl", "abs", "mse"]
ROUNDING = 0.01
"""Nats. Differences below it are taken for rounding: two passes over equal weights, in rows packed differently."""
LARGEST_EXPONENT = 20.0
"""Beyond it exp(-d) is held, so that one outlier token cannot make the loss infinite."""


def estimate(logprobs_T: Tensor, reference_T: Tensor, estimator: Estimator) -> Tensor:
    """[T] the estimate at each token; differentiable in `logprobs_T`. Raises ValueError for an unknown name."""
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
    """[T] |gap| - ROUNDING / 2, and gap^2 / (2 ROUNDING) up to `ROUNDING` (Huber, 1964, divided by ROUNDING).

    The derivative of |gap| is 1 or -1 however small the gap is: equal weights would get a gradient of full size from
    rounding alone. This one's is gap / ROUNDING there.
    """
    return F.smooth_l1_loss(gap_T, torch.zeros_like(gap_T), reduction="none", beta=ROUNDING)
