"""Estimators of KL(policy || reference) from one sampled token.

Schulman, Approximating KL Divergence (2020), http://joschu.net/blog/kl-approx.html, with d = log policy - log
reference of the sampled token: k1 = d (unbiased, may be negative), k2 = d^2 / 2 (biased, low variance),
k3 = exp(-d) - 1 + d (unbiased, never negative). Other systems' names: kl is k1, mse is k2, low_var_kl is k3; abs
is |d|.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3", "low_var_kl", "kl", "abs", "mse"]
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
        return gap.abs()
    raise ValueError(f"unknown KL estimator {estimator!r}")
