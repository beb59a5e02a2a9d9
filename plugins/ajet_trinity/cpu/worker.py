"""CpuWorker: vLLM's worker on a CPU, with the methods called by Trinity.

Invariant: Trinity's patch for prompt logprobs is not applied. Logprobs stay at temperature 1, as expected by
`RolloutEngine`.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class CpuWorker(CPUWorker):
    """Replacement of Trinity's `TrinityGPUWorker` on a CPU."""

    def apply_patches(self) -> None:
        """Do nothing, because a CPU needs no patches."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Register the transfer of weights before vLLM's lookup."""
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

        if "checkpoint" not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(
                "checkpoint", "ajet_trinity.cpu.weights", "SynchronizersWeights"
            )
        super().load_model(*args, **kwargs)
