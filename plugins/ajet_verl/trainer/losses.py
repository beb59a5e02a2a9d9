"""Computes the loss of verl's rows as a weighted sum over trained tokens (DESIGN decision 8).

Invariant: loss and gradient of an optimizer step depend on its trained tokens only, not on the division into rows,
micro-batches and ranks, nor on padding. verl's engines average gradients over the data-parallel ranks, so a rank's sum
is multiplied by the number of ranks. Megatron also averages over micro-batches, corrected by its engine. The loss of a
token is `ajet.algorithm.token_loss`, as on the local backbone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ajet.algorithm.loss_terms import number_replies
from ajet.algorithm.token_loss import TokenLoss

WEIGHTS = "ajet_weights"
"""Row field: weight of each token, 0 for tokens not trained."""
AGES = "ajet_ages"
"""Row field: age of each token in policy versions, for bounds that depend on the age."""
ON_POLICY = "ajet_on_policy"
"""Key of the update: True if the update is one optimizer step, so that the old policy is the current policy."""
GAP = "ajet_gap"
"""Key of the update: difference between engine and trainer with equal weights in nats per token, 0 if unmeasured."""
TALLIES = ("ajet_tokens", "ajet_kl", "ajet_clipped", "ajet_capped")
"""Sums over the trained tokens of an optimizer step, returned by verl's workers."""


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """The loss function passed to `set_loss_fn` of verl's workers, which call it with each micro-batch."""

    tokens: TokenLoss
    entropy_coeff: float = 0.0
    """verl's own key: weight of the policy's entropy in the objective, weighted like the loss."""

    @property
    def alarm(self) -> float | None:
        """Difference between engine and trainer, in nats per token, above which importance weights get a lower cap."""
        alarm = self.tokens.policy.settings.mismatch_alarm
        assert not isinstance(alarm, str), "the layer settles what `auto` is"
        return alarm

    def __call__(
        self, model_output: Mapping[str, Any], data: Any, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute the loss of a micro-batch.

        Args:
            model_output: the trainer's `log_probs` of the rows, with an entropy term also `entropy`.
            data: nested rows with `advantages`, `old_log_probs`, `rollout_log_probs` and `WEIGHTS`, [response] each;
                with a KL term also `ref_log_prob`, with bounds by age also `AGES`.

        Returns:
            The loss (a scalar), and the sums named in `TALLIES`.
        """
        from verl.utils.metric import AggregationType, Metric
        from verl.workers.utils.padding import no_padding_2_padding

        names = ["response_mask", "advantages", "old_log_probs", "rollout_log_probs", WEIGHTS]
        if self.tokens.kl_coef is not None:
            names.append("ref_log_prob")
        if self.tokens.bounds is not None and self.tokens.bounds.needs_ages:
            names.append(AGES)
        padded = data.select(*names).to_padded_tensor()
        trained = padded["response_mask"].bool() & (padded[WEIGHTS] != 0)
        logprobs = no_padding_2_padding(model_output["log_probs"], data)[trained].float()
        values = {name: padded[name][trained] for name in names}
        token_loss = self.tokens.tighten(data[GAP], self.alarm)
        old_logprobs, engine_logprobs = (
            logprobs.detach() if data[ON_POLICY] else values["old_log_probs"],
            values["rollout_log_probs"],
        )
        reply_numbers = number_replies(trained)[trained] if token_loss.over_replies else None
        terms = token_loss(
            logprobs,
            old_logprobs,
            values["advantages"],
            engine_T=engine_logprobs,
            reference_T=values.get("ref_log_prob"),
            ages_T=values.get(AGES),
            replies=token_loss.compute_reply_statistics(logprobs, old_logprobs, engine_logprobs, reply_numbers)
            if reply_numbers is not None
            else None,
        )
        summed_terms = (trained, terms.divergence, terms.clipped, terms.capped)
        ranks = data["dp_size"]  # verl averages over the ranks, so each rank's sum is multiplied by their number
        tallies = {
            name: Metric(AggregationType.SUM, 0.0 if count is None else float(count.detach().sum()) * ranks)
            for name, count in zip(TALLIES, summed_terms, strict=True)
        }
        loss = terms.loss
        if self.entropy_coeff:
            loss = loss - self.entropy_coeff * no_padding_2_padding(model_output["entropy"], data)[trained].float()
        return torch.sum(values[WEIGHTS] * loss) * ranks, tallies
