"""Which tokens of a batch take the entropy away: those whose logprob and advantage are high together.

The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv 2505.22617, section 4: Cov(t) =
(log p_t - mean log p) (A_t - mean A) over the trained tokens of an optimizer step; the fall of the policy's entropy in
a step goes with its mean. Numbers are those from before the update, so that a choice does not hang on how rows are
packed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ajet.algorithm.contract import Row

Chosen = npt.NDArray[np.bool_]


def covariances(logprobs_N: Row, advantages_N: Row) -> Row:
    """[N] of each trained token."""
    return (logprobs_N - logprobs_N.mean()) * (advantages_N - advantages_N.mean())


def some_between(covariances_N: Row, share: float, low: float, high: float, draw: np.random.Generator) -> Chosen:
    """Clip-Cov: of the tokens between the bounds some by chance, `share` of all N of them at most."""
    there = np.flatnonzero((covariances_N > low) & (covariances_N < high))
    chosen = np.zeros(covariances_N.size, np.bool_)
    chosen[draw.permutation(there)[: _count(covariances_N, share)]] = True
    return chosen


def largest(covariances_N: Row, share: float) -> Chosen:
    """KL-Cov: the first ones where they are ranked, `share` of all N of them."""
    chosen = np.zeros(covariances_N.size, np.bool_)
    chosen[np.argsort(-covariances_N, kind="stable")[: _count(covariances_N, share)]] = True
    return chosen


def _count(covariances_N: Row, share: float) -> int:
    return max(1, int(share * covariances_N.size)) if covariances_N.size else 0
