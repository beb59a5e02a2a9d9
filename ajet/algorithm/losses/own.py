"""OwnLoss: wraps `Algorithm.policy_loss` as a `PolicyLoss`, used if the key `policy_loss` is null."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ajet.algorithm.losses.contract import LossInputs, PolicyLoss

if TYPE_CHECKING:
    from ajet.algorithm.contract import Algorithm


class OwnLoss(PolicyLoss):
    """The loss defined by a user's algorithm. Built-in algorithms use the clipped ratio."""

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__(algorithm.settings)
        self.algorithm = algorithm

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return OwnLoss, (self.algorithm,)

    def __call__(self, tokens: LossInputs) -> tuple[Tensor, Tensor]:
        """Compute the losses by the algorithm's own `policy_loss`."""
        return self.algorithm.policy_loss(tokens.logprobs, tokens.old, tokens.advantages)
