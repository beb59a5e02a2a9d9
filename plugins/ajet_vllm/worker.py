"""ajet's part of vLLM's worker process (`worker_extension_cls`): weight loading and a sampler.

vLLM imports this module in the worker before it builds the model. By then linear weights on a CPU must stay unpacked
(plain_weights), and the process must be tied to the life of its owner.

Invariant: `ajet_load` writes parameters in place, so all references see the new values. Only `ajet_commit` changes the
version stamped on tokens; the owner calls it while no request runs.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler

from ajet.engine.contract import Sampling
from ajet.engine.draws import draw_uniforms
from ajet.engine.transformers.sampling import Sampler as Drawer
from ajet_vllm.owner import end_with_owner
from ajet_vllm.plain_weights import keep_weights_plain
from ajet_vllm.requests import LIKELIEST, OURS, VERSIONS


class LiveWeights:
    """Worker methods called by the owner through `collective_rpc`; arguments must be msgpack types."""

    model_runner: Any

    def ajet_begin(self, version: int) -> dict[str, Any]:
        """Install ajet's sampler, and return the worker's process id and the size of its weights in bytes."""
        runner = self.model_runner
        runner.sampler = sampler = VersionedSampler(runner, version)
        inner = runner.sample_tokens

        def sample_tokens(grammar_output: Any) -> Any:
            state = runner.execute_model_state
            if state is not None:
                sampler.scheduled = state.scheduler_output.num_scheduled_tokens
                sampler.unmasked = state.logits.clone() if grammar_output is not None else None
            return inner(grammar_output)

        runner.sample_tokens = sample_tokens
        parameters = list(runner.model.parameters())
        return {
            "pid": os.getpid(),
            "weights": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        }

    def ajet_load(self, bucket: dict[str, Any]) -> list[str]:
        """Load tensors under the checkpoint's names, and return the names of the updated parameters."""
        tensors = _of_device(bucket["handles"]) if "handles" in bucket else self._ajet_mapped(bucket)
        with torch.no_grad():
            return sorted(self.model_runner.model.load_weights(iter(tensors)) or ())

    def ajet_commit(self, version: int) -> None:
        """Label the loaded weights as `version`, after all tensors were loaded."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.model_runner.sampler.version = version

    def ajet_parameters(self) -> list[str]:
        """Return the names of all parameters of the model."""
        return [name for name, _ in self.model_runner.model.named_parameters()]

    def _ajet_mapped(self, bucket: dict[str, Any]) -> list[tuple[str, Tensor]]:
        """Return tensors mapped from the owner's memory."""
        with open(bucket["path"], "r+b") as handle:
            memory = mmap.mmap(handle.fileno(), bucket["size"])
        mapped = []
        for name, dtype, shape, start in bucket["tensors"]:
            kind: torch.dtype = getattr(torch, dtype)
            count = int(torch.Size(shape).numel())
            mapped.append((name, torch.frombuffer(memory, dtype=kind, count=count, offset=start).view(shape)))
        return mapped


def _of_device(handles: bytes) -> list[tuple[str, Tensor]]:
    """Return tensors on the shared GPU from handles pickled by the owner."""
    return [(name, rebuild(*arguments)) for name, rebuild, arguments in pickle.loads(handles)]


keep_weights_plain()
end_with_owner()


LEAST = torch.finfo(torch.float32).tiny
"""Probabilities below this number count as 0."""


class VersionedSampler(Sampler):
    """Replaces vLLM's sampler with the transformers engine's.

    A token is the inverse of its distribution at a number determined by its draw key (`ajet.engine.draws`). A reply
    therefore depends only on its prompt, key and weights, and both kinds of logprobs come from the sampled logits.
    (vLLM's own seeded generators fail on a CPU after a prompt in several portions, and lose the seed next to a greedy
    row.)

    Invariant: a token's alternatives have the following columns:

        id:       the token         VERSIONS - version    LIKELIEST - id of each of the k likeliest tokens
        logprob:  as sampled        at temperature 1      of each, at temperature 1

    All ids of a token's columns differ, because vLLM merges waiting outputs through dicts. "As sampled" is the
    distribution after a grammar's mask, temperature, top-k and top-p; 0 for greedy. "At temperature 1" is the model's
    own distribution before all of them.
    """

    def __init__(self, runner: Any, version: int) -> None:
        super().__init__("processed_logprobs")
        self.version = version
        self.scheduled: Mapping[str, int] = {}
        """Tokens computed by each request in the current step."""
        self.unmasked: Tensor | None = None
        """The step's logits [B, V] before a grammar's mask; None if no request has a grammar."""
        self._drawer = Drawer()
        object.__setattr__(self, "_runner", runner)

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        """Draw one token per row of `logits` [B, V], and return the columns described above."""
        unmasked, self.unmasked = self.unmasked, None
        settings, uniforms_B = self._read_rows()
        ids_B, logprobs_2B, unit_BV = self._drawer.draw_tensors(logits, settings, uniforms_B, unmasked_BV=unmasked)
        most_requested = max((setting.top_logprobs for setting in settings), default=0)
        likeliest = torch.topk(unit_BV, min(most_requested, unit_BV.shape[1]), -1)
        versions_B = torch.full_like(ids_B, self.version)
        columns = LogprobsTensors(
            torch.cat([ids_B[:, None], VERSIONS - versions_B[:, None], LIKELIEST - likeliest.indices], 1).int(),
            torch.cat([logprobs_2B.T.float(), likeliest.values.clamp_min(LEAST).log()], 1),
            torch.zeros_like(ids_B),
        )
        return SamplerOutput(ids_B[:, None].int(), columns)

    def _read_rows(self) -> tuple[list[Sampling], np.ndarray]:
        """Return each row's sampling parameters and uniform number; the draw of an incomplete prompt is discarded."""
        batch, requests = self._runner.input_batch, self._runner.requests
        settings: list[Sampling] = []
        streams = np.zeros(batch.num_reqs, np.uint64)
        positions = np.zeros(batch.num_reqs, np.uint64)
        for row, name in enumerate(batch.req_ids):
            params = requests[name].sampling_params
            computed_tokens = int(batch.num_computed_tokens_cpu[row]) + self.scheduled[name]
            streams[row], temperature, top_p, top_k = params.extra_args[OURS]
            positions[row] = max(0, computed_tokens - int(batch.num_prompt_tokens[row]))
            settings.append(Sampling(1, temperature, top_p, top_k, top_logprobs=params.logprobs - 1))
        return settings, draw_uniforms(streams, positions)
