"""Distributions of the gaps between recorded and recomputed log-probabilities.

Invariant: the allowed gap is measured: `Noise` is the distance of one forward pass from itself under another
computation. A mean beyond its standard error, or a quantile beyond the noise, is a problem even if every single gap is
small. A spoiled record cannot widen its own allowance much: its spread counts only up to a multiple of the noise. A
quantile beyond less than one token is not checked; single tokens have their own tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

QUANTILES = (0.5, 0.9, 0.99)
LEAST_TOKENS = 20
"""Minimum tokens of a distribution."""
SIGMAS = 5.0
"""Allowed standard errors of a mean from 0."""
WIDER = 4.0
"""Allowed multiple of the noise: engine and trainer both round, and their attention kernels differ."""
FLOOR = {"float32": 5e-4, "bfloat16": 5e-3}
"""Allowed nats without measured noise: a machine may repeat itself bit for bit."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """The gaps between two computations of the same log-probabilities."""

    gaps: Doubles  # [N] absolute, ascending, nats

    @property
    def deviation(self) -> float:
        """Return the root mean square of the gaps, nats."""
        return float(np.sqrt(np.mean(self.gaps**2))) if self.gaps.size else 0.0

    def quantile(self, share: float) -> float:
        """Return the gap not exceeded by `share` of the tokens, nats."""
        return float(np.quantile(self.gaps, share)) if self.gaps.size else 0.0


def measure_noise(*differences: Doubles) -> Noise:
    """Return the noise of several recomputations [N] of the same tokens: the widest at each rank."""
    ordered = [np.sort(np.abs(each)) for each in differences]
    return Noise(np.max(ordered, axis=0)) if ordered else Noise(np.zeros(0))


@dataclass(frozen=True, slots=True)
class Spread:
    """Gaps of one step between recorded and recomputed log-probabilities, with the allowed limits, in nats."""

    tokens: int
    mean: float
    error: float  # standard error of `mean`
    mean_allowed: float
    quantiles: tuple[float, ...]
    """Quantiles of the absolute gaps, at QUANTILES."""
    quantiles_allowed: tuple[float, ...]

    @property
    def problem(self) -> str | None:
        """The first limit exceeded by the gaps, in words; None if within the limits."""
        if abs(self.mean) > self.mean_allowed:
            return f"the mean gap is {self.mean:.2g} ± {self.error:.1g} nats (at most {self.mean_allowed:.2g})"
        for share, found, allowed in zip(QUANTILES, self.quantiles, self.quantiles_allowed, strict=True):
            if found > allowed:
                return f"the gap at the {share:.0%} quantile is {found:.2g} nats (at most {allowed:.2g})"
        return None


def measure_spread(gaps: Doubles, noise: Noise, floor: float, *, scale: float = 1.0) -> Spread | None:
    """Return the distribution of `gaps` [N] (recorded - recomputed), or None for too few tokens. `scale`: factor on the
    noise (measured at temperature 1) for another temperature."""
    if gaps.size < LEAST_TOKENS:
        return None
    deviation = scale * noise.deviation
    own = float(gaps.std())
    believed = max(1.5 * deviation, min(own, WIDER * deviation))
    bias = 2 * deviation**2  # of two rounded models, the one that sampled a token finds it likelier
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
