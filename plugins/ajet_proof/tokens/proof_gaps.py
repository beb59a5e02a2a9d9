"""Judges the distribution of the gaps (differences) between recorded and recomputed log-probabilities.

Invariant: the allowed gap is measured: `Noise` is how far one forward pass differs from itself when it is computed in
another way. A mean beyond its standard error, or a quantile beyond the noise, is a problem even if every single gap is
small. Wrong recorded values cannot raise their own limit much: their spread counts only up to a multiple of the noise.
A quantile above which less than one token lies is not checked; single tokens have their own tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

QUANTILES = (0.5, 0.9, 0.99)
LEAST_TOKENS = 20
"""Minimum number of tokens for which a distribution is judged."""
SIGMAS = 5.0
"""Allowed distance of a mean gap from 0, in standard errors."""
WIDER = 4.0
"""Allowed multiple of the noise: engine and trainer both round, and their attention kernels differ."""
FLOOR = {"float32": 5e-4, "bfloat16": 5e-3}
"""Gap in nats that is always allowed, because a machine may repeat a computation bit for bit, with noise 0."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noise:
    """The gaps between two computations of the same log-probabilities."""

    gaps: Doubles  # [N] absolute, ascending, nats

    @property
    def deviation(self) -> float:
        """Root mean square of the gaps, in nats."""
        return float(np.sqrt(np.mean(self.gaps**2))) if self.gaps.size else 0.0

    def quantile(self, share: float) -> float:
        """Return the gap in nats that the fraction `share` of the tokens does not exceed."""
        return float(np.quantile(self.gaps, share)) if self.gaps.size else 0.0


def measure_noise(*differences: Doubles) -> Noise:
    """Combine several recomputations of the same N tokens into one noise.

    The gaps of each are sorted, and the largest is taken at each rank.

    Args:
        differences: differences of each recomputation from the first computation, [N].
    """
    ordered = [np.sort(np.abs(difference)) for difference in differences]
    return Noise(np.max(ordered, axis=0)) if ordered else Noise(np.zeros(0))


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of one step's gaps between recorded and recomputed log-probabilities, with their limits, in nats."""

    tokens: int
    mean: float
    error: float  # standard error of `mean`
    mean_allowed: float
    quantiles: tuple[float, ...]
    """Quantiles of the absolute gaps, at QUANTILES."""
    quantiles_allowed: tuple[float, ...]

    @property
    def problem(self) -> str | None:
        """The first limit exceeded by the gaps, in words. None if within the limits."""
        if abs(self.mean) > self.mean_allowed:
            return f"the mean gap is {self.mean:.2g} ± {self.error:.1g} nats (at most {self.mean_allowed:.2g})"
        for share, measured, allowed in zip(QUANTILES, self.quantiles, self.quantiles_allowed, strict=True):
            if measured > allowed:
                return f"the gap at the {share:.0%} quantile is {measured:.2g} nats (at most {allowed:.2g})"
        return None


def measure_spread(gaps: Doubles, noise: Noise, floor: float, *, scale: float = 1.0) -> Spread | None:
    """Compute the statistics of gaps and their limits.

    Args:
        gaps: Recorded minus recomputed log-probabilities, [N].
        noise: Numerical noise, measured at temperature 1.
        floor: Gap in nats that is always allowed.
        scale: Factor on the noise for another temperature.

    Returns:
        None if there are too few tokens.
    """
    if gaps.size < LEAST_TOKENS:
        return None
    deviation = scale * noise.deviation
    own_deviation = float(gaps.std())
    # Wrong values widen the spread of the gaps, so it counts only up to a multiple of the noise.
    credible_deviation = max(1.5 * deviation, min(own_deviation, WIDER * deviation))
    bias = 2 * deviation**2  # of two rounded models, the one that sampled a token finds it likelier
    sqrt_tokens = math.sqrt(gaps.size)
    # With N tokens a quantile is known to about sqrt(share * (1 - share) / N): compare with a higher one of the noise.
    ranks = [min(1.0, share + 3 * math.sqrt(share * (1 - share)) / sqrt_tokens) for share in QUANTILES]
    quantile_limits = (floor + WIDER * scale * noise.quantile(rank) for rank in ranks)
    return Spread(
        tokens=int(gaps.size),
        mean=float(gaps.mean()),
        error=own_deviation / sqrt_tokens,
        mean_allowed=floor + bias + SIGMAS * credible_deviation / sqrt_tokens,
        quantiles=tuple(float(np.quantile(np.abs(gaps), share)) for share in QUANTILES),
        quantiles_allowed=tuple(
            limit if gaps.size * (1 - share) >= 1 else math.inf
            for share, limit in zip(QUANTILES, quantile_limits, strict=True)
        ),
    )
