"""CpuWorker: vLLM's worker on a CPU, with what Trinity asks of its own.

Invariant: Trinity's patch for logprobs of prompts is not applied: they are those of temperature 1 here, as
`RolloutEngine` wants them.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker


class CpuWorker(CPUWorker):
    """Takes the place of `TrinityGPUWorker`."""

    def apply_patches(self) -> None:
        """Does nothing: a CPU needs no patches."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Make known how new weights come before vLLM looks for it."""
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

        if "checkpoint" not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(
                "checkpoint", "ajet_trinity.cpu.weights", "SynchronizersWeights"
            )
        super().load_model(*args, **kwargs)
