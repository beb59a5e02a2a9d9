"""The sampler that takes the place of vLLM's own. Imported by vLLM's worker only.

It is the transformers engine's: a token is the inverse of its distribution at a number that its name determines
(`ajet.engine.draws`), so that a reply depends on its own prompt, key and weights and not on what runs beside it, and
both kinds of logprobs come from the logits it was drawn from. (vLLM's generators of requests with a seed end a
prompt in portions on a CPU with an error, and forget the seed beside a greedy row.)

Invariant: what goes back as a token's alternatives has this layout, column by column:

    id:       the token         VERSIONS - version    LIKELIEST - id of each of the k likeliest tokens
    logprob:  as sampled        at temperature 1      theirs, at temperature 1

The ids of a token's columns are all different: where outputs wait to be fetched vLLM merges them by way of dicts.

"As sampled" is of the distribution that was drawn from: after a grammar's mask, temperature, top-k and top-p, 0 for
greedy. "At temperature 1" is of the model's own logits, before any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler

from ajet.engine.contract import Sampling
from ajet.engine.draws import uniforms
from ajet.engine.transformers.sampling import Sampler as Drawer
from ajet.engine.vllm.requests import LIKELIEST, OURS, VERSIONS

LEAST = torch.finfo(torch.float32).tiny
"""A probability below this one is 0."""


class VersionedSampler(Sampler):
    """Draws for the requests of `runner`, vLLM's model runner, all of which are ours."""

    def __init__(self, runner: Any, version: int) -> None:
        super().__init__("processed_logprobs")
        self.version = version
        self.scheduled: Mapping[str, int] = {}
        """Tokens that each request computes in this step."""
        self.unmasked: Tensor | None = None
        """[B, V] this step's logits from before a grammar's mask; None where no request has a grammar."""
        self._drawer = Drawer()
        object.__setattr__(self, "_runner", runner)

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        """Draw one token a row of `logits` [B, V], with the columns above."""
        unmasked, self.unmasked = self.unmasked, None
        settings, uniforms_B = self._rows()
        ids_B, logprobs_2B, unit_BV = self._drawer.draw_tensors(logits, settings, uniforms_B, unmasked_BV=unmasked)
        wanted = max((each.top_logprobs for each in settings), default=0)
        likeliest = torch.topk(unit_BV, min(wanted, unit_BV.shape[1]), -1)
        versions_B = torch.full_like(ids_B, self.version)
        columns = LogprobsTensors(
            torch.cat([ids_B[:, None], VERSIONS - versions_B[:, None], LIKELIEST - likeliest.indices], 1).int(),
            torch.cat([logprobs_2B.T.float(), likeliest.values.clamp_min(LEAST).log()], 1),
            torch.zeros_like(ids_B),
        )
        return SamplerOutput(ids_B[:, None].int(), columns)

    def _rows(self) -> tuple[list[Sampling], np.ndarray]:
        """How each row samples, and its number. A prompt that is not complete yet draws what nobody gets."""
        batch, requests = self._runner.input_batch, self._runner.requests
        settings: list[Sampling] = []
        streams = np.zeros(batch.num_reqs, np.uint64)
        positions = np.zeros(batch.num_reqs, np.uint64)
        for row, name in enumerate(batch.req_ids):
            params = requests[name].sampling_params
            known = int(batch.num_computed_tokens_cpu[row]) + self.scheduled[name]
            streams[row], temperature, top_p, top_k = params.extra_args[OURS]
            positions[row] = max(0, known - int(batch.num_prompt_tokens[row]))
            settings.append(Sampling(1, temperature, top_p, top_k, top_logprobs=params.logprobs - 1))
        return settings, uniforms(streams, positions)
