"""PolicyLoss: the loss of a token, all else given. One class a file.

Invariant: it keeps nothing between two calls, and the loss of one token depends on what `LossInputs` holds of it alone:
how a reply is cut into passes changes nothing. Importance weights, bounds on stale tokens and KL terms are
`token_loss`'s.

Losses over a batch choose the tokens that take the entropy away, those whose logprob and advantage are high together.
The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, arXiv 2505.22617, section 4: Cov(t) =
(log p_t - mean log p) (A_t - mean A) over the trained tokens of an optimizer step; the fall of the policy's entropy in
a step goes with its mean. Numbers are those from before the update, so that a choice does not depend on how rows are
packed.
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
    """Shapes: [T]. Only `logprobs` is to be differentiated."""

    logprobs: Tensor
    old: Tensor
    """Of the policy that the ratio refers to: `algorithm.old_policy`."""
    advantages: Tensor
    drift: Tensor | None = None
    """Of each token's reply, the mean over its trained tokens of the present logprob less the old one: the logarithm of
    the reply's ratio, normalised by its length. None where the loss does not ask for it (`over_replies`)."""
    chosen: Tensor | None = None
    """[T] booleans: which ones `PolicyLoss.choose` chose. None where the loss does not choose (`over_batch`)."""

    def require_chosen(self) -> Tensor:
        """Raises ValueError where nothing was chosen from."""
        if self.chosen is None:
            raise ValueError("a loss that chooses among the tokens of a batch needs all of them")
        return self.chosen


class PolicyLoss:
    """Subclass it, write `__call__`, and name the class in `trainer_common.algorithm.policy_loss`."""

    formula: ClassVar[str] = ""
    """The loss of a token: a cell of the table in docs/reference/algorithms.md."""
    paper: ClassVar[str] = ""
    """The source of the formula."""
    over_replies: ClassVar[bool] = False
    """Whether it reads `drift`, which with several optimizer steps costs one more forward pass for each but the first
    on the local backbone. A reply is a run of trained tokens with nothing between them."""
    over_batch: ClassVar[bool] = False
    """Whether it chooses among all trained tokens of an optimizer step, which costs a forward pass before it (on the
    local backbone only)."""
    name: str = ""
    """As the YAML has it: a name or a reference. Written by whoever opens it."""
    base: str = ""
    """The folder that the reference is relative to; likewise."""
    made_by: Callable[[str, str, Settings], PolicyLoss]
    """What makes it anew of name, base and settings; likewise."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the loss as its name, as an algorithm is."""
        return self.made_by, (self.name, self.base, self.settings)

    def choose(self, logprobs_N: Row, advantages_N: Row, draw: np.random.Generator) -> TokenMask:
        """[N] of all trained tokens of an optimizer step, with the policy's logprobs from before the training step.
        `draw`: the same for the same step."""
        raise NotImplementedError

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """[T] losses, differentiable in `tokens.logprobs`, and [T] booleans: where a bound cut the gradient off."""
        raise NotImplementedError


TokenMask = npt.NDArray[np.bool_]


def compute_covariances(logprobs_N: Row, advantages_N: Row) -> Row:
    """[N] of each trained token."""
    return (logprobs_N - logprobs_N.mean()) * (advantages_N - advantages_N.mean())


def draw_between(covariances_N: Row, share: float, low: float, high: float, draw: np.random.Generator) -> TokenMask:
    """Clip-Cov: of the tokens between the bounds some by chance, `share` of all N of them at most."""
    candidates = np.flatnonzero((covariances_N > low) & (covariances_N < high))
    chosen = np.zeros(covariances_N.size, np.bool_)
    chosen[draw.permutation(candidates)[: _count_chosen(covariances_N, share)]] = True
    return chosen


def select_largest(covariances_N: Row, share: float) -> TokenMask:
    """KL-Cov: the first ones where they are ranked, `share` of all N of them."""
    chosen = np.zeros(covariances_N.size, np.bool_)
    chosen[np.argsort(-covariances_N, kind="stable")[: _count_chosen(covariances_N, share)]] = True
    return chosen


def _count_chosen(covariances_N: Row, share: float) -> int:
    return max(1, int(share * covariances_N.size)) if covariances_N.size else 0
