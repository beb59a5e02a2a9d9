"""Defines `PolicyLoss`, the interface of policy losses. Each file of the package holds one loss.

Invariant: a loss has no state between calls. The loss of a token depends only on the token's entries in `LossInputs`,
so the split of a reply into passes changes no result. `token_loss` adds importance weights, bounds on stale tokens and
KL terms.

Losses over a batch (`over_batch`) treat the tokens that reduce entropy most in another way: tokens with a high logprob
and a high advantage. The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv 2505.22617,
section 4: Cov(t) = (log p_t - mean log p) (A_t - mean A) over the trained tokens of an optimizer step. The fall of the
policy's entropy in a step follows the mean covariance. All numbers are taken before the update, so the packing of rows
does not influence the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ajet.algorithm.contract import Row

if TYPE_CHECKING:
    from torch import Tensor

    from ajet.config.schema.algorithm import AlgorithmConfig as Settings


class LossInputs(NamedTuple):
    """What a policy loss reads about T tokens. Gradients flow through `logprobs` only."""

    logprobs: Tensor
    old: Tensor
    """Logprobs of the ratio's denominator, selected by `algorithm.old_policy`."""
    advantages: Tensor
    drift: Tensor | None = None
    """The mean of present minus old logprob over the trained tokens of each token's reply. None without `over_replies`.

    The value is the logarithm of the reply's ratio, normalised by length.
    """
    chosen: Tensor | None = None
    """[T] booleans from `PolicyLoss.choose`. None without `over_batch`."""

    def require_chosen(self) -> Tensor:
        """Return `chosen`. Raise ValueError if `chosen` is None."""
        if self.chosen is None:
            raise ValueError("a loss over the batch needs the tokens chosen for the step")
        return self.chosen


class PolicyLoss:
    """Base class of losses. Subclasses write `__call__` and are named in `trainer_common.algorithm.policy_loss`."""

    formula: ClassVar[str] = ""
    """The loss of a token. Shown in the table of docs/reference/algorithms.md."""
    paper: ClassVar[str] = ""
    """The paper with the formula."""
    over_replies: ClassVar[bool] = False
    """Whether the loss reads `drift`.

    With several optimizer steps this costs the local backbone a forward pass for each step after the first. A reply is
    a contiguous run of trained tokens.
    """
    over_batch: ClassVar[bool] = False
    """Whether the loss chooses among all trained tokens of an optimizer step (local backbone only).

    The choice costs a forward pass before the optimizer step.
    """
    name: str = ""
    """The name or reference from the YAML. `make_loss` sets the value."""
    base: str = ""
    """The folder to resolve the reference against. `make_loss` sets the value."""
    made_by: Callable[[str, str, Settings], PolicyLoss]
    """The factory, called with name, base and settings. `make_loss` sets the value."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the loss by name, because other processes may not have loaded the user's file."""
        return self.made_by, (self.name, self.base, self.settings)

    def choose(self, logprobs_N: Row, advantages_N: Row, draw: np.random.Generator) -> TokenMask:
        """Select the tokens that the loss treats in another way. Return [N] booleans.

        Args:
            logprobs_N: The policy's logprobs before the training step, for all N trained tokens of an optimizer step.
            advantages_N: Their advantages.
            draw: Random generator with the same seed whenever the step is repeated.
        """
        raise NotImplementedError

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute [T] losses, and [T] booleans, True where a bound cut off the gradient.

        The losses are differentiable in `tokens.logprobs`.
        """
        raise NotImplementedError


TokenMask = npt.NDArray[np.bool_]


def compute_covariances(logprobs_N: Row, advantages_N: Row) -> Row:
    """Return [N] (log p - mean log p) (A - mean A) of the trained tokens, whose mean is their covariance.

    Tokens with large values reduce the policy's entropy most (arXiv 2505.22617, section 4).
    """
    return (logprobs_N - logprobs_N.mean()) * (advantages_N - advantages_N.mean())


def draw_between(covariances_N: Row, share: float, low: float, high: float, draw: np.random.Generator) -> TokenMask:
    """Select tokens for Clip-Cov: random ones among those with a covariance between the bounds. Return [N] booleans.

    Args:
        covariances_N: the tokens' covariances (`compute_covariances`).
        share: largest share of all N tokens.
        low: lower bound of the covariance.
        high: upper bound of the covariance.
        draw: random generator.
    """
    candidates = np.flatnonzero((covariances_N > low) & (covariances_N < high))
    is_chosen = np.zeros(covariances_N.size, np.bool_)
    is_chosen[draw.permutation(candidates)[: _count_chosen(covariances_N, share)]] = True
    return is_chosen


def select_largest(covariances_N: Row, share: float) -> TokenMask:
    """Select tokens for KL-Cov: the `share` of all N tokens with the largest covariance. Return [N] booleans."""
    is_chosen = np.zeros(covariances_N.size, np.bool_)
    is_chosen[np.argsort(-covariances_N, kind="stable")[: _count_chosen(covariances_N, share)]] = True
    return is_chosen


def _count_chosen(covariances_N: Row, share: float) -> int:
    """Return the number of tokens in a share of N tokens, at least 1 if there are any."""
    return max(1, int(share * covariances_N.size)) if covariances_N.size else 0
