"""The engine's side: vLLM's plug-in, which it calls in the actor that owns the engine, and in each process of its own.

Invariants: weights stay as they were loaded, so that the next ones can be loaded over them; new ones come without NCCL
(`weights`); vLLM's own methods take what Trinity 0.6.0 hands to those of vLLM 0.23.
"""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

from ajet.engine.vllm.plain_weights import keep_weights_plain


def register() -> None:
    """vLLM calls this when it loads its plugins."""
    keep_weights_plain()
    if "trinity.common.models.vllm_model" in sys.modules:
        _patch_engine_actor()
    else:
        _patch_worker()


def _patch_engine_actor() -> None:
    import ray
    from vllm.v1.engine.async_llm import AsyncLLM

    # vLLM's own processes ask the synchronizer for weights: without this they would look into a cluster of their own
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    begin: Any = AsyncLLM.start_weight_update
    if "is_checkpoint_format" in inspect.signature(begin).parameters:
        return

    async def start_weight_update(self: Any, is_checkpoint_format: bool = True) -> None:
        await begin(self)

    AsyncLLM.start_weight_update = start_weight_update


def _patch_worker() -> None:
    """vLLM looks the class of its workers up by this name, once it has called us."""
    import trinity.common.models.vllm_worker as names

    from ajet_trinity.cpu.worker import CpuWorker

    names.TrinityGPUWorker = CpuWorker
