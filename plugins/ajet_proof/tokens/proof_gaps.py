"""Gaps: how far the recorded log-probabilities of many tokens lie from recomputed ones, as a distribution.

Invariant: what two honest programs may differ by is measured, not assumed: `Noise` is how far the same forward pass
lies from itself when it is computed otherwise. A mean that its error does not explain, or a quantile beyond what the
noise's own allows, is a problem however small each single token's gap is; a spoiled record cannot widen its own
allowance by much, since its spread counts only up to a multiple of the noise. A quantile that fewer than one token lies
beyond is no distribution: of a single token its own tolerance speaks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

QUANTILES = (0.5, 0.9, 0.99)
LEAST_TOKENS = 20
"""Tokens below which nothing is said of a distribution."""
SIGMAS = 5.0
"""Standard errors that a mean may lie from nothing."""
WIDER = 4.0
"""How many times the noise engine and trainer may differ: both round, and an engine attends in other kernels."""
FLOOR = {"float32": 5e-4, "bfloat16": 5e-3}
"""Nats that are allowed where no noise was measured: a machine may repeat itself bit for bit."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """The gaps between two computations of the same log-probabilities."""

    gaps: Doubles
    """[N] absolute, ascending, nats."""

    @property
    def deviation(self) -> float:
        """Root of the mean square, nats."""
        return float(np.sqrt(np.mean(self.gaps**2))) if self.gaps.size else 0.0

    def quantile(self, share: float) -> float:
        """The gap that `share` of the tokens do not exceed, nats."""
        return float(np.quantile(self.gaps, share)) if self.gaps.size else 0.0


def measure_noise(*differences: Doubles) -> Noise:
    """The noise of several kinds of recomputation: at each rank the widest kind's. Each [N], of the same tokens."""
    ordered = [np.sort(np.abs(each)) for each in differences]
    return Noise(np.max(ordered, axis=0)) if ordered else Noise(np.zeros(0))


@dataclass(frozen=True, slots=True)
class Spread:
    """The gaps of one step's log-probabilities beside what is allowed, in nats."""

    tokens: int
    mean: float
    error: float
    """Standard error of `mean`."""
    mean_allowed: float
    quantiles: tuple[float, ...]
    """Of the absolute gaps, at QUANTILES."""
    quantiles_allowed: tuple[float, ...]

    @property
    def problem(self) -> str | None:
        """The gap that rounding cannot explain, in words; None where there is none."""
        if abs(self.mean) > self.mean_allowed:
            return f"the mean gap is {self.mean:.2g} ± {self.error:.1g} nats (at most {self.mean_allowed:.2g})"
        for share, found, allowed in zip(QUANTILES, self.quantiles, self.quantiles_allowed, strict=True):
            if found > allowed:
                return f"the gap that {share:.0%} of the tokens keep to is {found:.2g} nats (at most {allowed:.2g})"
        return None


def measure_spread(gaps: Doubles, noise: Noise, floor: float, *, scale: float = 1.0) -> Spread | None:
    """The distribution of `gaps` [N] (recorded - recomputed); None for too few. `scale`: what a temperature makes of
    the noise, which is measured at 1."""
    if gaps.size < LEAST_TOKENS:
        return None
    deviation = scale * noise.deviation
    own = float(gaps.std())
    believed = max(1.5 * deviation, min(own, WIDER * deviation))
    bias = 2 * deviation**2  # what is sampled from one of two rounded models is likelier under that one
    root = math.sqrt(gaps.size)
    ranks = [min(1.0, share + 3 * math.sqrt(share * (1 - share)) / root) for share in QUANTILES]
    allowed = (floor + WIDER * scale * noise.quantile(rank) for rank in ranks)
    return Spread(
        tokens=int(gaps.size),
        mean=float(gaps.mean()),
        error=own / root,
        mean_allowed=floor + bias + SIGMAS * believed / root,
        quantiles=tuple(float(np.quantile(np.abs(gaps), share)) for share in QUANTILES),
        quantiles_allowed=tuple(
            most if gaps.size * (1 - share) >= 1 else math.inf for share, most in zip(QUANTILES, allowed, strict=True)
        ),
    )
