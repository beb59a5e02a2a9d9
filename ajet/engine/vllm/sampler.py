"""vLLM's sampler, made to say all that a trainer must know of a token. Imported by vLLM's worker only.

vLLM reports one logprob a token: of the model's distribution or of the one it sampled from. Training needs both, and
the version of the weights. Invariant: what goes back as a token's alternatives has this layout, column by column:

    id:       the token         the policy version    ids of the k likeliest tokens
    logprob:  as sampled        at temperature 1      theirs, at temperature 1

"As sampled" is of the distribution that was drawn from: after the grammar's mask, temperature, top-k and top-p, 0 for
greedy. "At temperature 1" is of the model's own logits, before any of these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

GREEDY = 1e-5
"""vLLM takes a temperature below this for 0."""


class TwoLogprobs(Sampler):
    """Takes the place of the runner's sampler. `unmasked`: [B, V] the model's logits from before a grammar's mask, of
    the next call only; None where no request has a grammar."""

    def __init__(self, **options: Any) -> None:
        super().__init__("processed_logprobs", **options)
        # vLLM's own forward for a CPU forgets the seeds of all rows as soon as one row is greedy
        self.topk_topp_sampler.forward = self.topk_topp_sampler.forward_native
        self.version = 0
        self.unmasked: Tensor | None = None

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        """As vLLM's, with the columns above. `logits` [B, V] may be changed in place."""
        columns = sampling_metadata.max_num_logprobs
        model_BV, self.unmasked = (logits if self.unmasked is None else self.unmasked), None
        if columns is None:
            return super().forward(logits, sampling_metadata, predict_bonus_token, logprobs_mode_override)
        assert columns >= 1, "a request of ajet asks for the column of the version"
        unit_BV = model_BV.log_softmax(-1, dtype=torch.float32)  # before the logits are changed
        alone = replace(sampling_metadata, max_num_logprobs=0)
        output = super().forward(logits, alone, predict_bonus_token, "processed_logprobs")
        assert output.logprobs_tensors is not None
        ids_B1 = output.sampled_token_ids.long()
        sampled_B1 = output.logprobs_tensors.logprobs[:, :1]
        if not sampling_metadata.all_random:
            temperature = sampling_metadata.temperature
            greedy = slice(None) if temperature is None else temperature < GREEDY
            sampled_B1[greedy] = 0.0
        likeliest = torch.topk(unit_BV, min(columns - 1, unit_BV.shape[1]), -1)
        version_B1 = torch.full_like(ids_B1, self.version)
        output.logprobs_tensors = LogprobsTensors(
            torch.cat([ids_B1, version_B1, likeliest.indices], 1).int(),
            torch.cat([sampled_B1, unit_BV.gather(1, ids_B1), likeliest.values], 1),
            output.logprobs_tensors.selected_token_ranks,
        )
        return output

    @staticmethod
    def gather_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> LogprobsTensors:
        """[B, 1] of the sampled tokens, without their ranks, which vLLM compiles a kernel for."""
        ids_B1 = token_ids[:, None]
        return LogprobsTensors(ids_B1.int(), logprobs.gather(1, ids_B1), torch.zeros_like(token_ids))
