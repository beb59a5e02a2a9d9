"""The loss of verl's rows: a sum over trained tokens, each with its own weight (DESIGN decision 8).

Invariant: loss and gradient of an optimizer step depend on its trained tokens alone, not on how they are cut into
rows, micro batches and ranks, nor on padding. verl's engines average gradients over the data-parallel ranks (Megatron
also over micro batches, which its engine takes back by itself), so the sum of a rank is multiplied by their number.
The loss of a token is `ajet.algorithm.token_loss`, as on the local backbone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ajet.algorithm.token_loss import TokenLoss

WEIGHTS = "ajet_weights"
"""The rows' field of each token's weight; 0 where it is not trained."""
ON_POLICY = "ajet_on_policy"
"""Whether the whole update is one optimizer step: then the policy before it is the present one."""
TALLIES = ("ajet_tokens", "ajet_kl", "ajet_clipped", "ajet_capped")
"""Sums over the trained tokens of an optimizer step, as verl's workers answer them."""


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """A loss function for `set_loss_fn` of verl's workers: called with each micro batch."""

    tokens: TokenLoss
    entropy_coeff: float = 0.0
    """verl's own key: the policy's entropy is added to what is maximised, weighed like the loss."""

    def __call__(
        self, model_output: Mapping[str, Any], data: Any, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """The loss, and `TALLIES`. `data`: rows with `advantages`, `old_log_probs`, `rollout_log_probs` and `WEIGHTS`,
        [response] each, nested; with a KL term also `ref_log_prob`."""
        from verl.utils.metric import AggregationType, Metric
        from verl.workers.utils.padding import no_padding_2_padding

        names = ["response_mask", "advantages", "old_log_probs", "rollout_log_probs", WEIGHTS]
        if self.tokens.kl_coef is not None:
            names.append("ref_log_prob")
        padded = data.select(*names).to_padded_tensor()
        trained = padded["response_mask"].bool() & (padded[WEIGHTS] != 0)
        logprobs = no_padding_2_padding(model_output["log_probs"], data)[trained].float()
        rows = {name: padded[name][trained] for name in names}
        terms = self.tokens(
            logprobs,
            logprobs.detach() if data[ON_POLICY] else rows["old_log_probs"],
            rows["advantages"],
            engine_T=rows["rollout_log_probs"],
            reference_T=rows.get("ref_log_prob"),
        )
        counted = (trained, terms.divergence, terms.clipped, terms.capped)
        ranks = data["dp_size"]
        tallies = {
            name: Metric(AggregationType.SUM, 0.0 if count is None else float(count.detach().sum()) * ranks)
            for name, count in zip(TALLIES, counted, strict=True)
        }
        loss = terms.loss
        if self.entropy_coeff:
            loss = loss - self.entropy_coeff * no_padding_2_padding(model_output["entropy"], data)[trained].float()
        return torch.sum(rows[WEIGHTS] * loss) * ranks, tallies
