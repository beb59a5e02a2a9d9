"""Makes vLLM's linear layers on a CPU keep their weights unpacked.

vLLM packs a copy of each weight for its kernels and drops the parameter, so a later load could not change it. ajet's
worker calls `keep_weights_plain`; in vLLM started by verl, a plug-in calls it (`ajet_verl.cpu`). Invariant: machines
with an accelerator and unrelated vLLM processes are unaffected.
"""

from __future__ import annotations

from typing import Any


def keep_weights_plain() -> None:
    """Make vLLM's linear layers on a CPU multiply with the parameter itself instead of a packed copy of it.

    A later load of weights then has an effect. Does nothing on an accelerator. Call this before vLLM builds a model.
    """
    import torch
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    dispatch_packed = utils.dispatch_cpu_unquantized_gemm

    def dispatch_plain(layer: Any, remove_weight: bool) -> None:
        """Choose a layer's matrix product as vLLM's function does, but leave the weight of a linear layer unpacked."""
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            dispatch_packed(layer, remove_weight)

    utils.dispatch_cpu_unquantized_gemm = dispatch_plain
