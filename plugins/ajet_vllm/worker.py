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
        """Install ajet's sampler in vLLM's model runner.

        Args:
            version: policy version of the loaded weights.

        Returns:
            The worker's process id (`pid`) and the size of its weights in bytes (`weights`).
        """
        runner = self.model_runner
        runner.sampler = sampler = VersionedSampler(runner, version)
        original_sample_tokens = runner.sample_tokens

        def sample_tokens(grammar_output: Any) -> Any:
            """Give ajet's sampler the step's token counts and its logits before a grammar's mask, then sample."""
            state = runner.execute_model_state
            if state is not None:
                sampler.scheduled = state.scheduler_output.num_scheduled_tokens
                # vLLM masks the logits in place, so they are copied if a request of the step has a grammar.
                sampler.unmasked = state.logits.clone() if grammar_output is not None else None
            return original_sample_tokens(grammar_output)

        runner.sample_tokens = sample_tokens
        parameters = list(runner.model.parameters())
        return {
            "pid": os.getpid(),
            "weights": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        }

    def ajet_load(self, bucket: dict[str, Any]) -> list[str]:
        """Load tensors into the model, in place, and return the names of the updated parameters, sorted.

        Args:
            bucket: description of some tensors, named as in the checkpoint: CUDA handles of a GPU's tensors
                (`handles`), or places in the owner's shared memory (`ajet_vllm.weights`).
        """
        tensors = _open_device_tensors(bucket["handles"]) if "handles" in bucket else self._ajet_mapped(bucket)
        with torch.no_grad():
            return sorted(self.model_runner.model.load_weights(iter(tensors)) or ())

    def ajet_commit(self, version: int) -> None:
        """Stamp policy version `version` on further tokens, after all tensors of this version were loaded."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.model_runner.sampler.version = version

    def ajet_parameters(self) -> list[str]:
        """Return the names of all parameters of the model."""
        return [name for name, _ in self.model_runner.model.named_parameters()]

    def _ajet_mapped(self, bucket: dict[str, Any]) -> list[tuple[str, Tensor]]:
        """Return (name, tensor) for each tensor of a bucket in the owner's shared memory, without a copy.

        Args:
            bucket: `path` and `size` in bytes of the memory, and for each of the `tensors` its name, dtype, shape and
                offset in bytes.
        """
        with open(bucket["path"], "r+b") as memory_file:
            memory = mmap.mmap(memory_file.fileno(), bucket["size"])
        tensors = []
        for name, dtype_name, shape, offset in bucket["tensors"]:
            dtype: torch.dtype = getattr(torch, dtype_name)
            count = int(torch.Size(shape).numel())
            tensors.append((name, torch.frombuffer(memory, dtype=dtype, count=count, offset=offset).view(shape)))
        return tensors


def _open_device_tensors(handles: bytes) -> list[tuple[str, Tensor]]:
    """Return (name, tensor) for tensors of the owner on the same GPU, without a copy.

    Args:
        handles: pickled list of (name, function that opens the CUDA IPC handle, its arguments).
    """
    return [(name, rebuild(*arguments)) for name, rebuild, arguments in pickle.loads(handles)]


# vLLM imports this module before it builds the model. Both calls must happen by then.
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
        """Create a sampler for a model runner of vLLM, whose weights are those of policy `version`."""
        super().__init__("processed_logprobs")
        self.version = version
        self.scheduled: Mapping[str, int] = {}
        """Tokens computed by each request in the current step."""
        self.unmasked: Tensor | None = None
        """The step's logits [B, V] before a grammar's mask; None if no request has a grammar."""
        self._drawer = Drawer()
        object.__setattr__(self, "_runner", runner)  # not by Module.__setattr__: it is no part of this module

    def forward(
        self,
        logits: Tensor,
        sampling_metadata: Any,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        """Draw one token per request, and return it with its log-probabilities and its policy version.

        Args:
            logits: [B, V], after a grammar's mask.
            sampling_metadata: vLLM's sampling parameters, replaced by those in each request's extra arguments.
            predict_bonus_token: vLLM's flag for speculative decoding, unused.
            logprobs_mode_override: vLLM's kind of log-probabilities, unused.

        Returns:
            [B, 1] token ids, and per token the columns of ids and logprobs in the docstring of this class.
        """
        unmasked, self.unmasked = self.unmasked, None
        settings, uniforms_B = self._read_rows()
        ids_B, logprobs_2B, unit_BV = self._drawer.draw_tensors(logits, settings, uniforms_B, unmasked_BV=unmasked)
        most_requested = max((setting.top_logprobs for setting in settings), default=0)
        likeliest = torch.topk(unit_BV, min(most_requested, unit_BV.shape[1]), -1)
        versions_B = torch.full_like(ids_B, self.version)
        columns = LogprobsTensors(
            torch.cat([ids_B[:, None], VERSIONS - versions_B[:, None], LIKELIEST - likeliest.indices], 1).int(),
            torch.cat([logprobs_2B.T.float(), likeliest.values.clamp_min(LEAST).log()], 1),
            torch.zeros_like(ids_B),  # the ranks of the sampled tokens, which ajet does not read
        )
        return SamplerOutput(ids_B[:, None].int(), columns)

    def _read_rows(self) -> tuple[list[Sampling], np.ndarray]:
        """Return the sampling parameters of the B requests in the step, and [B] uniform numbers in [0, 1).

        A number depends only on the request's draw key and the token's position in the reply. A request whose prompt is
        not complete yet gets a number, too: vLLM discards its token.
        """
        batch, requests = self._runner.input_batch, self._runner.requests
        settings: list[Sampling] = []
        streams = np.zeros(batch.num_reqs, np.uint64)
        positions = np.zeros(batch.num_reqs, np.uint64)
        for row, name in enumerate(batch.req_ids):
            params = requests[name].sampling_params
            computed_tokens = int(batch.num_computed_tokens_cpu[row]) + self.scheduled[name]
            streams[row], temperature, top_p, top_k = params.extra_args[OURS]
            positions[row] = max(0, computed_tokens - int(batch.num_prompt_tokens[row]))
            # One of the requested logprobs carries the version (`ajet_vllm.requests.sampling_params`).
            settings.append(Sampling(1, temperature, top_p, top_k, top_logprobs=params.logprobs - 1))
        return settings, draw_uniforms(streams, positions)
