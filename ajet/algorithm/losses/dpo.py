"""DPO: the chosen reply of a pair becomes likelier than the rejected one, measured from the reference model.

Direct Preference Optimization, arXiv 2305.18290, equation 7, with the conservative variant of Mitchell (A note on DPO
with noisy preferences & relationship to IPO, 2023): with h = beta ((log p_c - log ref_c) - (log p_r - log ref_r)), each
the sum over a reply's tokens, and e = `label_smoothing`, the loss of a pair is -(1 - e) log s(h) - e log s(-h). Its
derivative by log p_c is -slope, by log p_r +slope, with slope = beta (s(-h) - e), so that its gradient is that of
-A log p of each token (`sft`) with A = slope for the chosen reply and -slope for the rejected one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ajet.algorithm.contract import Row


class PairLosses(NamedTuple):
    """Shapes: [P]."""

    loss: Row
    slope: Row
    """How much the loss falls for each nat by which the chosen reply gets likelier."""
    margin: Row
    """h: above 0 the policy prefers the chosen one more than the reference model does."""


@dataclass(frozen=True, slots=True)
class DpoLoss:
    """The loss of pairs."""

    beta: float
    label_smoothing: float = 0.0

    def __call__(self, chosen_P: Row, rejected_P: Row) -> PairLosses:
        """The loss of P pairs, from each reply's sum of log p - log ref in nats."""
        margin = self.beta * (chosen_P - rejected_P)
        wrong = self.label_smoothing
        loss = (1 - wrong) * np.logaddexp(0.0, -margin) + wrong * np.logaddexp(0.0, margin)
        slope = self.beta * (np.exp(-np.logaddexp(0.0, margin)) - wrong)
        return PairLosses(loss, slope, margin)
