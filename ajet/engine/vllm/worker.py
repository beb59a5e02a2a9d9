"""What ajet adds to vLLM's worker process, by its `worker_extension_cls`.

vLLM imports this module in the worker before it makes the model; two things must happen by then: on a CPU, linear
weights stay as they were loaded (plain_weights), and the process is bound to the life of the one that owns it.

Invariants: `ajet_load` writes into the parameters in place, so all that points at them sees the new values; the
version that tokens are stamped with changes in `ajet_commit` only, which the owner calls while no request runs.
"""

from __future__ import annotations

import mmap
import os
import pickle
from typing import Any

import torch
from torch import Tensor

from ajet.engine.vllm.owner import end_with_owner
from ajet.engine.vllm.plain_weights import keep_weights_plain
from ajet.engine.vllm.sampler import VersionedSampler


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
