"""Tokens that are not trained because the policy has gone as far as the bound already: AgentRL's.

With r the ratio that the loss refers to, A the advantage: a token is left out where A > 0 and r > 1 + clip_high c d, or
A < 0 and r < 1 - clip_low c d (AgentCPM-Explore, AgentRL/src/training, 2026; the asymmetric mask of MiniRL, arXiv
2512.01374, section 2). c is `importance_weight_cap_ratio`; d is 1 / c with `strict_in_bound`, else exp(-age *
out_of_date_decay): the older the weights that sampled the token, the closer to 1 the bounds. The token's weight in
the mean stays: what is left out adds 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ajet.config.schema.algorithm import Algorithm as Settings


@dataclass(frozen=True, slots=True)
class StaleBounds:
    """The two bounds of a ratio."""

    clip_low: float
    clip_high: float
    ratio: float
    strict: bool
    decay: float | None

    @classmethod
    def from_settings(cls, settings: Settings) -> StaleBounds | None:
        """The bounds that the settings ask for; None: no token is left out."""
        ratio = settings.importance_weight_cap_ratio
        if ratio is None:
            return None
        bounds = settings.clip_low, settings.clip_high
        return cls(*bounds, ratio, settings.strict_in_bound, settings.out_of_date_decay)

    @property
    def by_age(self) -> bool:
        """Whether the bounds depend on the tokens' ages, so that `ages_T` is read."""
        return self.decay is not None and not self.strict

    def outside(self, logratio_T: Tensor, advantages_T: Tensor, ages_T: Tensor | None) -> Tensor:
        """[T] booleans: the tokens that are left out. `ages_T`: policy versions between the weights that sampled each
        token and those that are updated. Raises ValueError where it lacks."""
        width: Tensor | float = 1.0 if self.strict else self.ratio
        if self.by_age:
            if ages_T is None:
                raise ValueError("bounds that narrow with age need each token's age")
            assert self.decay is not None
            width = self.ratio * torch.exp(-self.decay * ages_T.clamp(min=0).to(logratio_T.dtype))
        ratio = logratio_T.exp()
        above = (advantages_T > 0) & (ratio > 1 + self.clip_high * width)
        return above | ((advantages_T < 0) & (ratio < 1 - self.clip_low * width))
