"""DPO: raise the likelihood of a pair's chosen reply over the rejected reply, relative to the reference model.

Direct Preference Optimization, arXiv 2305.18290, equation 7, with the conservative variant of Mitchell (A note on DPO
with noisy preferences & relationship to IPO, 2023). With h = beta ((log p_c - log ref_c) - (log p_r - log ref_r)), each
term the sum over a reply's tokens, and e = `label_smoothing`, the loss of a pair is -(1 - e) log s(h) - e log s(-h).
The derivative by log p_c is -slope, by log p_r +slope, with slope = beta (s(-h) - e). The gradient therefore equals the
gradient of -A log p per token (`sft`) with A = slope for the chosen reply and -slope for the rejected reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ajet.algorithm.contract import Row


class PairLosses(NamedTuple):
    """Losses of P pairs. Shapes: [P]."""

    loss: Row
    slope: Row
    """Decrease of the loss per nat of log-probability gained by the chosen reply."""
    margin: Row
    """h. Above 0 the policy prefers the chosen reply more than the reference model does."""


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """The DPO loss of reply pairs."""

    beta: float
    label_smoothing: float = 0.0

    def __call__(self, chosen_P: Row, rejected_P: Row) -> PairLosses:
        """Compute the loss of P pairs from each reply's sum of log p - log ref in nats."""
        margin = self.beta * (chosen_P - rejected_P)
        smoothing = self.label_smoothing
        loss = (1 - smoothing) * np.logaddexp(0.0, -margin) + smoothing * np.logaddexp(0.0, margin)
        slope = self.beta * (np.exp(-np.logaddexp(0.0, margin)) - smoothing)
        return PairLosses(loss, slope, margin)
