"""A policy gradient without a ratio."""

from __future__ import annotations

import torch

from ajet.algorithm.losses.contract import PolicyLoss


class ToyLoss(PolicyLoss):
    def __call__(self, tokens):
        return -tokens.advantages * tokens.logprobs, torch.zeros_like(tokens.logprobs, dtype=torch.bool)
