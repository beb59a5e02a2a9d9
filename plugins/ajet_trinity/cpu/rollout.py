"""vLLM plug-in for Trinity's engines on a CPU, called in the actor of an engine and in each of its processes.

Invariants: weights stay as loaded, so that new weights can be loaded in place. New weights arrive without NCCL
(`weights`). vLLM's methods accept the arguments of Trinity 0.6.0, written for vLLM 0.23.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from ajet_vllm.plain_weights import keep_weights_plain


def register() -> None:
    """Patch vLLM for Trinity on a CPU. vLLM's plug-in loader calls this in each process."""
    keep_weights_plain()
    if "trinity.common.models.vllm_model" in sys.modules:
        _patch_engine_actor()
    else:
        _patch_worker()


def _patch_engine_actor() -> None:
    """Patch vLLM in the actor of an engine, which runs Trinity's code.

    Trinity 0.6.0 calls `start_weight_update` with an argument that newer versions of vLLM do not accept.
    """
    import ray
    from vllm.v1.engine.async_llm import AsyncLLM

    # vLLM's processes request weights from the synchronizer. Without the address they would look in another cluster.
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    vllm_method: Any = AsyncLLM.start_weight_update
    if "is_checkpoint_format" in inspect.signature(vllm_method).parameters:
        return

    async def start_weight_update(self: Any, is_checkpoint_format: bool = True) -> None:
        await vllm_method(self)

    AsyncLLM.start_weight_update = start_weight_update


def _patch_worker() -> None:
    """Replace Trinity's worker class, which vLLM looks up by name afterwards."""
    import trinity.common.models.vllm_worker as worker_module

    worker_module.TrinityGPUWorker = CpuWorker


# CpuWorker: vLLM's worker on a CPU, with the methods called by Trinity.
# Invariant: Trinity's patch for prompt logprobs is not applied. Logprobs stay at temperature 1, as expected by
# `RolloutEngine`.
class CpuWorker(CPUWorker):
    """Replacement of Trinity's `TrinityGPUWorker` on a CPU."""

    def apply_patches(self) -> None:
        """Do nothing, because a CPU needs no patches."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model, and before it register the class that transfers new weights, since vLLM looks it up here."""
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

        if "checkpoint" not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(
                "checkpoint", "ajet_trinity.cpu.weights", "SynchronizersWeights"
            )
        super().load_model(*args, **kwargs)
