"""WeightedTokens: computes the loss of Trinity's rows as a weighted sum over trained tokens (DESIGN decision 8).

Invariant: loss and gradient of a step depend on its trained tokens alone, not on rows, micro batches, processes or
padding: the engine sums micro batches and averages gradients over processes, so a process's sum is multiplied by their
number. The loss of a token is `ajet.algorithm.token_loss`, as on every backbone. There is one optimizer step per batch,
so the policy before the update is the present one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from trinity.algorithm.policy_loss_fn.policy_loss_fn import PolicyLossFn

from ajet.algorithm import open_algorithm
from ajet.algorithm.loss_terms import number_replies
from ajet.algorithm.token_loss import TokenLoss, TokenLossTerms
from ajet_trinity.processes.here import load_context


class _WeightedLoss(PolicyLossFn):
    def __init__(self, backend: str = "verl") -> None:
        """Read the run's settings from the environment, and build the token loss of its algorithm."""
        super().__init__(backend=backend)
        experiment = load_context().experiment
        algorithm = open_algorithm(experiment.ajet, base=experiment.base)
        self._tokens = TokenLoss.from_settings(experiment.ajet.trainer_common, algorithm)

    def __call__(self, logprob: Tensor, **kwargs: Any) -> tuple[Tensor, dict[str, Any]]:
        """Compute the loss. Trinity reads the needed fields from the signature, so each subclass has its own."""
        raise NotImplementedError

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Return no default arguments. Trinity requires the method."""
        return {}

    def _sum_loss(
        self,
        logprob: Tensor,
        engine: Tensor,
        mask: Tensor,
        advantages: Tensor,
        weights: Tensor,
        reference: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the loss of a micro-batch.

        All tensors are [rows, response tokens].

        Args:
            logprob: log-probabilities by the present weights.
            engine: log-probabilities that the engine reported when it sampled.
            mask: 1 for sampled tokens.
            weights: weight of each token in the loss.
            reference: log-probabilities by the reference model, or None without a KL term.

        Returns:
            The loss (a scalar), and sums over the trained tokens for metrics.
        """
        trained = mask.bool() & (weights != 0)
        present_logprobs, engine_logprobs = logprob[trained].float(), engine[trained]
        token_loss, old_logprobs = self._tokens, present_logprobs.detach()
        reply_numbers = number_replies(trained)[trained] if token_loss.over_replies else None
        terms = token_loss(
            present_logprobs,
            old_logprobs,
            advantages[trained],
            engine_T=engine_logprobs,
            reference_T=None if reference is None else reference[trained],
            replies=token_loss.compute_reply_statistics(present_logprobs, old_logprobs, engine_logprobs, reply_numbers)
            if reply_numbers is not None
            else None,
        )
        # The engine averages gradients over the processes, so a process's sum is multiplied by their number.
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        loss = torch.sum(weights[trained] * terms.loss) * ranks
        # a micro batch of rows that train nothing still needs a gradient on every process
        return loss + 0.0 * logprob.sum(), _build_tallies(trained, terms, ranks)


class WeightedTokens(_WeightedLoss):
    """Trinity's `algorithm.policy_loss_fn` without a KL term.

    Trinity reads from the signature of `__call__` which fields it must pass. `returns` carries the loss weights.
    """

    def __call__(  # type: ignore[override]
        self, logprob: Tensor, old_logprob: Tensor, action_mask: Tensor, advantages: Tensor, returns: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the loss of a micro-batch. Arguments and result are those of `_sum_loss`; `returns` holds the loss
        weights."""
        return self._sum_loss(logprob, old_logprob, action_mask, advantages, returns)


class WeightedTokensWithReference(_WeightedLoss):
    """Trinity's `algorithm.policy_loss_fn` with a KL term to a reference model."""

    def __call__(  # type: ignore[override]
        self,
        logprob: Tensor,
        old_logprob: Tensor,
        action_mask: Tensor,
        advantages: Tensor,
        returns: Tensor,
        ref_logprob: Tensor,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the loss of a micro-batch. Arguments and result are those of `_sum_loss`; `returns` holds the loss
        weights."""
        return self._sum_loss(logprob, old_logprob, action_mask, advantages, returns, ref_logprob)


def _build_tallies(trained: Tensor, terms: TokenLossTerms, ranks: int) -> dict[str, Any]:
    """Return the sums over a micro-batch's trained tokens from which the step's metrics are computed."""
    from verl.utils.metric import AggregationType, Metric

    summed_terms = {"ajet_tokens": trained, "ajet_kl": terms.divergence, "ajet_clipped": terms.clipped}
    return {
        name: Metric(AggregationType.SUM, 0.0 if values is None else float(values.detach().sum()) * ranks)
        for name, values in summed_terms.items()
    }
