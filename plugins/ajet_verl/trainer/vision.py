"""Adapts transformers 5's vision towers to the forward passes of vision models in verl 0.9."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

TENSOR_READERS = ("qwen2_vl", "qwen2_5_vl", "glm4v")
"""Model types whose forward pass in verl expects a tensor from the tower.

For Qwen2-VL in a batch without images (`image_embeds.mean()`), for GLM-4V always.
"""


def return_image_features(model: nn.Module) -> None:
    """Make the vision tower of `model` return its features, [N, D], instead of an object holding them."""
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) not in TENSOR_READERS:
        return
    for name, module in model.named_modules():
        if name.split(".")[-1] == "visual":
            module.register_forward_hook(_take_features)


def _take_features(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> Tensor:
    features: Tensor = getattr(output, "pooler_output", output)
    return features
