"""On a CPU, vLLM's linear layers keep their weights as they were loaded.

vLLM would pack a copy of each weight for its kernels and drop the parameter, so that no second load could reach it.
Our worker calls `keep_weights_plain` itself; where verl starts vLLM, a plug-in does (`ajet_verl.cpu`). Invariant:
nothing changes on a machine with an accelerator, nor in anybody else's vLLM.
"""

from __future__ import annotations

from typing import Any


def keep_weights_plain() -> None:
    """Let vLLM's CPU layers multiply with their parameters as they are."""
    import torch
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    packed = utils.dispatch_cpu_unquantized_gemm

    def plain(layer: Any, remove_weight: bool) -> None:
        if layer.weight.ndim == 2:
            layer.cpu_linear = torch.nn.functional.linear
        else:
            packed(layer, remove_weight)

    utils.dispatch_cpu_unquantized_gemm = plain
