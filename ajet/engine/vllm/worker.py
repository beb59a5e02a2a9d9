"""What ajet adds to vLLM's worker process, by its `worker_extension_cls`: loading of weights, and a sampler.

vLLM imports this module in the worker before it makes the model; two things must happen by then: on a CPU, linear
weights stay as they were loaded (plain_weights), and the process is bound to the life of the one that owns it.

Invariants: `ajet_load` writes into the parameters in place, so all that points at them sees the new values; the
version that tokens are stamped with changes in `ajet_commit` only, which the owner calls while no request runs.
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
from ajet.engine.vllm.owner import end_with_owner
from ajet.engine.vllm.plain_weights import keep_weights_plain
from ajet.engine.vllm.requests import LIKELIEST, OURS, VERSIONS


class LiveWeights:
    """Methods of the worker; the owner calls them with `collective_rpc`. Arguments are what msgpack carries."""

    model_runner: Any

    def ajet_begin(self, version: int) -> dict[str, Any]:
        """Take the sampler's place. Answers the worker's process id and what its model holds, in bytes."""
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
        return {"pid": os.getpid(), "weights": sum(each.numel() * each.element_size() for each in parameters)}

    def ajet_load(self, bucket: dict[str, Any]) -> list[str]:
        """Load some tensors, under the checkpoint's names; answers the names of the parameters they went to."""
        tensors = _of_device(bucket["handles"]) if "handles" in bucket else self._ajet_mapped(bucket)
        with torch.no_grad():
            return sorted(self.model_runner.model.load_weights(iter(tensors)) or ())

    def ajet_commit(self, version: int) -> None:
        """Name the weights `version`: all its tensors are in."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.model_runner.sampler.version = version

    def ajet_parameters(self) -> list[str]:
        """Names of all the model's parameters."""
        return [name for name, _ in self.model_runner.model.named_parameters()]

    def _ajet_mapped(self, bucket: dict[str, Any]) -> list[tuple[str, Tensor]]:
        """Tensors that lie in memory of the owner."""
        with open(bucket["path"], "r+b") as handle:
            memory = mmap.mmap(handle.fileno(), bucket["size"])
        found = []
        for name, dtype, shape, start in bucket["tensors"]:
            kind: torch.dtype = getattr(torch, dtype)
            count = int(torch.Size(shape).numel())
            found.append((name, torch.frombuffer(memory, dtype=kind, count=count, offset=start).view(shape)))
        return found


def _of_device(handles: bytes) -> list[tuple[str, Tensor]]:
    """Tensors that lie on the GPU that both processes use. Pickled by the owner, over a socket of its own."""
    return [(name, rebuild(*arguments)) for name, rebuild, arguments in pickle.loads(handles)]


keep_weights_plain()
end_with_owner()


LEAST = torch.finfo(torch.float32).tiny
"""A probability below this one is 0."""


class VersionedSampler(Sampler):
    """The sampler that takes the place of vLLM's own: the transformers engine's.

    A token is the inverse of its distribution at a number that its name determines (`ajet.engine.draws`), so that a
    reply depends on its own prompt, key and weights and not on what runs beside it, and both kinds of logprobs come
    from the logits it was drawn from. (vLLM's generators of requests with a seed end a prompt in portions on a CPU with
    an error, and forget the seed beside a greedy row.)

    Invariant: what goes back as a token's alternatives has this layout, column by column:

        id:       the token         VERSIONS - version    LIKELIEST - id of each of the k likeliest tokens
        logprob:  as sampled        at temperature 1      theirs, at temperature 1

    The ids of a token's columns are all different: where outputs wait to be fetched vLLM merges them by way of dicts.
    "As sampled" is of the distribution that was drawn from: after a grammar's mask, temperature, top-k and top-p, 0 for
    greedy. "At temperature 1" is of the model's own logits, before any of these.
    """

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
        settings, uniforms_B = self._read_rows()
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

    def _read_rows(self) -> tuple[list[Sampling], np.ndarray]:
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
        return settings, draw_uniforms(streams, positions)
