"""SAPO: a soft gate replaces clipping.

Soft Adaptive Policy Optimization, arXiv 2511.20347, section 3: -A f(r), f(r) = 4 / tau * sigmoid(tau (r - 1)), with tau
= `tau_positive` where A > 0, else `tau_negative`. At r = 1 the gradient is REINFORCE's. With growing distance the
gradient fades, faster for a larger tau.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss


class SapoLoss(PolicyLoss):
    """-A 4 / tau sigmoid(tau (r - 1)). No gradient is cut off."""

    formula = "−A·(4/τ)·σ(τ(ρ − 1)), τ is `tau_positive` where A > 0, else `tau_negative`"
    paper = "SAPO, arXiv 2511.20347, section 3"

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, and [T] booleans, all False: the gate lets gradients fade instead of cutting them off."""
        ratio = (tokens.logprobs - tokens.old).exp()
        positive = torch.full_like(ratio, self.settings.tau_positive)
        tau = torch.where(tokens.advantages > 0, positive, self.settings.tau_negative)
        gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
        return -tokens.advantages * gate, torch.zeros_like(ratio, dtype=torch.bool)
